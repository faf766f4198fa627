/** So many at once, and the others in the order they came. */
import { ResourceExhaustedError } from './errors.js';
import type { Limits } from './transport.js';

/** So many may wait; more are refused at once. */
const QUEUE_MAX = 10_000;

interface Waiting {
  begin(): void;
  gone: boolean;
}

/** Places of which each is one caller's until it is given back. */
export class Turns {
  readonly #queue: Waiting[] = [];
  #free: number;

  constructor(places: number) {
    this.#free = places;
  }

  /**
   * Waits for a place. Who gets one gives it back.
   *
   * @param late - what to throw when the time is up before that.
   */
  async take({ timeoutMs, signal }: Limits, late: () => Error): Promise<void> {
    signal?.throwIfAborted();
    if (this.#free > 0) {
      this.#free--;
      return;
    }
    if (this.#queue.length >= QUEUE_MAX) {
      throw new ResourceExhaustedError(`${QUEUE_MAX} recalls already wait in this client`, {
        reason: 'QUEUE_FULL',
        retryable: true,
      });
    }
    await this.#wait(timeoutMs, signal, late);
  }

  /** Gives a place back, to the one who has waited longest. */
  give(): void {
    let next = this.#queue.shift();
    while (next?.gone === true) next = this.#queue.shift();
    if (next === undefined) this.#free++;
    else next.begin();
  }

  async #wait(
    timeoutMs: number,
    signal: AbortSignal | undefined,
    late: () => Error,
  ): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    let abort: (() => void) | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        const waiting = { begin: resolve, gone: false };
        timer = setTimeout(() => {
          waiting.gone = true;
          reject(late());
        }, timeoutMs);
        abort = () => {
          waiting.gone = true;
          reject(new Error('aborted'));
        };
        signal?.addEventListener('abort', abort, { once: true });
        this.#queue.push(waiting);
      });
    } catch (error) {
      signal?.throwIfAborted();
      throw error;
    } finally {
      clearTimeout(timer);
      if (abort !== undefined) signal?.removeEventListener('abort', abort);
    }
  }
}
