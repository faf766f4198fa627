/** Turns of an agent, without one: with Mastra's own message list and request context. */
import { randomUUID } from 'node:crypto';
import type { MastraDBMessage } from '@mastra/core/agent/message-list';
import { MessageList } from '@mastra/core/agent/message-list';
import type { OutputResult } from '@mastra/core/processors';
import { RequestContext } from '@mastra/core/request-context';

import type { SemanticRecall } from '../../src/mastra/index.js';

/** A logger that keeps what it is told. */
export class KeptLog {
  readonly lines: { level: string; message: string; fields: unknown }[] = [];

  error(message: string, fields?: unknown): void {
    this.lines.push({ level: 'error', message, fields });
  }
  warn(message: string, fields?: unknown): void {
    this.lines.push({ level: 'warn', message, fields });
  }
  debug(message: string, fields?: unknown): void {
    this.lines.push({ level: 'debug', message, fields });
  }
}

/** Who speaks where. */
export interface Place {
  readonly resourceId?: string;
  readonly threadId: string;
  /** Metadata of the thread. */
  readonly metadata?: Record<string, unknown>;
  readonly memoryConfig?: Record<string, unknown>;
}

/** A request's context as an agent makes it. */
export function contextOf(place: Place): RequestContext {
  const { threadId: id, resourceId, metadata, memoryConfig } = place;
  return new RequestContext([
    ['MastraMemory', { thread: { id, resourceId, metadata }, resourceId, memoryConfig }],
  ]);
}

/** A message of Mastra's second format with one text part for each text. */
export function said(
  role: MastraDBMessage['role'],
  texts: string | readonly string[],
  fields: Partial<MastraDBMessage> = {},
): MastraDBMessage {
  const parts = [texts].flat().map((text) => ({ type: 'text' as const, text }));
  const content = { format: 2 as const, parts, content: parts.at(-1)?.text ?? '' };
  return { id: randomUUID(), role, createdAt: new Date(), content, ...fields };
}

/** An empty list of a conversation. */
export function listOf(place: Place): MessageList {
  const { threadId, resourceId } = place;
  return new MessageList({ threadId, ...(resourceId === undefined ? {} : { resourceId }) });
}

/** How a turn ended. */
export function resultOf(finishReason = 'stop'): OutputResult {
  const usage = { inputTokens: 0, outputTokens: 0, totalTokens: 0 };
  return { text: '', usage, finishReason, steps: [] };
}

/** One turn's end: what was said is in the list as new, and the output hook runs. */
export async function index(
  recall: SemanticRecall,
  place: Place,
  messages: readonly MastraDBMessage[],
  finishReason?: string,
): Promise<void> {
  const list = listOf(place);
  for (const message of messages) {
    list.add(message, message.role === 'assistant' ? 'response' : 'input', { merge: false });
  }
  await recall.processOutputResult({
    messages: list.get.response.db(),
    messageList: list,
    requestContext: contextOf(place),
    result: resultOf(finishReason),
  });
}

/** One turn's beginning: the list with the question in it, after the input hook. */
export async function ask(
  recall: SemanticRecall,
  place: Place,
  question: string | MastraDBMessage,
  history: readonly MastraDBMessage[] = [],
): Promise<MessageList> {
  const list = listOf(place);
  for (const message of history) list.add(message, 'memory');
  list.add(typeof question === 'string' ? said('user', question) : question, 'input');
  const returned = await recall.processInput({
    messages: list.get.all.db(),
    messageList: list,
    requestContext: contextOf(place),
  });
  if (returned !== list) throw new Error('another list came back');
  return list;
}

/** Ids of what was put into the list as memory. */
export function rememberedIds(list: MessageList): string[] {
  return list.get.remembered
    .db()
    .map((message) => message.id)
    .filter((id) => !id.startsWith('semantic-recall:'));
}

/** Texts of the system messages that memory put into the list. */
export function memoryTexts(list: MessageList): string[] {
  return list.getSystemMessages('memory').map((message) => {
    if (typeof message.content !== 'string') throw new Error('text expected');
    return message.content;
  });
}
