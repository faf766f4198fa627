/**
 * What the middleware reads of a prompt, and where it puts what was recalled.
 *
 * The shapes here are the part that language models of the specifications v2, v3 and v4 (AI SDK 5,
 * 6 and 7) have in common, so that one middleware fits all of them and none is imported.
 *
 * A prompt of the AI SDK carries no message ids. The id of a message is therefore derived from what
 * it is: `ai-` and a SHA-256 of thread, role and text, and how many equal messages of that role came
 * before it in the prompt. The same id is used to index a
 * message and, in later turns, to keep it from being recalled into a prompt that holds it already.
 * So history may be trimmed at its beginning without a message changing its id; only where equal
 * messages are trimmed away ("yes", "yes") does a later one take the id of an earlier one, and is
 * then not stored a second time. An application with ids of its own puts them on its messages:
 * `providerOptions: { semanticrecall: { messageId: '...' } }`.
 */
import { createHash } from 'node:crypto';
import { isStorableId } from '../adapters/ids.js';
import { isRecord } from '../adapters/json.js';
import { cutToBytes, TEXT_BYTES_MAX } from '../adapters/text.js';

/** Where the middleware reads its options of one call, and how it marks what it has put in. */
export const PROVIDER_KEY = 'semanticrecall';

/** Options by provider, as messages, parts and calls carry them. */
export type ProviderOptions = Readonly<Record<string, unknown>>;

/** One part of a message: text, a file, a tool call and so on. */
export interface PromptPart {
  /** "text" for what is read here; other parts pass through. */
  readonly type: string;
  /** The text of a text part. */
  readonly text?: unknown;
  /** Options by provider. */
  readonly providerOptions?: ProviderOptions | undefined;
}

/** One message of a prompt. */
export type PromptMessage = (
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user' | 'assistant' | 'tool'; readonly content: readonly PromptPart[] }
) & { readonly providerOptions?: ProviderOptions | undefined };

/** Where recalled text goes: before the last user message's own text, or as a system message. */
export type Placement = 'beforeLastUser' | 'system';

/** Some text, and whether it is all of it. */
export interface JoinedText {
  /** "" where nothing was said. */
  readonly text: string;
  /** It was longer than the server takes: the rest is left out. */
  readonly cut: boolean;
}

/** A message of the person or of the model that has text. */
export interface SpokenMessage extends JoinedText {
  /** See the top of this module. */
  readonly id: string;
  /** Who said it. */
  readonly role: 'user' | 'assistant';
}

/** What the middleware needs to know of a prompt. */
interface ReadPrompt<M extends PromptMessage> {
  /** The prompt without anything that was recalled into it before. */
  readonly messages: M[];
  /** What the person and the model said, in order. */
  readonly spoken: readonly SpokenMessage[];
  /** The last message of the person; absent where that one has no text (an image, say). */
  readonly lastUser: SpokenMessage | undefined;
}

const MARK: ProviderOptions = { [PROVIDER_KEY]: { recalled: true } };

/** The object under our name in options by provider; empty if there is none. */
export function ownOptions(options: ProviderOptions | undefined): ProviderOptions {
  const own = options?.[PROVIDER_KEY];
  return isRecord(own) ? own : {};
}

/** Text parts as one text, one a line, cut to what the server takes. */
export function joinedText(texts: readonly string[]): JoinedText {
  const whole = texts.filter((each) => each.trim() !== '').join('\n');
  const text = cutToBytes(whole, TEXT_BYTES_MAX);
  return { text, cut: text.length < whole.length };
}

/** Gives every message of one prompt, and then the model's answer, its id. */
export class MessageIds {
  private readonly threadId: string;
  private readonly seen = new Map<string, number>();

  constructor(threadId: string) {
    this.threadId = threadId;
  }

  /** The id of the next message that says `text`. */
  next(role: 'user' | 'assistant', text: string): string {
    const whose = JSON.stringify([this.threadId, role]);
    const hash = createHash('sha256').update(whose).update(text.trim()).digest('base64url');
    const earlier = this.seen.get(hash) ?? 0;
    this.seen.set(hash, earlier + 1);
    return earlier === 0 ? `ai-${hash}` : `ai-${hash}-${earlier.toString()}`;
  }
}

/** Reads a prompt; every message with text takes an id from `ids`. */
export function readPrompt<M extends PromptMessage>(
  prompt: readonly M[],
  ids: MessageIds,
): ReadPrompt<M> {
  const messages = prompt.flatMap(withoutRecalled);
  const spoken: SpokenMessage[] = [];
  let lastUser: SpokenMessage | undefined;
  for (const message of messages) {
    if (message.role === 'user') lastUser = undefined;
    if (message.role !== 'user' && message.role !== 'assistant') continue;
    const { text, cut } = joinedText(message.content.flatMap(textOfPart));
    if (text === '') continue;
    const { messageId } = ownOptions(message.providerOptions);
    const id = isStorableId(messageId) ? messageId : ids.next(message.role, text);
    const said = { id, role: message.role, text, cut };
    spoken.push(said);
    if (message.role === 'user') lastUser = said;
  }
  return { messages, spoken, lastUser };
}

/** The prompt with recalled text in it, marked so that it is told from what was said. */
export function withRecalled(
  prompt: readonly PromptMessage[],
  recalled: string,
  placement: Placement,
): PromptMessage[] {
  if (placement === 'system') {
    const first = prompt.findIndex((message) => message.role !== 'system');
    const at = first === -1 ? prompt.length : first;
    const message: PromptMessage = { role: 'system', content: recalled, providerOptions: MARK };
    return [...prompt.slice(0, at), message, ...prompt.slice(at)];
  }
  const at = prompt.map((message) => message.role).lastIndexOf('user');
  const part: PromptPart = { type: 'text', text: `${recalled}\n`, providerOptions: MARK };
  return prompt.map((message, index) =>
    index === at && message.role === 'user'
      ? { ...message, content: [part, ...message.content] }
      : message,
  );
}

/** The text of a part; nothing for parts of other kinds. */
export function textOfPart(part: PromptPart): string[] {
  return part.type === 'text' && typeof part.text === 'string' ? [part.text] : [];
}

/** The message without recalled parts; nothing where it was recalled as a whole. */
function withoutRecalled<M extends PromptMessage>(message: M): M[] {
  if (isRecalled(message)) return [];
  if (message.role === 'system' || !message.content.some(isRecalled)) return [message];
  return [{ ...message, content: message.content.filter((part) => !isRecalled(part)) }];
}

function isRecalled(marked: { readonly providerOptions?: ProviderOptions | undefined }): boolean {
  return ownOptions(marked.providerOptions)['recalled'] === true;
}
