/** How calls are made: deadlines, waiting for a sidecar that starts, retries. */
import { defaultMaxListeners, getMaxListeners, setMaxListeners } from 'node:events';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import type {
  DescMessage,
  DescMethod,
  DescMethodBiDiStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageShape,
} from '@bufbuild/protobuf';
import type * as grpc from '@grpc/grpc-js';
import * as check from './arguments.js';
import type { Place, Settings } from './connection.js';
import {
  ResourceExhaustedError,
  SemanticRecallError,
  UnavailableError,
  noConnection,
  tooLate,
  unreachable,
} from './errors.js';
import { IndexFlow, RecallFlow, StreamEnded } from './flow.js';
import { Transport } from './transport.js';
import type { Limits } from './transport.js';
import { Turns } from './turns.js';
import * as v1 from './v1/index.js';
import type { CallOptions } from './values.js';

/** What moves many messages, a stream say, may take an hour. */
const LONG_MS = 3_600_000;
/** For so long after one call has waited in vain, the next ones do not wait. */
const AWAY_MS = 10_000;
/** How long it may take to find out whether anybody listens at all. */
const PROBE_MS = 500;
const ATTEMPTS_MAX = 4;
const BACKOFF_FIRST_MS = 100;
const BACKOFF_MOST_MS = 1_000;
/**
 * Recalls that a client has under way: half of what a server takes by default. It would refuse more
 * than it takes (QUEUE_FULL), although they would be done in moments.
 */
const RECALLS_MAX = 128;
/** The shared stream of recalls ends when nobody has asked for so long: see `RecallFlow`. */
const IDLE_MS = 200;

const { RecallService, AdminService, VectorService } = v1;

/** Calls that only read: sent again when the sidecar is away, but not when it is full. */
const READS: ReadonlySet<DescMethod> = new Set<DescMethod>([
  RecallService.method.recall,
  RecallService.method.listMessages,
  RecallService.method.getMessages,
  RecallService.method.listThreads,
  RecallService.method.embed,
  AdminService.method.getStats,
  AdminService.method.listSnapshots,
  VectorService.method.listCollections,
  VectorService.method.describeCollection,
  VectorService.method.queryVectors,
]);

/** Calls that write and may be sent twice: also when it is full, for giving up loses memory. */
const REPEATABLE_WRITES: ReadonlySet<DescMethod> = new Set<DescMethod>([
  RecallService.method.index,
  RecallService.method.forget,
  VectorService.method.createCollection,
  VectorService.method.deleteCollection,
  VectorService.method.upsertVectors,
  VectorService.method.updateVectors,
  VectorService.method.deleteVectors,
]);

/** While more than half of the calls fail, retries stop: they would only add to the load. */
class RetryBudget {
  static readonly #MOST = 10;
  #tokens = RetryBudget.#MOST;

  get allows(): boolean {
    return this.#tokens > RetryBudget.#MOST / 2;
  }

  succeeded(): void {
    this.#tokens = Math.min(RetryBudget.#MOST, this.#tokens + 0.5);
  }

  failed(): void {
    this.#tokens = Math.max(0, this.#tokens - 1);
  }
}

/** When a call is over. */
class Deadline {
  readonly #at: number;
  readonly signal: AbortSignal | undefined;

  constructor(timeoutMs: number, signal: AbortSignal | undefined) {
    this.#at = performance.now() + timeoutMs;
    this.signal = signal;
  }

  /** What is left, `mostMs` at most. */
  limits(mostMs = Infinity): Limits {
    const leftMs = Math.max(0, this.#at - performance.now());
    return { timeoutMs: Math.min(leftMs, mostMs), signal: this.signal };
  }
}

/** The connection of a client, and the ways to call. */
export class Calls {
  readonly settings: Settings;
  readonly #transport: Transport;
  readonly #shared: RecallFlow;
  readonly #writes: IndexFlow;
  readonly #turns = new Turns(RECALLS_MAX);
  readonly #budget = new RetryBudget();
  #awaySince = -Infinity;
  #probe: Promise<boolean> | undefined;

  constructor(settings: Settings) {
    this.settings = settings;
    this.#transport = new Transport(settings);
    this.#shared = this.flow(IDLE_MS);
    const open = () =>
      this.#transport.duplex(RecallService.method.indexStream, { timeoutMs: Infinity });
    this.#writes = new IndexFlow(open, settings.address, IDLE_MS);
  }

  /** A stream of recalls of its own. */
  flow(idleMs = Infinity): RecallFlow {
    const open = () =>
      this.#transport.duplex(RecallService.method.recallStream, { timeoutMs: Infinity });
    return new RecallFlow(open, this.settings.address, idleMs);
  }

