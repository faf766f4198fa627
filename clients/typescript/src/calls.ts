/** How calls are made: defaults, deadlines, retries. Holds the connection and nothing else. */
import type {
  DescMessage,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageShape,
} from '@bufbuild/protobuf';
import * as check from './arguments.js';
import type { Settings } from './connection.js';
import { clientClosed } from './errors.js';
import { Transport } from './transport.js';
import type { Limits } from './transport.js';
import type { CallOptions } from './values.js';

/** What moves many messages, a stream say, may take an hour. */
const LONG_MS = 3_600_000;

/** The connection of a client, and the ways to call. */
export class Calls {
  readonly settings: Settings;
  readonly #transport: Transport;
  #closed = false;

  constructor(settings: Settings) {
    this.settings = settings;
    this.#transport = new Transport(settings);
  }

  /** One request, one answer. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions | undefined,
  ): Promise<MessageShape<O>> {
    return this.#transport.unary(method, request, this.#limits(options, this.settings.timeoutMs));
  }

  /** One request, many answers. */
  serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    options: CallOptions | undefined,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    return this.#transport.serverStream(method, request, this.#limits(options, LONG_MS));
  }

  /** Gives the connection up. */
  close(): void {
    this.#closed = true;
    this.#transport.close();
  }

  #limits(options: CallOptions | undefined, timeoutMs: number): Limits {
    if (this.#closed) throw clientClosed();
    options?.signal?.throwIfAborted();
    const given = options?.timeoutMs;
    return {
      timeoutMs: given === undefined ? timeoutMs : check.milliseconds(given, 'timeoutMs'),
      signal: options?.signal,
    };
  }
}
