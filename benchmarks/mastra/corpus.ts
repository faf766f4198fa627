/** The texts, vectors and questions that every system is given, made by `benchmarks.mastra_data`. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { text } from 'node:stream/consumers';

export const ROOT = path.resolve(import.meta.dirname, '../..');
export const VENV_BIN = process.env.BENCH_VENV_BIN ?? path.join(ROOT, '.venv/bin');
export const LAYOUTS = ['resources', 'one_user'] as const;

/** How messages are shared out: many users with some hundreds each, or one who has them all. */
export type Layout = (typeof LAYOUTS)[number];

export interface StoredMessage {
  id: string;
  threadId: string;
  role: 'user' | 'assistant';
  text: string;
  createTimeMs: number;
}

export interface Corpus {
  /** The longest history; a smaller store holds its beginning. */
  messages: StoredMessage[];
  /** A row of `dimensions` for each message. */
  vectors: Float32Array;
  dimensions: number;
  /** Distinct questions. */
  queries: string[];
  /** A filled data directory of the sidecar for each `<layout>-<size>`. */
  sidecarStores: Record<string, string>;
  /** Names the texts and the model they were embedded by. */
  name: string;
}

export interface CorpusOptions {
  dataDir: string;
  sizes: readonly number[];
  resourceMessages: number;
  queries: number;
  seed: number;
}

interface Made {
  texts: string;
  dimensions: number;
  stores: Record<string, string>;
}

/** Makes what is not there yet: the first time it embeds every text, which takes minutes. */
export async function makeCorpus(options: CorpusOptions): Promise<Corpus> {
  const flags = [
    ...['--data-dir', options.dataDir, '--sizes', options.sizes.join(',')],
    ...['--resource-messages', String(options.resourceMessages)],
    ...['--queries', String(options.queries), '--seed', String(options.seed)],
  ];
  const made = JSON.parse(
    await output('python', ['-m', 'benchmarks.mastra_data', ...flags]),
  ) as Made;
  const bytes = await readFile(path.join(made.texts, 'vectors.f32'));
  return {
    messages: await jsonLines<StoredMessage>(path.join(made.texts, 'messages.jsonl')),
    vectors: new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4),
    dimensions: made.dimensions,
    queries: await jsonLines<string>(path.join(made.texts, 'queries.jsonl')),
    sidecarStores: made.stores,
    name: path.basename(made.texts),
  };
}

/** Standard output of a command of the project's Python environment; fails as it fails. */
export async function output(command: string, argv: readonly string[]): Promise<string> {
  const child = spawn(path.join(VENV_BIN, command), argv, {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const closed = once(child, 'close');
  const written = await text(child.stdout);
  await closed;
  if (child.exitCode !== 0) throw new Error(`${command} ${argv.slice(0, 2).join(' ')} failed`);
  return written;
}

async function jsonLines<T>(file: string): Promise<T[]> {
  const lines = (await readFile(file, 'utf8')).split('\n');
  return lines.filter((line) => line !== '').map((line) => JSON.parse(line) as T);
}

/** The vector of the message of this number. */
export function vectorOf(corpus: Corpus, number: number): number[] {
  const { vectors, dimensions } = corpus;
  return Array.from(vectors.subarray(number * dimensions, (number + 1) * dimensions));
}

/** The resource that the message of this number belongs to. */
export function ownerOf(layout: Layout, resourceMessages: number, number: number): string {
  return layout === 'resources' ? `user-${Math.floor(number / resourceMessages)}` : 'user-0';
}
