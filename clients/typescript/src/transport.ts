/** The wire: calls over one HTTP/2 connection (grpc-js), with the errors of this package. */
import type { Readable } from 'node:stream';
import type {
  DescMessage,
  DescMethod,
  DescMethodBiDiStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  MessageShape,
} from '@bufbuild/protobuf';
import { fromBinary, toBinary } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import type { Settings } from './connection.js';
import {
  InvalidArgumentError,
  clientClosed,
  errorOfCode,
  errorOfDetail,
  tooLate,
  unreachable,
} from './errors.js';
import type { SemanticRecallError } from './errors.js';
import { decodeRecall } from './recall-answer.js';
import { ErrorDetailSchema, RecallResponseSchema } from './v1/index.js';

const ERROR_TRAILER = 'semanticrecall-error-bin';
const MESSAGE_BYTES_MAX = 256 * 1024 * 1024;

const CHANNEL_OPTIONS: grpc.ChannelOptions = {
  'grpc.max_receive_message_length': MESSAGE_BYTES_MAX,
  'grpc.max_send_message_length': MESSAGE_BYTES_MAX,
  // A sidecar is beside its caller: a proxy of the environment would only hide it.
  'grpc.enable_http_proxy': 0,
  // A sidecar that restarts is back in moments; grpc's own steps go to two minutes.
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 1_000,
  // Find a peer that vanished without a goodbye. The server allows a ping each 10 s.
  'grpc.keepalive_time_ms': 30_000,
  'grpc.keepalive_timeout_ms': 10_000,
  // Its own retries know nothing of RetryInfo, nor of the time that is left. See `calls.ts`.
  'grpc.enable_retries': 0,
  // Closing a client closes its connection, not one that another client is using.
  'grpc.use_local_subchannel_pool': 1,
  // Books about its own connections, for a debugger that is not there.
  'grpc.enable_channelz': 0,
  'grpc.primary_user_agent': 'semanticrecall-typescript',
};

/** When a call ends, whatever happens. */
export interface Limits {
  /** Milliseconds from now; Infinity: no end. */
  readonly timeoutMs: number;
  /** The caller's own. */
  readonly signal?: AbortSignal | undefined;
}

/** A stream of requests and answers under way. */
export type Duplex<I extends DescMessage, O extends DescMessage> = grpc.ClientDuplexStream<
  MessageShape<I>,
  MessageShape<O>
>;

interface Cancellable {
  cancel(): void;
}

/** One connection to a sidecar: made when it is first needed, and again when it was lost. */
export class Transport {
  readonly #client: grpc.Client;
  readonly #settings: Settings;
  readonly #metadata = new grpc.Metadata();
  readonly #underWay = new Set<Cancellable>();
  #closed = false;

  /** @throws InvalidArgumentError where the TLS settings cannot be used. */
  constructor(settings: Settings) {
    this.#settings = settings;
    const { place, tls, token } = settings;
    const target = 'path' in place ? `unix:${place.path}` : targetOf(place.host, place.port);
    const options = { ...CHANNEL_OPTIONS };
    if (tls?.serverName !== undefined) {
      options['grpc.ssl_target_name_override'] = tls.serverName;
      options['grpc.default_authority'] = tls.serverName;
    }
    this.#client = new grpc.Client(target, credentials(settings), options);
    if (token !== '') this.#metadata.set('authorization', `Bearer ${token}`);
  }

  /** Whether it was given up. */
  get isClosed(): boolean {
    return this.#closed;
  }