  /** A recall: on an open stream where that has room, else as a call of its own. */
  async recall(
    request: v1.RecallRequest,
    options: CallOptions | undefined,
    flow = this.#shared,
  ): Promise<v1.RecallResponse> {
    const deadline = this.#deadline(options, this.settings.timeoutMs);
    const late = () => tooLate(this.settings.address);
    await this.#turns.take(deadline.limits(), late);
    try {
      return await this.#recall(request, deadline, flow);
    } finally {
      this.#turns.give();
    }
  }

  async #recall(
    request: v1.RecallRequest,
    deadline: Deadline,
    flow: RecallFlow,
  ): Promise<v1.RecallResponse> {
    // Asked here too: nearly always there is a connection, and nothing to wait for.
    if (!this.#transport.isReady) await this.#connected(deadline);
    if (flow.takes(request, deadline.limits())) {
      try {
        return await flow.recall(request, deadline.limits());
      } catch (error) {
        if (!(error instanceof StreamEnded || error instanceof UnavailableError)) throw error;
      }
    }
    return this.#repeatedly(RecallService.method.recall, request, deadline);
  }

  /** An Index call: on an open stream where that would answer at once, else a call of its own. */
  async index(
    request: v1.IndexRequest,
    options: CallOptions | undefined,
  ): Promise<v1.IndexResponse> {
    const deadline = this.#deadline(options, this.settings.timeoutMs);
    await this.#connected(deadline);
    if (this.#writes.takes(request)) {
      try {
        return await this.#writes.index(request, deadline.limits());
      } catch (error) {
        const isPassing = error instanceof SemanticRecallError && error.retryable;
        const isOver = deadline.limits().timeoutMs === 0;
        if (isOver || !(error instanceof StreamEnded || isPassing)) throw error;
      }
    }
    return this.#repeatedly(RecallService.method.index, request, deadline);
  }

  /** One request, one answer; sent again after an outage where that does no harm. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions | undefined,
  ): Promise<MessageShape<O>> {
    const deadline = this.#deadline(options, this.settings.timeoutMs);
    return this.#repeatedly(method, request, deadline);
  }

  /** One request, one answer, of a call that works through a whole store; its default: an hour. */
  async long<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions | undefined,
  ): Promise<MessageShape<O>> {
    return this.#repeatedly(method, request, this.#deadline(options, LONG_MS));
  }

  /** One request, many answers; never sent again. */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    options: CallOptions | undefined,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const deadline = this.#deadline(options, LONG_MS);
    await this.#connected(deadline);
    yield* this.#transport.serverStream(method, request, deadline.limits());
  }

  /**
   * Many requests, many answers; never sent again.
   *
   * @param requests - read as the sidecar takes them. What it throws is thrown here.
   */
  async *duplex<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    requests: AsyncIterable<MessageShape<I>>,
    options: CallOptions | undefined,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const deadline = this.#deadline(options, LONG_MS);
    await this.#connected(deadline);
    const call = this.#transport.duplex(method, deadline.limits());
    const sender = new Sender(call, requests[Symbol.asyncIterator]());
    try {
      yield* this.#transport.answers<MessageShape<O>>(call, deadline.signal);
    } catch (error) {
      if (sender.failure !== undefined) throw sender.failure.error;
      throw error;
    } finally {
      sender.stop();
    }
  }

  /** Whether the connection was given up. */
  get isClosed(): boolean {
    return this.#transport.isClosed;
  }

  /** Gives the connection up; calls under way fail. */
  close(): void {
    this.#transport.close();
  }

  #deadline(options: CallOptions | undefined, defaultMs: number): Deadline {
    const given = options?.timeoutMs;
    const timeoutMs = given === undefined ? defaultMs : check.milliseconds(given, 'timeoutMs');
    const signal = options?.signal;
    if (signal !== undefined) {
      check.abortSignal(signal, 'signal').throwIfAborted();
      // One signal may end many calls at once; each of them takes its listener away again.
      if (getMaxListeners(signal) === defaultMaxListeners) setMaxListeners(0, signal);
    }
    return new Deadline(timeoutMs, signal);
  }

  /** Waits for a sidecar that starts or restarts; not again for one that was away just now. */
  async #connected(deadline: Deadline): Promise<void> {
    if (this.#transport.isReady) return;
    const patienceMs = this.#patienceMs();
    if (patienceMs === 0 && !(await this.#listens())) throw unreachable(this.settings.address);
    const limits = deadline.limits(patienceMs === 0 ? PROBE_MS : patienceMs);
    if (await this.#transport.ready(limits)) return;
    this.#awaySince = performance.now();
    const { address } = this.settings;
    throw (await this.#listens()) ? noConnection(address) : unreachable(address);
  }

  async #repeatedly<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    deadline: Deadline,
  ): Promise<MessageShape<O>> {
    const patience = new Deadline(this.#patienceMs(), undefined);
    for (let attempt = 1; ;) {
      await this.#connected(deadline);
      try {
        const answer = await this.#transport.unary(method, request, deadline.limits());
        this.#budget.succeeded();
        this.#awaySince = -Infinity;
        return answer;
      } catch (error) {
        if (!mayRepeat(method, error)) throw error;
        const restarts = isRestarting(error);
        const pauseMs = restarts ? restartPauseMs(error) : this.#pauseMs(error, attempt++);
        if (restarts && pauseMs >= patience.limits().timeoutMs) {
          this.#awaySince = performance.now();
          throw error;
        }
        if (pauseMs >= deadline.limits().timeoutMs) throw error;
        await pause(pauseMs, deadline.signal);
      }
    }
  }

  /** How long a call waits for a sidecar that starts or restarts. */
  #patienceMs(): number {
    const isAway = performance.now() - this.#awaySince < AWAY_MS;
    return isAway ? 0 : this.settings.connectTimeoutMs;
  }

  /** How long to wait before the call is sent again; Infinity where it is not. */
  #pauseMs(error: SemanticRecallError, attempt: number): number {
    this.#budget.failed();
    if (attempt >= ATTEMPTS_MAX || !this.#budget.allows) return Infinity;
    const backoffMs = Math.min(BACKOFF_MOST_MS, BACKOFF_FIRST_MS * 2 ** (attempt - 1));
    // Callers that failed together do not come back together.
    return Math.max(error.retryAfterMs, backoffMs * (0.8 + 0.4 * Math.random()));
  }

  /** Whether anybody takes connections at the address; many callers are told by one look. */
  async #listens(): Promise<boolean> {
    this.#probe ??= listens(this.settings.place).finally(() => {
      this.#probe = undefined;
    });
    return this.#probe;
  }
}

