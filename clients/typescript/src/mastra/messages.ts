/**
 * Mastra's messages and ours, in both directions.
 *
 * A message goes to the sidecar as the text that is searched and, in its payload, as the JSON of
 * the message as Mastra's MessageHistory stores it, without working memory and half tool calls.
 * From that JSON it comes back.
 */
import type { MastraDBMessage } from '@mastra/core/agent/message-list';

import { isRecord } from '../adapters/json.js';
import { cutToBytes, TEXT_BYTES_MAX } from '../adapters/text.js';
import type { Message } from '../results.js';
import type { MessageInput } from '../values.js';

/** `payloadType` of a message of Mastra's second format, as JSON. */
export const MASTRA_MESSAGE_TYPE = 'application/vnd.mastra.message+json;format=2';

/** Bytes that the sidecar takes as the payload of one message. */
const PAYLOAD_BYTES_MAX = 1_048_576;
/** What the sidecar takes as a time: the years 1 to 9999, in milliseconds since 1970. */
const TIME_MS_LEAST = -62_135_596_800_000;
const TIME_MS_MOST = 253_402_300_799_999;
/** Bytes of UTF-8 that the sidecar takes as a query. */
const QUERY_BYTES_MAX = 1_048_576;

const WORKING_MEMORY_TOOLS: ReadonlySet<string> = new Set([
  'updateWorkingMemory',
  'setWorkingMemory',
]);
// What a cut reply leaves open goes to its end: rather too little is remembered than a secret.
const WORKING_MEMORY = /<working_memory>[\s\S]*?(?:<\/working_memory>|$)/g;

/** A message for the sidecar, and what of it could not be taken along. */
export interface IndexableMessage {
  readonly input: MessageInput & { readonly id: string };
  /** Bytes of text and payload. */
  readonly bytes: number;
  /** The text was above its limit: its end is not searched. */
  readonly textCut: boolean;
  /** The payload was above its limit, or no JSON can be made of it. */
  readonly payloadLeftOut: boolean;
}

/**
 * What to search with: the text of the last message of the user.
 *
 * Only of the last one: where it has no text (an image, say) an older question is not asked again.
 * `undefined` where there is nothing but white space.
 */
export function queryOf(messages: readonly MastraDBMessage[]): string | undefined {
  const last = lastOf(messages, isOfUser);
  if (last === undefined) return undefined;
  const content: unknown = last.content;
  const whole = isRecord(content) ? content['content'] : content;
  const text = typeof whole === 'string' && whole !== '' ? whole : textParts(last).join(' ');
  return text.trim() === '' ? undefined : cutToBytes(text, QUERY_BYTES_MAX);
}

/** A message of the person, also one that came as a signal (`agent.sendMessage`, Studio). */
export function isOfUser(message: MastraDBMessage): boolean {
  if (message.role === 'user') return true;
  const type = signalOf(message)?.['type'];
  return type === 'user' || type === 'user-message';
}

/**
 * The message for the sidecar; `undefined` for one that is never remembered: of the system, a
 * signal that is not the user's, or one of which nothing is stored.
 */
export function toIndexable(message: MastraDBMessage): IndexableMessage | undefined {
  const role = isOfUser(message) ? 'user' : message.role === 'assistant' ? 'assistant' : undefined;
  if (role === undefined || typeof message.id !== 'string' || message.id === '') return undefined;
  if (signalOf(message)?.['transient'] === true) return undefined;
  const stored = asStored(message);
  if (stored === undefined) return undefined;
  const whole = textParts(stored).join('\n') || stringContent(stored);
  const text = cutToBytes(whole, TEXT_BYTES_MAX);
  const payload = payloadOf(stored);
  return {
    input: {
      id: message.id,
      role,
      text,
      createTime: validDate(message.createdAt),
      ...(payload === undefined ? {} : { payload, payloadType: MASTRA_MESSAGE_TYPE }),
    },
    // Two bytes a character are a fair guess: it only says when a request is full.
    bytes: text.length * 2 + (payload?.byteLength ?? 0),
    textCut: text.length < whole.length,
    payloadLeftOut: payload === undefined,
  };
}

/**
 * A recalled message for Mastra's list: the message that was indexed, or one made of its text where
 * it came without (its payload was too large, or another client indexed it). `undefined` for what
 * such a list has no place for: a system's or a tool's text.
 */
export function toMastra(message: Message): MastraDBMessage | undefined {
  const place = { threadId: message.threadId, resourceId: message.resourceId };
  const stored = parsedPayload(message);
  // Where it is may have changed since: a thread can be given to another resource.
  if (stored !== undefined) return { ...stored, ...place };
  if (message.role !== 'user' && message.role !== 'assistant') return undefined;
  return textMessage(message.id, message.role, message.text, message.createTime, place);
}

