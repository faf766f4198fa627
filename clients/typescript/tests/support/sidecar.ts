/** A real sidecar for tests: its own process, its own data directory, the real model. */
import type { ChildProcess } from 'node:child_process';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { ClientOptions } from '../../src/index.js';
import { RecallClient } from '../../src/index.js';

const START_MS = 60_000;
// From build/tests/support, where this runs, to the top of the repository.
const TOP = fileURLToPath(new URL('../../../../../', import.meta.url));
const BINARY = process.env['SEMANTICRECALL_BIN'] ?? join(TOP, '.venv/bin/semanticrecall');

/** How a sidecar is started. */
export interface SidecarOptions {
  /** More arguments of `semanticrecall serve`. */
  args?: readonly string[];
  /** Listen on a free TCP port instead of a Unix socket. */
  tcp?: boolean;
  /** Options of {@link Sidecar.client}, e.g. `{ token, tls }`. */
  clientOptions?: ClientOptions;
}

const running = new Set<Sidecar>();
process.on('exit', () => {
  for (const sidecar of running) sidecar.removeAtOnce();
});

/** A running sidecar. */
export class Sidecar {
  readonly address: string;
  readonly dataDir: string;
  readonly #folder: string;
  readonly #args: readonly string[];
  readonly #clientOptions: ClientOptions;
  readonly #clients: RecallClient[] = [];
  #process: ChildProcess | undefined;

  constructor(folder: string, address: string, options: SidecarOptions) {
    this.#folder = folder;
    this.address = address;
    this.dataDir = join(folder, 'data');
    this.#clientOptions = options.clientOptions ?? {};
    this.#args = options.args ?? [];
    running.add(this);
  }

  /** Starts the process and waits until it serves. */
  async start(): Promise<void> {
    const args = ['serve', '--listen', this.address, '--data-dir', this.dataDir, ...this.#args];
    // The server refuses settings that it does not know, and this one is ours.
    const env = { ...process.env };
    delete env['SEMANTICRECALL_BIN'];
    const child = spawn(BINARY, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
    this.#process = child;
    const said: string[] = [];
    const lines = createInterface({ input: child.stderr });
    const serving = new Promise<void>((resolve, reject) => {
      lines.on('line', (line) => {
        // Its log: only the beginning matters, the rest would pile up.
        if (said.length < 100) said.push(line);
        if (line.includes('"event": "serving"')) resolve();
      });
      child.once('error', reject);
      child.once('exit', (code) => {
        reject(new Error(`the sidecar ended with ${String(code)}:\n${said.join('\n')}`));
      });
    });
    const late = new AbortController();
    const timer = setTimeout(() => {
      late.abort(new Error(`the sidecar does not serve:\n${said.join('\n')}`));
    }, START_MS);
    const tooLate = new Promise<never>((_, reject) => {
      late.signal.addEventListener('abort', () => {
        reject(late.signal.reason as Error);
      });
    });
    try {
      await Promise.race([serving, tooLate]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** A client of it, closed by {@link Sidecar.stop}. */
  client(options: ClientOptions = {}): RecallClient {
    const made = new RecallClient({ address: this.address, ...this.#clientOptions, ...options });
    this.#clients.push(made);
    return made;
  }

  /** Ends the process by a signal and waits for its end; the data stay. */
  async kill(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill(signal);
    await ended;
  }

  /** Closes its clients, ends the process and removes its data. */
  async stop(): Promise<void> {
    await Promise.all(this.#clients.map((client) => client.close()));
    await this.kill();
    this.removeAtOnce();
  }

  /** What is left to do when this process ends: never leave a sidecar behind. */
  removeAtOnce(): void {
    this.#process?.kill('SIGKILL');
    running.delete(this);
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Starts a sidecar with an empty store, and waits until it serves. */
export async function startSidecar(options: SidecarOptions = {}): Promise<Sidecar> {
  const folder = mkdtempSync(join(tmpdir(), 'semanticrecall-ts-'));
  const address =
    options.tcp === true ? `127.0.0.1:${await freePort()}` : `unix:${join(folder, 'sock')}`;
  const sidecar = new Sidecar(folder, address, options);
  try {
    await sidecar.start();
  } catch (error) {
    sidecar.removeAtOnce();
    throw error;
  }
  return sidecar;
}

/** A TCP port that nobody listens on. */
export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}