  /** Whether there is a connection now. */
  get isReady(): boolean {
    if (this.#closed) return false;
    return this.#client.getChannel().getConnectivityState(false) === grpc.connectivityState.READY;
  }

  /** Waits for a connection; whether there is one within the limits. Tries again and again. */
  async ready({ timeoutMs, signal }: Limits): Promise<boolean> {
    this.#refuseIfClosed();
    if (this.isReady) return true;
    const found = await new Promise<boolean>((resolve) => {
      const abort = (): void => {
        resolve(false);
      };
      signal?.addEventListener('abort', abort, { once: true });
      this.#client.waitForReady(Date.now() + timeoutMs, (error) => {
        signal?.removeEventListener('abort', abort);
        resolve(error === undefined);
      });
    });
    signal?.throwIfAborted();
    this.#refuseIfClosed();
    return found;
  }

  /** One request, one answer. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    limits: Limits,
  ): Promise<MessageShape<O>> {
    this.#refuseIfClosed();
    limits.signal?.throwIfAborted();
    let release: (() => void) | undefined;
    try {
      return await new Promise<MessageShape<O>>((resolve, reject) => {
        const call = this.#client.makeUnaryRequest(
          pathOf(method),
          encoderOf(method),
          decoderOf(method),
          request,
          this.#metadata,
          callOptions(limits),
          (error, answer) => {
            if (answer !== undefined) resolve(answer);
            else reject(error ?? new Error('neither an answer nor an error'));
          },
        );
        release = this.#hold(call, limits.signal);
      });
    } catch (error) {
      throw this.#failure(error, limits.signal);
    } finally {
      release?.();
    }
  }

  /** One request, many answers: no more are read than are asked for. */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    limits: Limits,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    this.#refuseIfClosed();
    limits.signal?.throwIfAborted();
    const call: grpc.ClientReadableStream<MessageShape<O>> = this.#client.makeServerStreamRequest(
      pathOf(method),
      encoderOf(method),
      decoderOf(method),
      request,
      this.#metadata,
      callOptions(limits),
    );
    call.once('status', this.#hold(call, limits.signal));
    yield* this.answers<MessageShape<O>>(call, limits.signal);
  }

  /** Many requests, many answers. The caller sees to its end. */
  duplex<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    limits: Limits,
  ): Duplex<I, O> {
    this.#refuseIfClosed();
    limits.signal?.throwIfAborted();
    const call = this.#client.makeBidiStreamRequest(
      pathOf(method),
      encoderOf(method),
      decoderOf(method),
      this.#metadata,
      callOptions(limits),
    );
    call.once('status', this.#hold(call, limits.signal));
    return call;
  }

  /** The answers of a stream, as they are asked for. Who stops half way ends the stream. */
  async *answers<T>(
    call: Readable & AsyncIterable<T> & Cancellable,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<T, void, undefined> {
    // An error that comes when nobody reads any more, that of being cancelled say, is no news.
    call.on('error', () => undefined);
    try {
      yield* call;
    } catch (error) {
      throw this.#failure(error, signal);
    } finally {
      call.cancel();
    }
  }

  /** Gives the connection up; calls under way fail. */
  close(): void {
    this.#closed = true;
    for (const call of this.#underWay) call.cancel();
    this.#client.close();
  }

  #refuseIfClosed(): void {
    if (this.#closed) throw clientClosed();
  }

  /** Sees to it that a call ends with its signal and with the client; until it is released. */
  #hold(call: Cancellable, signal: AbortSignal | undefined): () => void {
    const abort = (): void => {
      call.cancel();
    };
    this.#underWay.add(call);
    signal?.addEventListener('abort', abort, { once: true });
    return () => {
      this.#underWay.delete(call);
      signal?.removeEventListener('abort', abort);
    };
  }

  /** What to throw for what grpc said. Throws the signal's own reason, whatever that is. */
  #failure(error: unknown, signal: AbortSignal | undefined): unknown {
    signal?.throwIfAborted();
    if (!isServiceError(error)) return error;
    return this.#closed ? clientClosed() : this.errorOf(error);
  }

  /** The server's own words come first; without them the failure is the transport's. */
  errorOf(error: grpc.ServiceError): SemanticRecallError {
    const [trailer] = error.metadata.get(ERROR_TRAILER);
    if (trailer instanceof Uint8Array) {
      try {
        return errorOfDetail(fromBinary(ErrorDetailSchema, trailer));
      } catch {
        // A trailer that cannot be read says nothing.
      }
    }
    const { address } = this.#settings;
    if (error.code === grpc.status.UNAVAILABLE) return unreachable(address);
    if (error.code === grpc.status.DEADLINE_EXCEEDED) return tooLate(address);
    return errorOfCode(error.code, error.details || `the call to ${address} failed`);
  }
}

function isServiceError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && 'code' in error && 'details' in error && 'metadata' in error;
}

function targetOf(host: string, port: number): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

function encoderOf<I extends DescMessage>(method: { input: I }): (m: MessageShape<I>) => Buffer {
  return (message) => {
    const bytes = toBinary(method.input, message);
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  };
}

function decoderOf<O extends DescMessage>(method: { output: O }): (b: Buffer) => MessageShape<O> {
  if (method.output.typeName === RecallResponseSchema.typeName) {
    // What has this name is a RecallResponse; the type cannot know.
    return decodeRecall as unknown as (b: Buffer) => MessageShape<O>;
  }
  return (bytes) => fromBinary(method.output, bytes);
}

function callOptions({ timeoutMs }: Limits): grpc.CallOptions {
  return timeoutMs === Infinity ? {} : { deadline: Date.now() + timeoutMs };
}

function credentials({ tls }: Settings): grpc.ChannelCredentials {
  if (tls === undefined) return grpc.credentials.createInsecure();
  try {
    return grpc.credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null);
  } catch (error) {
    // OpenSSL's own words ("bad base64 decode"): they name no content.
    const why = error instanceof Error ? error.message : 'cannot be read';
    throw InvalidArgumentError.of('tls', `its certificates cannot be used: ${why}`);
  }
}
