/**
 * What a recall costs a Node process, by transport: Connect, grpc-js and node:http2 alone.
 *
 * Run by hand, from the top of the repository, with the client built (`npm ci && npx tsc`):
 *
 *     npm install --prefix clients/typescript --no-save @grpc/grpc-js@1.14.7 \
 *         @connectrpc/connect@2.1.2 @connectrpc/connect-node@2.1.2
 *     node benchmarks/typescript_transport.mjs [calls a cell] [rounds]
 *
 * One real sidecar (the default model), 500 messages of one resource, one query asked again and
 * again (so that it is answered from the cache and the transport is most of what is left), top 4
 * with a neighbour on each side. Cells are run by turns in each round, so that what else the
 * machine does meets all of them alike. CPU is that of this process, user and system.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import http2 from 'node:http2';
import { createServer } from 'node:net';
import { cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const TOP = fileURLToPath(new URL('..', import.meta.url));
const PACKAGES = join(TOP, 'clients/typescript/node_modules');
const { create, fromBinary, toBinary } = await import(
  join(PACKAGES, '@bufbuild/protobuf/dist/esm/index.js')
);
const { createClient } = await import(join(PACKAGES, '@connectrpc/connect/dist/esm/index.js'));
const { createGrpcTransport } = await import(
  join(PACKAGES, '@connectrpc/connect-node/dist/esm/index.js')
);
const { default: grpc } = await import(join(PACKAGES, '@grpc/grpc-js/build/src/index.js'));
const v1 = await import(join(TOP, 'clients/typescript/build/src/v1/index.js'));

const CALLS = Number(process.argv[2] ?? 400);
const ROUNDS = Number(process.argv[3] ?? 5);
const MESSAGES = 500;
const UNARY = '/semanticrecall.v1.RecallService/Recall';
const STREAM = '/semanticrecall.v1.RecallService/RecallStream';

const recallRequest = (requestId) =>
  create(v1.RecallRequestSchema, {
    requestId,
    resourceId: 'ada',
    query: 'which dog food did we settle on in spring?',
    topK: 4,
  });

/** Answers of a stream, given to whoever waits for that id. */
class Waiting {
  #next = 0;
  #waiting = new Map();

  send(write) {
    const id = String(this.#next++);
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      write(recallRequest(id));
    });
  }

  settle(answer) {
    const { resolve, reject } = this.#waiting.get(answer.requestId);
    this.#waiting.delete(answer.requestId);
    if (answer.error) reject(new Error(answer.error.message));
    else resolve(answer);
  }
}

function connectClient(address) {
  const unix = address.startsWith('unix:');
  const transport = createGrpcTransport({
    baseUrl: unix ? 'http://localhost' : `http://${address}`,
    nodeOptions: unix ? { path: address.slice(5) } : {},
  });
  return createClient(v1.RecallService, transport);
}

function connectUnary(address) {
  const client = connectClient(address);
  return { recall: () => client.recall(recallRequest('')), close: () => undefined };
}

function connectStream(address) {
  const client = connectClient(address);
  const waiting = new Waiting();
  const queue = [];
  let wake = () => undefined;
  let open = true;
  async function* outgoing() {
    while (open) {
      while (queue.length > 0) yield queue.shift();
      await new Promise((resolve) => (wake = resolve));
    }
  }
  const read = async () => {
    for await (const answer of client.recallStream(outgoing())) waiting.settle(answer);
  };
  const reading = read();
  const push = (request) => {
    queue.push(request);
    wake();
  };
  return {
    recall: () => waiting.send(push),
    close: async () => {
      open = false;
      wake();
      await reading;
    },
  };
}

// What the client sets, too: neither books about its own connections nor retries of its own.
const GRPC_OPTIONS = { 'grpc.enable_channelz': 0, 'grpc.enable_retries': 0 };
const encode = (message) => Buffer.from(toBinary(v1.RecallRequestSchema, message));
const decode = (bytes) => fromBinary(v1.RecallResponseSchema, bytes);