/** A message that holds one text. */
export function textMessage(
  id: string,
  role: 'user' | 'assistant',
  text: string,
  createdAt: Date,
  place: { readonly threadId: string; readonly resourceId: string },
): MastraDBMessage {
  const content = { format: 2 as const, parts: [{ type: 'text' as const, text }], content: text };
  return { id, role, createdAt, ...place, content };
}

/** The last that meets a condition. */
export function lastOf<T>(items: readonly T[], meets: (item: T) => boolean): T | undefined {
  for (let index = items.length - 1; index >= 0; index -= 1) {
    const item = items[index];
    if (item !== undefined && meets(item)) return item;
  }
  return undefined;
}

/** The message as Mastra's MessageHistory writes it; `undefined` where it writes none. */
function asStored(message: MastraDBMessage): MastraDBMessage | undefined {
  const content: unknown = message.content;
  if (!isRecord(content)) {
    return typeof content === 'string' ? { ...message } : undefined;
  }
  const given: readonly unknown[] = Array.isArray(content['parts']) ? content['parts'] : [];
  const parts = given.filter((part) => isRecord(part) && !isPassing(part)).map(withoutMemory);
  if (given.length > 0 && parts.length === 0) return undefined;
  const whole = content['content'];
  const cleaned = typeof whole === 'string' ? { content: stripped(whole) } : {};
  const changed = { ...message.content, ...cleaned };
  return { ...message, content: Object.assign(changed, { parts }) };
}

/** A half tool call, or one that holds working memory. */
function isPassing(part: Record<string, unknown>): boolean {
  const call = part['toolInvocation'];
  if (part['type'] !== 'tool-invocation' || !isRecord(call)) return false;
  const { state, toolName } = call;
  return (
    state === 'partial-call' || (typeof toolName === 'string' && WORKING_MEMORY_TOOLS.has(toolName))
  );
}

function withoutMemory(part: unknown): unknown {
  if (!isRecord(part) || part['type'] !== 'text' || typeof part['text'] !== 'string') return part;
  const text = stripped(part['text']);
  return text === part['text'] ? part : { ...part, text };
}

function stripped(text: string): string {
  return text.includes('<working_memory>') ? text.replace(WORKING_MEMORY, '').trim() : text;
}

function textParts(message: MastraDBMessage): string[] {
  const content: unknown = message.content;
  const parts = isRecord(content) ? content['parts'] : undefined;
  if (!Array.isArray(parts)) return [];
  const texts: string[] = [];
  for (const part of parts as readonly unknown[]) {
    if (isRecord(part) && part['type'] === 'text' && typeof part['text'] === 'string') {
      if (part['text'].trim() !== '') texts.push(part['text']);
    }
  }
  return texts;
}

function stringContent(message: MastraDBMessage): string {
  const content: unknown = message.content;
  const whole = isRecord(content) ? content['content'] : content;
  return typeof whole === 'string' ? stripped(whole) : '';
}

function signalOf(message: MastraDBMessage): Record<string, unknown> | undefined {
  if (message.role !== 'signal') return undefined;
  const content: unknown = message.content;
  const metadata = isRecord(content) ? content['metadata'] : undefined;
  const signal = isRecord(metadata) ? metadata['signal'] : undefined;
  return isRecord(signal) ? signal : undefined;
}

function payloadOf(message: MastraDBMessage): Uint8Array | undefined {
  try {
    const payload = Buffer.from(JSON.stringify(message));
    return payload.byteLength > PAYLOAD_BYTES_MAX ? undefined : payload;
  } catch {
    // A tool's result that JSON cannot hold (a bigint, a circle); the caller is told.
    return undefined;
  }
}

function parsedPayload(message: Message): MastraDBMessage | undefined {
  if (message.payloadType !== MASTRA_MESSAGE_TYPE || message.payload.byteLength === 0) {
    return undefined;
  }
  const { buffer, byteOffset, byteLength } = message.payload;
  try {
    const value: unknown = JSON.parse(Buffer.from(buffer, byteOffset, byteLength).toString());
    if (!isStoredMessage(value) || value.id !== message.id) return undefined;
    return { ...value, createdAt: new Date(value.createdAt) };
  } catch {
    // Not what its type says: the text is there all the same.
    return undefined;
  }
}

type StoredMessage = Omit<MastraDBMessage, 'createdAt'> & { readonly createdAt: string };

function isStoredMessage(value: unknown): value is StoredMessage {
  if (!isRecord(value)) return false;
  const { id, role, content, createdAt } = value;
  return (
    typeof id === 'string' &&
    typeof role === 'string' &&
    (typeof content === 'string' || isRecord(content)) &&
    typeof createdAt === 'string' &&
    !Number.isNaN(Date.parse(createdAt))
  );
}

function validDate(value: unknown): Date | undefined {
  const date = value instanceof Date ? value : new Date(typeof value === 'string' ? value : NaN);
  const ms = date.getTime();
  return ms >= TIME_MS_LEAST && ms <= TIME_MS_MOST ? date : undefined;
}
