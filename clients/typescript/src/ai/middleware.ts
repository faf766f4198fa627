/**
 * Semantic recall as middleware of the AI SDK: `wrapLanguageModel({ model, middleware })`.
 *
 * Before a model call it recalls what matters to the last message of the person, and puts it beside
 * that message as data. After a call that came to its end it indexes that message and the model's
 * text. A turn of several steps (tools) calls the model once a step: the same is recalled each time
 * into the prompt as it came in, so nothing nests; ids derived from the content (see `prompt.ts`)
 * make that every message is stored once, and that none is recalled that the prompt holds already.
 * A step that failed is not indexed; what was said in steps before it is.
 *
 * A model call never fails because of memory. What fails is counted, logged in one line and given to
 * `onError`; the call goes on without it. What could not be indexed waits in this process, within
 * limits, and is sent with the next call (`retryQueueMessagesMax`).
 */
import { EXCLUDED_IDS_MAX } from '../adapters/limits.js';
import { ownedClient } from '../adapters/owned-client.js';
import * as check from '../arguments.js';
import { InvalidArgumentError, UnavailableError } from '../index.js';
import type { RecallOptions } from '../index.js';
import * as requests from '../requests.js';
import { heardStream, type Said, saidIn } from './answer.js';
import { FailureReport, type RecallMiddlewareStats } from './failures.js';
import { identityOf } from './identity.js';
import { type SaidMessage, TurnIndexing } from './indexing.js';
import type {
  GeneratedAnswer,
  ModelCall,
  RecallAndIndex,
  RecallMiddleware,
  RecallMiddlewareOptions,
  StreamedAnswer,
  TurnIdentity,
} from './options.js';
import {
  MessageIds,
  type PromptMessage,
  readPrompt,
  type SpokenMessage,
  withRecalled,
} from './prompt.js';

const KNOWN: Readonly<Record<keyof RecallMiddlewareOptions, true>> = {
  client: true,
  address: true,
  token: true,
  tls: true,
  resourceId: true,
  threadId: true,
  author: true,
  metadata: true,
  filter: true,
  topK: true,
  messageRange: true,
  threshold: true,
  scope: true,
  roles: true,
  maxTokens: true,
  ranking: true,
  timeZone: true,
  resolve: true,
  contextFormat: true,
  placement: true,
  readOnly: true,
  wait: true,
  timeoutMs: true,
  retryQueueMessagesMax: true,
  logger: true,
  onError: true,
};
const FORMATS = { default: 'default', mastra: 'mastra' } as const;
const PLACEMENTS = { beforeLastUser: 'beforeLastUser', system: 'system' } as const;
const WAITS = { searchable: 'searchable', durable: 'durable' } as const;
const TIMEOUT_MS = 3_000;
const QUEUE_MESSAGES = 1_000;
const QUEUE_MESSAGES_MOST = 100_000;

/**
 * Middleware that gives a model the memory of a sidecar.
 *
 * @throws InvalidArgumentError an option is unknown, or not what it may be.
 *
 * ```ts
 * const model = wrapLanguageModel({
 *   model: openai('gpt-5'),
 *   middleware: recallMiddleware({ address: '127.0.0.1:7650' }),
 * });
 * await generateText({
 *   model,
 *   prompt: 'What can Rex not eat?',
 *   providerOptions: { semanticrecall: { resourceId: 'user-42', threadId: 'thread-7' } },
 * });
 * ```
 */
export function recallMiddleware(options: RecallMiddlewareOptions = {}): RecallMiddleware {
  checkOptions(options);
  const { client, close } = ownedClient(options);
  const memory = new TurnMemory(client, options);
  // The AI SDK takes the functions out of the object: none may need `this`.
  return {
    specificationVersion: 'v3',
    transformParams: ({ params }) => memory.recalledInto(params),
    wrapGenerate: ({ doGenerate, params }) => memory.generated(doGenerate, params),
    wrapStream: ({ doStream, params }) => memory.streamed(doStream, params),
    get stats() {
      return memory.stats;
    },
    flush: () => memory.flush(),
    close,
  };
}