function mayRepeat(method: DescMethod, error: unknown): error is SemanticRecallError {
  if (!(error instanceof SemanticRecallError && error.retryable)) return false;
  const isWrite = REPEATABLE_WRITES.has(method);
  if (error instanceof UnavailableError) return isWrite || READS.has(method);
  return error instanceof ResourceExhaustedError && isWrite;
}

/** Whether the sidecar is there, but not ready yet, or no more: that is waited for, not counted. */
function isRestarting(error: SemanticRecallError): boolean {
  return error.reason === 'STARTING' || error.reason === 'DRAINING';
}

function restartPauseMs(error: SemanticRecallError): number {
  return Math.min(BACKOFF_MOST_MS, Math.max(BACKOFF_FIRST_MS, error.retryAfterMs));
}

async function listens(place: Place): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(place);
    const end = (found: boolean) => (): void => {
      socket.destroy();
      resolve(found);
    };
    socket.setTimeout(PROBE_MS, end(false));
    socket.once('connect', end(true));
    socket.once('error', end(false));
  });
}

/** Sends requests one after the other, each when the one before it has left. */
class Sender<T> {
  /** What the requests threw, if they did. */
  failure: { readonly error: unknown } | undefined;
  readonly #call: grpc.ClientWritableStream<T>;
  readonly #requests: AsyncIterator<T>;
  #stopped = false;
  #wake: (() => void) | undefined;

  constructor(call: grpc.ClientWritableStream<T>, requests: AsyncIterator<T>) {
    this.#call = call;
    this.#requests = requests;
    void this.#send();
  }

  /** The stream has ended. Does not wait for whoever makes the requests: that may take for ever. */
  stop(): void {
    if (this.#stopped) return;
    this.#stopped = true;
    this.#wake?.();
    // What it does on its way out is nobody's business any more.
    this.#requests.return?.().catch(() => undefined);
  }

  async #send(): Promise<void> {
    try {
      for (;;) {
        const next = await this.#requests.next();
        if (this.#stopped) return;
        if (next.done === true) break;
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
          this.#call.write(next.value, resolve);
        });
      }
      this.#call.end();
    } catch (error) {
      this.failure = { error };
      this.#call.cancel();
    }
  }
}

/** A stream with each of its items turned into something else. */
export async function* map<A, B>(
  items: AsyncIterable<A>,
  turn: (item: A) => B,
): AsyncGenerator<B, void, undefined> {
  for await (const item of items) yield turn(item);
}

/** A stream without what this version of the contract does not know. */
export async function* compact<T>(
  items: AsyncIterable<T | undefined>,
): AsyncGenerator<T, void, undefined> {
  for await (const item of items) if (item !== undefined) yield item;
}

async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  try {
    await sleep(ms, undefined, signal === undefined ? {} : { signal });
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}
