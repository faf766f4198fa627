/** Recalls on one open stream, each matched with its answer. */
import { errorOfDetail, tooLate } from './errors.js';
import type { Duplex, Limits } from './transport.js';
import type * as v1 from './v1/index.js';

/** So many recalls of one stream the server works on at once; more would wait behind these. */
const WAITING_MAX = 64;
/** What `RecallRequest.timeout_ms` may be. */
const TIMEOUT_MS_MAX = 600_000;

/** A stream of recalls, as the transport has it. */
export type RecallDuplex = Duplex<typeof v1.RecallRequestSchema, typeof v1.RecallResponseSchema>;

/** What a sidecar may take to end a stream that nobody waits for. */
const END_MS = 1_000;

/** What a recall gets whose stream ended without an answer to it; it is sent another way then. */
export class StreamEnded extends Error {}

interface Waiting {
  answer(answer: v1.RecallResponse): void;
  fail(error: Error): void;
  /** Its caller has left. */
  gone: boolean;
  /** When its caller leaves at the latest, as `performance.now()` has it. */
  readonly untilMs: number;
}

/** One stream that was opened, until it ends. */
class OpenStream {
  ended = false;
  readonly #duplex: RecallDuplex;
  // Also those whose callers have gone: the server is at work on them all the same.
  readonly #waiting = new Map<string, Waiting>();
  #number = 0;

  /** @param empty - called whenever nobody waits any more. */
  constructor(duplex: RecallDuplex, empty: () => void) {
    this.#duplex = duplex;
    duplex.on('data', (answer: v1.RecallResponse) => {
      const waiting = this.#waiting.get(answer.requestId);
      this.#waiting.delete(answer.requestId);
      waiting?.answer(answer);
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

  send(request: v1.RecallRequest, waiting: Waiting): void {
    request.requestId = String(this.#number++);
    this.#waiting.set(request.requestId, waiting);
    this.#duplex.write(request);
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

  #end(): void {
    this.ended = true;
    for (const waiting of this.#waiting.values()) waiting.fail(new StreamEnded());
    this.#waiting.clear();
  }
}

/**
 * Recalls over one stream, opened by the first of them and again by the first after it ended.
 *
 * grpc-js lets an open stream keep the process alive: so one that nobody waits for is ended after
 * `idleMs`.
 */
export class RecallFlow {
  readonly #openDuplex: () => RecallDuplex;
  readonly #address: string;
  readonly #idleMs: number;
  #stream: OpenStream | undefined;
  #idle: NodeJS.Timeout | undefined;

  /** @param idleMs - Infinity: it stays open until it is closed. */
  constructor(openDuplex: () => RecallDuplex, address: string, idleMs: number) {
    this.#openDuplex = openDuplex;
    this.#address = address;
    this.#idleMs = idleMs;
  }

  /** Whether a recall would be worked on at once. One with a read token may hold others up. */
  takes(request: v1.RecallRequest, { timeoutMs }: Limits): boolean {
    const waiting = this.#stream?.ended === false ? this.#stream.waiting : 0;
    return waiting < WAITING_MAX && request.readToken === '' && timeoutMs <= TIMEOUT_MS_MAX;
  }

  /**
   * Sends a recall and waits for its answer.
   *
   * @throws StreamEnded where the stream ended before that.
   */
  async recall(request: v1.RecallRequest, limits: Limits): Promise<v1.RecallResponse> {
    const { timeoutMs, signal } = limits;
    signal?.throwIfAborted();
    request.timeoutMs = Math.max(1, Math.floor(timeoutMs));
    const stream = this.#current();
    let timer: NodeJS.Timeout | undefined;
    let abort: (() => void) | undefined;
    let waiting: Waiting | undefined;
    try {
      const answer = await new Promise<v1.RecallResponse>((resolve, reject) => {
        timer = setTimeout(() => {
          reject(tooLate(this.#address));
        }, timeoutMs);
        if (signal !== undefined) {
          abort = () => {
            reject(new Error('aborted'));
          };
          signal.addEventListener('abort', abort, { once: true });
        }
        const untilMs = performance.now() + timeoutMs;
        waiting = { answer: resolve, fail: reject, gone: false, untilMs };
        stream.send(request, waiting);
      });
      if (answer.error !== undefined) throw errorOfDetail(answer.error);
      return answer;
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

  #current(): OpenStream {
    if (this.#stream === undefined || this.#stream.ended) {
      const opened = new OpenStream(this.#openDuplex(), () => {
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
