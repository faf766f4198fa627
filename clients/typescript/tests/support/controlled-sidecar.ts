/** A server of the contract that answers as a test tells it to. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { DescMessage } from '@bufbuild/protobuf';
import { create, fromBinary, isMessage, toBinary } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import * as v1 from '../../src/v1/index.js';

const { RecallService } = v1;
type Recalled = (request: v1.RecallRequest) => v1.RecallResponse | undefined;

/** What it is told to fail with. */
export interface Failure {
  code: grpc.status;
  reason?: string;
  retryable?: boolean;
  retryAfterMs?: number;
}

/** How it behaves, and what it has seen. */
export class ControlledSidecar {
  /** Answers a recall, however it came; nothing: it never answers. */
  recalled: Recalled = (request) =>
    create(v1.RecallResponseSchema, { requestId: request.requestId, contextText: request.query });
  /** What the next single calls fail with, one after the other, before any of them works. */
  readonly failures: Failure[] = [];
  /** Names of the single calls, in the order they came. */
  readonly singleCalls: string[] = [];
  /** Metadata of the last call. */
  metadata = new grpc.Metadata();
  /** Streams that were opened. */
  readonly streams: grpc.ServerDuplexStream<v1.RecallRequest, v1.RecallResponse>[] = [];
  /** Recalls that came on a stream. */
  streamedRecalls = 0;
  address = '';
  readonly #server: grpc.Server;

  private constructor(server: grpc.Server) {
    this.#server = server;
  }

  static async start(
    credentials = grpc.ServerCredentials.createInsecure(),
  ): Promise<ControlledSidecar> {
    const server = new grpc.Server();
    const made = new ControlledSidecar(server);
    server.addService(
      {
        recall: definition('Recall', v1.RecallRequestSchema, v1.RecallResponseSchema, false),
        index: definition('Index', v1.IndexRequestSchema, v1.IndexResponseSchema, false),
        transfer: definition(
          'TransferThread',
          v1.TransferThreadRequestSchema,
          v1.TransferThreadResponseSchema,
          false,
        ),
        recallStream: definition(
          'RecallStream',
          v1.RecallRequestSchema,
          v1.RecallResponseSchema,
          true,
        ),
      },
      {
        recall: (
          call: grpc.ServerUnaryCall<v1.RecallRequest, v1.RecallResponse>,
          reply: grpc.sendUnaryData<v1.RecallResponse>,
        ) => {
          made.single('recall', call.metadata, reply, () => made.recalled(call.request));
        },
        index: (
          call: grpc.ServerUnaryCall<v1.IndexRequest, v1.IndexResponse>,
          reply: grpc.sendUnaryData<v1.IndexResponse>,
        ) => {
          made.single('index', call.metadata, reply, () => create(v1.IndexResponseSchema));
        },
        transfer: (
          call: grpc.ServerUnaryCall<v1.TransferThreadRequest, v1.TransferThreadResponse>,
          reply: grpc.sendUnaryData<v1.TransferThreadResponse>,
        ) => {
          made.single('transferThread', call.metadata, reply, () =>
            create(v1.TransferThreadResponseSchema),
          );
        },
        recallStream: (call: grpc.ServerDuplexStream<v1.RecallRequest, v1.RecallResponse>) => {
          made.stream(call);
        },
      },
    );
    const port = await new Promise<number>((resolve, reject) => {
      server.bindAsync('127.0.0.1:0', credentials, (error, bound) => {
        if (error === null) resolve(bound);
        else reject(error);
      });
    });
    made.address = `127.0.0.1:${port}`;
    return made;
  }

  /** Answers a single call, or fails it. */
  single<T>(
    name: string,
    metadata: grpc.Metadata,
    reply: grpc.sendUnaryData<T>,
    answer: () => T | undefined,
  ): void {
    this.singleCalls.push(name);
    this.metadata = metadata;
    const failure = this.failures.shift();
    if (failure !== undefined) {
      reply({ code: failure.code, details: 'as told', metadata: trailersOf(failure) });
      return;
    }
    const answered = answer();
    if (answered !== undefined) reply(null, answered);
  }

  /** Answers recalls of a stream. */
  stream(call: grpc.ServerDuplexStream<v1.RecallRequest, v1.RecallResponse>): void {
    this.streams.push(call);
    this.metadata = call.metadata;
    call.on('data', (request: v1.RecallRequest) => {
      this.streamedRecalls++;
      const answer = this.recalled(request);
      if (answer !== undefined) call.write(answer);
    });
    call.on('end', () => {
      call.end();
    });
  }

  /** Ends an open stream as the server does when it is idle or drains. */
  endStream(call: grpc.ServerDuplexStream<v1.RecallRequest, v1.RecallResponse>): void {
    const metadata = trailersOf({ code: grpc.status.UNAVAILABLE, reason: 'STREAM_IDLE' });
    call.emit('error', { code: grpc.status.UNAVAILABLE, details: 'as told', metadata });
  }

  /** Done when the next stream has ended, however it ended. */
  async streamEnded(at: number): Promise<void> {
    const call = this.streams[at];
    if (call === undefined) throw new Error('no such stream');
    if (!call.readableEnded) await once(call, 'end');
  }

  stop(): void {
    this.#server.forceShutdown();
  }
}

function trailersOf(failure: Failure): grpc.Metadata {
  const detail = create(v1.ErrorDetailSchema, {
    code: failure.code,
    message: 'as the test says',
    reason: failure.reason ?? 'TOLD',
    retryable: failure.retryable ?? true,
    retryAfterMs: BigInt(failure.retryAfterMs ?? 0),
  });
  const metadata = new grpc.Metadata();
  const bytes = toBinary(v1.ErrorDetailSchema, detail);
  metadata.set('semanticrecall-error-bin', Buffer.from(bytes));
  return metadata;
}

function definition(
  name: string,
  input: DescMessage,
  output: DescMessage,
  isStream: boolean,
): grpc.MethodDefinition<unknown, unknown> {
  return {
    path: `/${RecallService.typeName}/${name}`,
    requestStream: isStream,
    responseStream: isStream,
    requestSerialize: () => Buffer.alloc(0),
    requestDeserialize: (bytes) => fromBinary(input, bytes),
    responseSerialize: (message) => {
      assert.ok(isMessage(message, output));
      return Buffer.from(toBinary(output, message));
    },
    responseDeserialize: () => undefined,
  };
}