/** What no request holds; the rest is checked as one. */
function checkOptions(options: unknown): void {
  const given = check.options<RecallMiddlewareOptions>(options, KNOWN);
  for (const name of ['resourceId', 'threadId', 'author'] as const) {
    if (given[name] !== undefined) check.text(given[name], name);
  }
  for (const name of ['resolve', 'onError'] as const) {
    if (given[name] !== undefined) check.callback(given[name], name);
  }
  const { metadata, contextFormat, placement, readOnly, wait, logger } = given;
  const { retryQueueMessagesMax } = given;
  if (metadata !== undefined) check.json(metadata, 'metadata');
  if (contextFormat !== undefined) check.member(FORMATS, contextFormat, 'contextFormat');
  if (placement !== undefined) check.member(PLACEMENTS, placement, 'placement');
  if (readOnly !== undefined) check.flag(readOnly, 'readOnly');
  if (wait !== undefined) check.member(WAITS, wait, 'wait');
  const queueMax = check.whole(retryQueueMessagesMax ?? QUEUE_MESSAGES, 'retryQueueMessagesMax');
  if (queueMax > QUEUE_MESSAGES_MOST) {
    throw InvalidArgumentError.of(
      'retryQueueMessagesMax',
      `must be at most ${QUEUE_MESSAGES_MOST}`,
    );
  }
  if (logger !== undefined) check.callback(check.fields(logger, 'logger')['warn'], 'logger.warn');
}

/** What is kept of a call between its prompt and its answer. */
interface Turn {
  readonly identity: TurnIdentity;
  readonly ids: MessageIds;
  readonly prompt: readonly PromptMessage[];
  readonly spoken: readonly SpokenMessage[];
  readonly lastUser: SpokenMessage | undefined;
}

/** One middleware's work: recall before a call, index after it. */
class TurnMemory {
  private readonly client: RecallAndIndex;
  private readonly options: RecallMiddlewareOptions;
  private readonly report: FailureReport;
  private readonly indexing: TurnIndexing;
  private readonly looking: RecallOptions;
  /** By the parameters that the model is called with, and gone with them. */
  private readonly turns = new WeakMap<ModelCall, Turn>();

  constructor(client: RecallAndIndex, options: RecallMiddlewareOptions) {
    this.client = client;
    this.options = options;
    this.report = new FailureReport(options.logger, options.onError);
    const { topK, messageRange, threshold, scope, roles, maxTokens, ranking, timeZone } = options;
    const { contextFormat, filter } = options;
    this.looking = {
      ...{ topK, messageRange, threshold, scope, roles, maxTokens, ranking, timeZone },
      contextFormat,
    };
    // A mistake is said here, and not once a call.
    requests.recall('any', 'any', { ...this.looking, filter, threadId: 'any' });
    const { wait = 'durable', retryQueueMessagesMax = QUEUE_MESSAGES } = options;
    const timeoutMs = check.milliseconds(options.timeoutMs ?? TIMEOUT_MS, 'timeoutMs');
    const indexing = { wait, timeoutMs, retryQueueMessagesMax };
    this.indexing = new TurnIndexing(client, indexing, this.report);
  }

  get stats(): RecallMiddlewareStats {
    return { ...this.report.stats, pendingMessages: this.indexing.pendingMessages };
  }

  flush(): Promise<number> {
    return this.indexing.flush();
  }

  /** The parameters with memories in their prompt. */
  async recalledInto<P extends ModelCall>(params: P): Promise<P> {
    try {
      const turn = await this.read(params);
      const recalled = await this.recall(turn, params.abortSignal);
      const { placement = 'beforeLastUser' } = this.options;
      const prompt = recalled === '' ? turn.prompt : withRecalled(turn.prompt, recalled, placement);
      const transformed = { ...params, prompt };
      this.turns.set(transformed, turn);
      return transformed;
    } catch (error) {
      // A prompt that is not as the SDK's types say.
      this.report.failed('recall', error);
      return params;
    }
  }

