/** A server of the contract that takes every call and never answers. */
import { once } from 'node:events';
import type { DescMethod } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import * as v1 from '../../src/v1/index.js';

type AnyCall = grpc.ServerUnaryCall<Buffer, Buffer> | grpc.ServerDuplexStream<Buffer, Buffer>;

/** Keeps the calls that came, in order. */
export class SilentSidecar {
  address = '';
  readonly #server = new grpc.Server();
  readonly #arrived: { name: string; cancelled: Promise<unknown> }[] = [];
  #arrival: () => void = () => undefined;

  static async start(): Promise<SilentSidecar> {
    const made = new SilentSidecar();
    for (const service of [v1.RecallService, v1.AdminService, v1.VectorService]) {
      const methods: DescMethod[] = [...service.methods];
      const takes = (name: string) => (call: AnyCall) => {
        made.#take(name, call);
      };
      made.#server.addService(
        Object.fromEntries(methods.map((method) => [method.localName, definition(method)])),
        Object.fromEntries(methods.map(({ localName }) => [localName, takes(localName)])),
      );
    }
    const credentials = grpc.ServerCredentials.createInsecure();
    const port = await new Promise<number>((resolve, reject) => {
      made.#server.bindAsync('127.0.0.1:0', credentials, (error, bound) => {
        if (error === null) resolve(bound);
        else reject(error);
      });
    });
    made.address = `127.0.0.1:${port}`;
    return made;
  }

  /** The next call that has come: its name, and when it was cancelled on the wire. */
  async next(): Promise<{ name: string; cancelled: Promise<unknown> }> {
    for (;;) {
      const call = this.#arrived.shift();
      if (call !== undefined) return call;
      await new Promise<void>((resolve) => {
        this.#arrival = resolve;
      });
    }
  }

  stop(): void {
    this.#server.forceShutdown();
  }

  #take(name: string, call: AnyCall): void {
    this.#arrived.push({ name, cancelled: once(call, 'cancelled') });
    this.#arrival();
  }
}

function definition(method: DescMethod): grpc.MethodDefinition<Buffer, Buffer> {
  const kind = method.methodKind;
  return {
    path: `/${method.parent.typeName}/${method.name}`,
    requestStream: kind === 'client_streaming' || kind === 'bidi_streaming',
    responseStream: kind === 'server_streaming' || kind === 'bidi_streaming',
    requestSerialize: (bytes) => bytes,
    requestDeserialize: (bytes) => bytes,
    responseSerialize: (bytes) => bytes,
    responseDeserialize: (bytes) => bytes,
  };
}
