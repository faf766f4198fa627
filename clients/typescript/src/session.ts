/** Recalling: the one way of it that a client and its sessions share. */
import * as answers from './answers.js';
import type { Calls } from './calls.js';
import { CancelledError, isOutage } from './errors.js';
import type { RecallFlow } from './flow.js';
import * as requests from './requests.js';
import { RecallResult } from './results.js';
import type { CallOptions, RecallOptions } from './values.js';

/**
 * Recalls; in an outage the answer is empty, unless the client was told to throw.
 *
 * @param flow - the stream to use. Default: the one that the client's recalls share.
 */
export async function recallOrDegrade(
  calls: Calls,
  request: ReturnType<typeof requests.recall>,
  options: CallOptions | undefined,
  flow?: RecallFlow,
): Promise<RecallResult> {
  const { failOpen, logger } = calls.settings;
  try {
    return answers.recall(await calls.recall(request, options, flow));
  } catch (error) {
    if (!(failOpen && isOutage(error))) throw error;
    // Whatever it is that is damaged: a caller looks for one word.
    const degraded = error.code === 'DATA_LOSS' ? error.code : error.reason;
    const advice = 'recall goes on without memories; failOpen: false throws instead';
    logger.warn(`${advice} (${degraded})`, { reason: error.reason, error: error.message });
    return new RecallResult({ degraded });
  }
}

/**
 * Many recalls on one open stream of their own, answered as each is ready. Made by
 * `RecallClient.recallStream`.
 *
 * A client's `recall` shares a stream by itself while recalls follow each other closely; a session
 * keeps its own open also when nobody asks for long. Close it: an open stream keeps the process
 * alive. One that broke is opened anew by the next recall.
 */
export class RecallSession implements AsyncDisposable {
  readonly #calls: Calls;
  readonly #flow: RecallFlow;
  #closed = false;

  /** @internal */
  constructor(calls: Calls) {
    this.#calls = calls;
    this.#flow = calls.flow();
  }

  /**
   * As `RecallClient.recall`.
   *
   * @throws CancelledError where the session was closed.
   */
  async recall(
    resourceId: string,
    query: string,
    options?: RecallOptions & CallOptions,
  ): Promise<RecallResult> {
    if (this.#closed) throw new CancelledError('this session is closed; open a new one');
    const request = requests.recall(resourceId, query, options);
    return recallOrDegrade(this.#calls, request, options, this.#flow);
  }

  /** Ends the stream; done when the recalls under way have been answered. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#flow.close();
  }

  /** As {@link RecallSession.close}, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