  async generated<R extends GeneratedAnswer>(
    doGenerate: () => PromiseLike<R>,
    params: ModelCall,
  ): Promise<R> {
    const answer = await this.counted(doGenerate);
    await this.index(params, () => saidIn(answer.content, answer.finishReason));
    return answer;
  }

  async streamed<R extends StreamedAnswer>(
    doStream: () => PromiseLike<R>,
    params: ModelCall,
  ): Promise<R> {
    const answer = await this.counted(doStream);
    return {
      ...answer,
      stream: heardStream(answer.stream, (said) => this.index(params, () => said)),
    };
  }

  private async counted<R>(call: () => PromiseLike<R>): Promise<R> {
    try {
      return await call();
    } catch (error) {
      this.report.count('failedCalls');
      throw error;
    }
  }

  private async read(params: ModelCall): Promise<Turn> {
    let identity: TurnIdentity = {};
    try {
      identity = await identityOf(params, this.options);
    } catch (error) {
      this.report.failed('identity', error);
    }
    const ids = new MessageIds(identity.threadId ?? '');
    const { messages, spoken, lastUser } = readPrompt(params.prompt, ids);
    return { identity, ids, prompt: messages, spoken, lastUser };
  }

  /** What matters to the last user message, as text; "" where there is nothing to say. */
  private async recall(turn: Turn, signal: AbortSignal | undefined): Promise<string> {
    const { resourceId, threadId, filter } = turn.identity;
    if (resourceId === undefined) {
      this.report.lacking('callsWithoutResource', 'resourceId', 'it has no memory');
      return '';
    }
    if (turn.lastUser === undefined) return '';
    const timeoutMs = await this.indexing.sendWaiting(signal);
    this.report.count('recalls');
    try {
      const result = await this.client.recall(resourceId, turn.lastUser.text, {
        ...this.looking,
        ...{ threadId, filter, signal, timeoutMs },
        excludeMessageIds: turn.spoken.slice(-EXCLUDED_IDS_MAX).map(({ id }) => id),
      });
      if (result.degraded !== undefined) throw noAnswer(result.degraded);
      if (result.messages.length === 0) this.report.count('recallsEmpty');
      return result.contextText;
    } catch (error) {
      // The model call ends with the same signal, and says so itself.
      if (signal?.aborted !== true) {
        this.report.count('recallsFailed');
        this.report.failed('recall', error);
      }
      return '';
    }
  }

  /** Stores what was said in a call. Never throws. */
  private async index(params: ModelCall, listen: () => Said): Promise<void> {
    try {
      const said = listen();
      if (!said.finished || params.abortSignal?.aborted === true) {
        this.report.count('failedCalls');
      } else if (this.options.readOnly !== true) {
        await this.indexTurn(this.turns.get(params) ?? (await this.read(params)), said);
      }
    } catch (error) {
      // A prompt or an answer that is not as the SDK's types say.
      this.report.failed('index', error);
    }
  }

  private async indexTurn(turn: Turn, said: Said): Promise<void> {
    const { resourceId, threadId, metadata } = turn.identity;
    if (resourceId === undefined) return;
    if (threadId === undefined) {
      this.report.lacking('callsWithoutThread', 'threadId', 'it is not indexed');
      return;
    }
    const messages = messagesOf(turn, said.text);
    if (messages.length === 0) return;
    this.report.count('textsCut', Number(said.cut) + Number(turn.lastUser?.cut === true));
    await this.indexing.store(resourceId, threadId, messages, metadata);
  }
}

/** What a client that fails open kept to itself. */
function noAnswer(reason: string): UnavailableError {
  return new UnavailableError('the sidecar gave no answer', { reason, retryable: true });
}

/** What a call adds to the thread: the person's message, and what the model said to it. */
function messagesOf({ identity, ids, lastUser }: Turn, answer: string): SaidMessage[] {
  const messages: SaidMessage[] = [];
  if (lastUser !== undefined) {
    const { id, text } = lastUser;
    messages.push({ id, role: 'user', text, author: identity.author });
  }
  if (answer !== '') {
    messages.push({ id: ids.next('assistant', answer), role: 'assistant', text: answer });
  }
  return messages;
}
