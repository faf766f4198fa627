/** Recalls on one open stream, each matched with its answer; and Index requests on another. */
import type { DescMessage, MessageShape } from '@bufbuild/protobuf';
import { errorOfDetail, tooLate } from './errors.js';
import { OneATurn } from './one-a-turn.js';
import type { Duplex, Limits } from './transport.js';
import * as v1 from './v1/index.js';

/** So many recalls of one stream the server works on at once; more would wait behind these. */
const WAITING_MAX = 64;
/** What `RecallRequest.timeout_ms` may be. */
const TIMEOUT_MS_MAX = 600_000;

/** A stream of recalls, as the transport has it. */
export type RecallDuplex = Duplex<typeof v1.RecallRequestSchema, typeof v1.RecallResponseSchema>;

/** A stream of Index requests, as the transport has it. */
export type IndexDuplex = Duplex<typeof v1.IndexRequestSchema, typeof v1.IndexResponseSchema>;

type Answer = Pick<v1.IndexResponse | v1.RecallResponse, 'error'>;

/** What a sidecar may take to end a stream that nobody waits for. */
const END_MS = 1_000;

/** What a recall gets whose stream ended without an answer to it; it is sent another way then. */
export class StreamEnded extends Error {}

interface Waiting<A> {
  answer(answer: A): void;
  fail(error: Error): void;
  /** Its caller has left. */
  gone: boolean;
  /** Its answer is here: in time, however many are handed out before it. */
  arrived: boolean;
  /** When its caller leaves at the latest, as `performance.now()` has it. */
  readonly untilMs: number;
}

/** One stream that was opened, until it ends. */
class OpenStream<I extends DescMessage, O extends DescMessage> {
  ended = false;
  readonly #duplex: Duplex<I, O>;
  // Also those whose callers have gone: the server is at work on them all the same.
  readonly #waiting = new Map<string, Waiting<MessageShape<O>>>();
  readonly #answered = new OneATurn();
  #number = 0;

  /**
   * @param idOf - which request an answer is for; `undefined`: the oldest that waits.
   * @param empty - called whenever nobody waits any more.
   */
  constructor(
    duplex: Duplex<I, O>,
    idOf: (answer: MessageShape<O>) => string | undefined,
    empty: () => void,
  ) {
    this.#duplex = duplex;
    duplex.on('data', (answer: MessageShape<O>) => {
      const id = idOf(answer) ?? this.#oldest();
      const waiting = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (waiting !== undefined) {
        waiting.arrived = true;
        this.#answered.take(() => {
          waiting.answer(answer);
        });
      }
      if (this.#waiting.size === 0) empty();
    });
    duplex.once('end', () => {
      this.#end();
    });
    // Also later ones: an error that nobody listens to would end the process.
    duplex.on('error', () => {
      this.#end();
    });
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Sends what is made of the request's id. */
  send(requestOf: (id: string) => MessageShape<I>, waiting: Waiting<MessageShape<O>>): void {
    const id = String(this.#number++);
    this.#waiting.set(id, waiting);
    this.#duplex.write(requestOf(id));
  }

  /** Ends it at once, with what is under way. */
  cancel(): void {
    this.#end();
    this.#duplex.cancel();
  }

  /** No more requests; done when those that somebody waits for have been answered. */
  async finish(): Promise<void> {
    if (this.ended) return;
    const waiting = [...this.#waiting.values()];
    const ended = new Promise<void>((resolve) => {
      this.#duplex.once('status', () => {
        resolve();
      });
    });
    if (waiting.length > 0 && waiting.every(({ gone }) => gone)) this.#duplex.cancel();
    else this.#duplex.end();
    // One that does not answer any more would never say that it has ended.
    const endMs =
      Math.max(0, ...waiting.map(({ untilMs }) => untilMs - performance.now())) + END_MS;
    const timer = setTimeout(() => {
      this.#duplex.cancel();
    }, endMs);
    await ended;
    clearTimeout(timer);
  }

  #oldest(): string {
    const [oldest = ''] = this.#waiting.keys();
    return oldest;
  }

  #end(): void {
    this.ended = true;
    for (const waiting of this.#waiting.values()) waiting.fail(new StreamEnded());
    this.#waiting.clear();
  }
}

/**
 * Calls over one stream, opened by the first of them and again by the first after it ended.
 *
 * grpc-js lets an open stream keep the process alive: so one that nobody waits for is ended after
 * `idleMs`.
 */
abstract class Flow<I extends DescMessage, O extends DescMessage> {
  readonly #openDuplex: () => Duplex<I, O>;
  readonly #address: string;
  readonly #idleMs: number;
  #stream: OpenStream<I, O> | undefined;
  #idle: NodeJS.Timeout | undefined;

  /** @param idleMs - Infinity: it stays open until it is closed. */
  constructor(openDuplex: () => Duplex<I, O>, address: string, idleMs: number) {
    this.#openDuplex = openDuplex;
    this.#address = address;
    this.#idleMs = idleMs;
  }