function grpcUnary(address) {
  const client = new grpc.Client(address, grpc.credentials.createInsecure(), GRPC_OPTIONS);
  const metadata = new grpc.Metadata();
  const recall = () =>
    new Promise((resolve, reject) => {
      const deadline = Date.now() + 10_000;
      const done = (error, answer) => (error ? reject(error) : resolve(answer));
      const request = recallRequest('');
      client.makeUnaryRequest(UNARY, encode, decode, request, metadata, { deadline }, done);
    });
  return { recall, close: () => client.close() };
}

function grpcStream(address) {
  const client = new grpc.Client(address, grpc.credentials.createInsecure(), GRPC_OPTIONS);
  const call = client.makeBidiStreamRequest(STREAM, encode, decode, new grpc.Metadata(), {});
  const waiting = new Waiting();
  call.on('data', (answer) => waiting.settle(answer));
  call.on('error', (error) => {
    if (error.code !== grpc.status.CANCELLED) throw error;
  });
  return {
    recall: () => waiting.send((request) => call.write(request)),
    close: () => {
      call.cancel();
      client.close();
    },
  };
}

/** A message with gRPC's five bytes before it. */
function framed(bytes) {
  const frame = Buffer.allocUnsafe(5 + bytes.length);
  frame[0] = 0;
  frame.writeUInt32BE(bytes.length, 1);
  frame.set(bytes, 5);
  return frame;
}

/** Calls `found` with the bytes of each message in a stream of frames. */
function unframed(stream, found) {
  let kept = Buffer.alloc(0);
  stream.on('data', (chunk) => {
    kept = kept.length === 0 ? chunk : Buffer.concat([kept, chunk]);
    while (kept.length >= 5 && kept.length >= 5 + kept.readUInt32BE(1)) {
      const end = 5 + kept.readUInt32BE(1);
      found(kept.subarray(5, end));
      kept = kept.subarray(end);
    }
  });
}

function http2Session(address) {
  if (!address.startsWith('unix:')) return http2.connect(`http://${address}`);
  return http2.connect('http://localhost', { path: address.slice(5) });
}

const headers = (path) => ({
  ':method': 'POST',
  ':path': path,
  'content-type': 'application/grpc',
  te: 'trailers',
});

function http2Unary(address) {
  const session = http2Session(address);
  const recall = () =>
    new Promise((resolve, reject) => {
      const stream = session.request({ ...headers(UNARY), 'grpc-timeout': '10S' });
      let answer;
      unframed(stream, (bytes) => (answer = decode(bytes)));
      stream.on('trailers', (trailers) => {
        if (trailers['grpc-status'] !== '0') reject(new Error(trailers['grpc-message']));
      });
      stream.on('end', () => resolve(answer));
      stream.on('error', reject);
      stream.end(framed(encode(recallRequest(''))));
    });
  return { recall, close: () => session.close() };
}

function http2Stream(address) {
  const session = http2Session(address);
  const stream = session.request(headers(STREAM));
  const waiting = new Waiting();
  unframed(stream, (bytes) => waiting.settle(decode(bytes)));
  return {
    recall: () => waiting.send((request) => stream.write(framed(encode(request)))),
    close: () => {
      stream.close();
      session.close();
    },
  };
}

const TRANSPORTS = {
  'connect unary': connectUnary,
  'connect stream': connectStream,
  'grpc-js unary': grpcUnary,
  'grpc-js stream': grpcStream,
  'node:http2 unary': http2Unary,
  'node:http2 stream': http2Stream,
};

async function freePort() {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}

async function startSidecar(folder, addresses) {
  const listen = addresses.flatMap((address) => ['--listen', address]);
  const args = ['serve', ...listen, '--data-dir', join(folder, 'data')];
  const stdio = ['ignore', 'ignore', 'pipe'];
  const child = spawn(join(TOP, '.venv/bin/semanticrecall'), args, { stdio });
  process.on('exit', () => {
    child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  });
  const lines = createInterface({ input: child.stderr });
  for await (const line of lines) if (line.includes('"event": "serving"')) break;
  child.stderr.resume();
}

