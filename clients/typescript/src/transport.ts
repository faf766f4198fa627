/** The wire: single calls and streams of one HTTP/2 connection, with the errors of this package. */
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
import { errorOfCode, errorOfDetail, tooLate, unreachable } from './errors.js';
import type { SemanticRecallError } from './errors.js';
import { ErrorDetailSchema } from './v1/index.js';

const ERROR_TRAILER = 'semanticrecall-error-bin';
const RECEIVE_BYTES_MAX = 256 * 1024 * 1024;

/** When a call ends, whatever happens. */
export interface Limits {
  /** Milliseconds left. */
  readonly timeoutMs: number;
  /** The caller's own. */
  readonly signal?: AbortSignal | undefined;
}

/** One connection to a sidecar, made with the first call. */
export class Transport {
  readonly #client: grpc.Client;
  readonly #settings: Settings;

  constructor(settings: Settings) {
    this.#settings = settings;
    const { place } = settings;
    const target = 'path' in place ? `unix:${place.path}` : `${place.host}:${place.port}`;
    this.#client = new grpc.Client(target, credentials(settings), {
      'grpc.max_receive_message_length': RECEIVE_BYTES_MAX,
      'grpc.max_send_message_length': RECEIVE_BYTES_MAX,
      'grpc.enable_http_proxy': 0,
      'grpc.initial_reconnect_backoff_ms': 100,
      'grpc.max_reconnect_backoff_ms': 1_000,
      'grpc.enable_retries': 0,
    });
  }

  /** One request, one answer. */
  unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    limits: Limits,
  ): Promise<MessageShape<O>> {
    return new Promise((resolve, reject) => {
      const { signal } = limits;
      const call = this.#client.makeUnaryRequest(
        pathOf(method),
        (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
        (bytes: Buffer) => fromBinary(method.output, bytes),
        request,
        this.#metadata(),
        { deadline: Date.now() + limits.timeoutMs },
        (error, answer) => {
          signal?.removeEventListener('abort', abort);
          if (signal?.aborted === true) reject(reasonOf(signal));
          else if (error !== null) reject(this.#error(error));
          else if (answer === undefined) reject(unreachable(this.#settings.address));
          else resolve(answer);
        },
      );
      const abort = (): void => {
        call.cancel();
      };
      signal?.addEventListener('abort', abort, { once: true });
    });
  }

  /** One request, many answers. */
  async *serverStream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    limits: Limits,
  ): AsyncGenerator<MessageShape<O>, void, undefined> {
    const call = this.#client.makeServerStreamRequest(
      pathOf(method),
      (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
      (bytes: Buffer) => fromBinary(method.output, bytes),
      request,
      this.#metadata(),
      { deadline: Date.now() + limits.timeoutMs },
    );
    yield* this.#read(call, limits.signal);
  }

  /** Many requests, many answers. */
  bidi<I extends DescMessage, O extends DescMessage>(
    method: DescMethodBiDiStreaming<I, O>,
    limits: Limits,
  ): grpc.ClientDuplexStream<MessageShape<I>, MessageShape<O>> {
    return this.#client.makeBidiStreamRequest(
      pathOf(method),
      (message: MessageShape<I>) => Buffer.from(toBinary(method.input, message)),
      (bytes: Buffer) => fromBinary(method.output, bytes),
      this.#metadata(),
      { deadline: Date.now() + limits.timeoutMs },
    );
  }

  async *#read<T>(
    call: grpc.ClientReadableStream<T> | grpc.ClientDuplexStream<never, T>,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<T, void, undefined> {
    const abort = (): void => {
      call.cancel();
    };
    signal?.addEventListener('abort', abort, { once: true });
    try {
      for await (const answer of call as AsyncIterable<T>) yield answer;
    } catch (error) {
      if (signal?.aborted === true) throw reasonOf(signal);
      throw isServiceError(error) ? this.#error(error) : error;
    } finally {
      signal?.removeEventListener('abort', abort);
      call.cancel();
    }
  }

  /** Gives the connection up; calls under way are cancelled. */
  close(): void {
    this.#client.close();
  }

  #metadata(): grpc.Metadata {
    const metadata = new grpc.Metadata();
    const { token } = this.#settings;
    if (token !== '') metadata.set('authorization', `Bearer ${token}`);
    return metadata;
  }

  #error(error: grpc.ServiceError): SemanticRecallError {
    const [trailer] = error.metadata.get(ERROR_TRAILER);
    if (trailer instanceof Uint8Array) {
      return errorOfDetail(fromBinary(ErrorDetailSchema, trailer));
    }
    const { address } = this.#settings;
    if (error.code === grpc.status.UNAVAILABLE) return unreachable(address);
    if (error.code === grpc.status.DEADLINE_EXCEEDED) return tooLate(address);
    return errorOfCode(error.code, error.details || `the call to ${address} failed`);
  }
}

function reasonOf(signal: AbortSignal): Error {
  return signal.reason instanceof Error ? signal.reason : new Error(String(signal.reason));
}

function isServiceError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && 'code' in error && 'metadata' in error;
}

function pathOf(method: DescMethod): string {
  return `/${method.parent.typeName}/${method.name}`;
}

function credentials({ tls }: Settings): grpc.ChannelCredentials {
  if (tls === undefined) return grpc.credentials.createInsecure();
  return grpc.credentials.createSsl(tls.ca ?? null, tls.key ?? null, tls.cert ?? null);
}