  /** Which request an answer is for; `undefined`: the oldest that waits. */
  protected abstract idOf(answer: MessageShape<O>): string | undefined;

  /** Requests that the server is at work on. */
  protected get waiting(): number {
    return this.#stream?.ended === false ? this.#stream.waiting : 0;
  }

  /**
   * Sends a request and waits for its answer.
   *
   * @param left - what is done where its caller leaves before that.
   * @throws StreamEnded where the stream ended before that.
   */
  protected async ask(
    requestOf: (id: string) => MessageShape<I>,
    { timeoutMs, signal }: Limits,
    left: (stream: OpenStream<I, O>) => void,
  ): Promise<MessageShape<O>> {
    signal?.throwIfAborted();
    const stream = this.#current();
    let timer: NodeJS.Timeout | undefined;
    let abort: (() => void) | undefined;
    let waiting: Waiting<MessageShape<O>> | undefined;
    try {
      return await new Promise<MessageShape<O>>((resolve, reject) => {
        const leave = (error: Error): void => {
          reject(error);
          left(stream);
        };
        timer = setTimeout(() => {
          if (waiting?.arrived !== true) leave(tooLate(this.#address));
        }, timeoutMs);
        if (signal !== undefined) {
          abort = () => {
            leave(new Error('aborted'));
          };
          signal.addEventListener('abort', abort, { once: true });
        }
        const untilMs = performance.now() + timeoutMs;
        waiting = { answer: resolve, fail: reject, gone: false, arrived: false, untilMs };
        stream.send(requestOf, waiting);
      });
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    } finally {
      if (waiting !== undefined) waiting.gone = true;
      clearTimeout(timer);
      if (abort !== undefined) signal?.removeEventListener('abort', abort);
    }
  }

  /** Ends the stream; done when those under way have been answered. */
  async close(): Promise<void> {
    clearTimeout(this.#idle);
    // A timer that was cleared never runs again, refreshed or not: the next stream has its own.
    this.#idle = undefined;
    const stream = this.#stream;
    this.#stream = undefined;
    await stream?.finish();
  }

  #current(): OpenStream<I, O> {
    if (this.#stream === undefined || this.#stream.ended) {
      const idOf = (answer: MessageShape<O>): string | undefined => this.idOf(answer);
      const opened = new OpenStream<I, O>(this.#openDuplex(), idOf, () => {
        if (this.#stream === opened) this.#endSoon();
      });
      this.#stream = opened;
    }
    return this.#stream;
  }

  #endSoon(): void {
    if (this.#idleMs === Infinity) return;
    if (this.#idle !== undefined) {
      this.#idle.refresh();
      return;
    }
    // While the stream is open the process lives, and so the timer need not see to that.
    this.#idle = setTimeout(() => {
      if (this.#stream?.waiting === 0) void this.close();
    }, this.#idleMs).unref();
  }
}

/** Recalls over one stream: many at once, each answered as it is ready. */
export class RecallFlow extends Flow<
  typeof v1.RecallRequestSchema,
  typeof v1.RecallResponseSchema
> {
  /** Whether a recall would be worked on at once. One with a read token may hold others up. */
  takes(request: v1.RecallRequest, { timeoutMs }: Limits): boolean {
    return this.waiting < WAITING_MAX && request.readToken === '' && timeoutMs <= TIMEOUT_MS_MAX;
  }

  /**
   * Sends a recall and waits for its answer.
   *
   * @throws StreamEnded where the stream ended before that.
   */
  async recall(request: v1.RecallRequest, limits: Limits): Promise<v1.RecallResponse> {
    request.timeoutMs = Math.max(1, Math.floor(limits.timeoutMs));
    const requestOf = (id: string): v1.RecallRequest => Object.assign(request, { requestId: id });
    return answered(await this.ask(requestOf, limits, () => undefined));
  }

  protected override idOf(answer: v1.RecallResponse): string {
    return answer.requestId;
  }
}

/** Index requests over one stream: one at a time, for the server answers them in order. */
export class IndexFlow extends Flow<typeof v1.IndexRequestSchema, typeof v1.IndexResponseSchema> {
  /**
   * Whether a request would be worked on at once, and be answered in moments. Where it is not, and
   * its caller has more time than the server gives a request of a stream, it is sent once more.
   */
  takes(request: v1.IndexRequest): boolean {
    return request.wait === v1.Wait.DURABLE && this.waiting === 0;
  }

  /**
   * Sends a request and waits for its answer. Who leaves before that ends the stream, as they would
   * end a call of their own.
   *
   * @throws StreamEnded where the stream ended before that.
   */
  async index(request: v1.IndexRequest, limits: Limits): Promise<v1.IndexResponse> {
    return answered(
      await this.ask(
        () => request,
        limits,
        (stream) => {
          stream.cancel();
        },
      ),
    );
  }

  protected override idOf(): undefined {
    return undefined;
  }
}

/** The answer, or the error that it stands for. */
function answered<A extends Answer>(answer: A): A {
  if (answer.error !== undefined) throw errorOfDetail(answer.error);
  return answer;
}