async function fill(address) {
  const client = connectClient(address);
  const messages = Array.from({ length: MESSAGES }, (_, at) =>
    create(v1.MessageSchema, {
      id: `m${at}`,
      role: at % 2 === 0 ? v1.Role.USER : v1.Role.ASSISTANT,
      text:
        `Message ${at}: we talked about dog food number ${at % 37}, what it costs in spring, ` +
        `whether the vet in street ${at % 11} likes it, and which one we would settle on.`,
      metadata: { project: 'dogs', turn: at },
    }),
  );
  await client.index({ resourceId: 'ada', threadId: 'dogs', messages });
}

const at = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];

/** Runs one cell: so many calls, so many of them at once. */
async function measure(client, callers, times) {
  let left = CALLS;
  const caller = async () => {
    while (left-- > 0) {
      const start = performance.now();
      await client.recall();
      times.push(performance.now() - start);
    }
  };
  const before = process.cpuUsage();
  const start = performance.now();
  await Promise.all(Array.from({ length: callers }, caller));
  const { user, system } = process.cpuUsage(before);
  return { cpuUs: user + system, wallMs: performance.now() - start };
}

/** What decoding alone takes: the caller's loop stands still for so long. */
async function decoding(address) {
  const client = http2Unary(address);
  const answer = await client.recall();
  const bytes = toBinary(v1.RecallResponseSchema, answer);
  const times = [];
  for (let round = 0; round < 2_000; round++) {
    const start = performance.now();
    decode(bytes);
    times.push(performance.now() - start);
  }
  client.close();
  const first = times[0];
  times.sort((a, b) => a - b);
  const shown = [at(times, 0.5), at(times, 0.99), times.at(-1), first].map((t) => t.toFixed(3));
  console.log(
    `decoding ${answer.messages.length} messages, ${bytes.length} bytes, ms: ` +
      `p50 ${shown[0]}, p99 ${shown[1]}, most ${shown[2]}, the first ${shown[3]}`,
  );
}

const folder = mkdtempSync(join(tmpdir(), 'semanticrecall-transport-'));
const addresses = [`unix:${join(folder, 'sock')}`, `127.0.0.1:${await freePort()}`];
await startSidecar(folder, addresses);
await fill(addresses[0]);
console.log(
  `Node ${process.version}, ${cpus().length} CPUs (${cpus()[0].model}); ${CALLS} calls a cell and ` +
    `round, ${ROUNDS} rounds`,
);
await decoding(addresses[0]);

const cells = [];
for (const address of addresses) {
  for (const callers of [1, 16]) {
    for (const [name, open] of Object.entries(TRANSPORTS)) {
      const place = address.startsWith('unix:') ? 'unix' : 'tcp';
      const client = open(address);
      cells.push({ name, place, callers, client, times: [], cpuUs: 0, wallMs: 0 });
    }
  }
}
for (const { client, callers } of cells) await measure(client, callers, []);
for (let round = 0; round < ROUNDS; round++) {
  for (const cell of cells) {
    const { cpuUs, wallMs } = await measure(cell.client, cell.callers, cell.times);
    cell.cpuUs += cpuUs;
    cell.wallMs += wallMs;
  }
}
console.log('place callers transport            p50 ms  p99 ms  CPU us/call  calls/s');
for (const { place, callers, name, times, cpuUs, wallMs } of cells) {
  times.sort((a, b) => a - b);
  const columns = [
    place.padEnd(5),
    String(callers).padStart(7),
    name.padEnd(18),
    at(times, 0.5).toFixed(3).padStart(8),
    at(times, 0.99).toFixed(3).padStart(7),
    (cpuUs / times.length).toFixed(0).padStart(12),
    ((times.length * 1000) / wallMs).toFixed(0).padStart(8),
  ];
  console.log(columns.join(' '));
}
process.exit(0);
