/** One turn of an agent, as the hooks of a processor are given it. */
import { MessageList } from '@mastra/core/agent';
import type { MastraDBMessage } from '@mastra/core/agent';
import { RequestContext } from '@mastra/core/request-context';
import type { StoredMessage } from './corpus.ts';

/** What both processors are called with. */
export interface HookArguments {
  messages: MastraDBMessage[];
  messageList: MessageList;
  requestContext: RequestContext;
  abort: (reason?: string) => never;
}

/** The two hooks of a `Processor` that are measured. */
export interface Hooks {
  processInput(turn: HookArguments): Promise<unknown>;
  processOutputResult(turn: HookArguments): Promise<unknown>;
}

/** A turn, and the messages that were in its prompt before. */
export interface Turn extends HookArguments {
  shown: readonly string[];
}

/** Whose turn it is. */
export interface Speaker {
  resourceId: string;
  threadId: string;
}

/** A stored message in Mastra's own format. */
export function dbMessage(
  message: StoredMessage,
  { resourceId, threadId }: Speaker,
): MastraDBMessage {
  return {
    id: message.id,
    role: message.role,
    createdAt: new Date(message.createTimeMs),
    threadId,
    resourceId,
    type: 'text',
    content: {
      format: 2,
      parts: [{ type: 'text', text: message.text }],
      content: message.text,
    },
  };
}

/**
 * The turn as processors see it in an agent: the last messages of the thread, which the message
 * history has put there, and the question. The recalled ones come from the user's other threads.
 */
export function turnOf(
  history: readonly StoredMessage[],
  question: string,
  speaker: Speaker,
): Turn {
  const messageList = new MessageList(speaker);
  messageList.add(
    history.map((message) => dbMessage(message, speaker)),
    'memory',
  );
  messageList.add(question, 'input');
  const requestContext = new RequestContext();
  requestContext.set('MastraMemory', {
    thread: { id: speaker.threadId },
    resourceId: speaker.resourceId,
  });
  const shown = history.map(({ id }) => id);
  return { messages: messageList.get.all.db(), messageList, requestContext, abort: refuse, shown };
}

/** The same turn when the model has answered. */
export function answered(turn: HookArguments, answer: string): HookArguments {
  turn.messageList.add({ role: 'assistant', content: answer }, 'response');
  return { ...turn, messages: turn.messageList.get.response.db() };
}

/** What a processor has recalled: ids of this thread, text of others; "" where there is nothing. */
export function recalledText({ messageList, shown }: Turn): string {
  const ids = messageList.get.remembered.db().map(({ id }) => id);
  const others = messageList.getSystemMessages('memory');
  const texts = others.map(({ content }) => (typeof content === 'string' ? content : ''));
  return [...ids.filter((id) => !shown.includes(id)), ...texts].join('\n');
}

function refuse(reason?: string): never {
  throw new Error(`a processor asked to abort: ${reason ?? ''}`);
}
