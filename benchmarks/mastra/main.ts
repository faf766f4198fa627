/**
 * Mastra's own `SemanticRecall` and ours, called at the same hooks of one process.
 *
 * Usage: make bench-mastra [BENCH_ARGS='--sizes 1000,10000 --json FILE']
 *
 * Both are given the same turns: the last ten messages of a thread, and a question. Theirs searches
 * LibSQL files and PostgreSQL with pgvector, and embeds in this process with the sidecar's own
 * model; ours asks a sidecar process on a Unix socket. Settings are as each ships (4 hits with a
 * neighbour on each side, all threads of the user), with the indexes of metadata that Mastra's
 * `Memory` asks of PostgreSQL. What is asked and how is said in `measure.ts`; docs/benchmarks.md
 * says how to read it.
 */
import { rmSync } from 'node:fs';
import { chmod, mkdtemp, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { LAYOUTS, ROOT, makeCorpus, output } from './corpus.ts';
import type { Corpus, Layout } from './corpus.ts';
import { MiniLm, cosine } from './embedder.ts';
import { openLibsql, openPostgres } from './mastra.ts';
import { KINDS, Questions, Speakers, outputInTurns, recallInRounds, warmUp } from './measure.ts';
import type { Budget, Series } from './measure.ts';
import { embedWithSidecar, openOurs } from './ours.ts';
import { hasPostgres, startPostgres } from './processes.ts';
import type { Postgres } from './processes.ts';
import * as report from './report.ts';
import type { Filling, System } from './systems.ts';

const CALLERS = [1, 4, 16] as const;
const COSINE_MIN = 0.999;
const CHECKED_TEXTS = 20;
const WARM_UP_CALLS_MIN = 40;
const MINUTE_MS = 60_000;

const FLAGS = {
  'data-dir': { type: 'string', default: path.join(ROOT, 'benchmarks/mastra/build/data') },
  sizes: { type: 'string', default: '1000,10000,50000' },
  'libsql-messages-max': { type: 'string', default: '10000' },
  'resource-messages': { type: 'string', default: '500' },
  rounds: { type: 'string', default: '3' },
  calls: { type: 'string', default: '40' },
  'round-ms-max': { type: 'string', default: '1000' },
  turns: { type: 'string', default: '60' },
  // Of ours: 'dense' looks for vectors alone, as the original does.
  ranking: { type: 'string', default: 'hybrid' },
  queries: { type: 'string', default: '20000' },
  seed: { type: 'string', default: '7' },
  smoke: { type: 'boolean', default: false },
  json: { type: 'string' },
} as const;

const SMOKE = {
  sizes: '100,200',
  'resource-messages': '100',
  rounds: '1',
  calls: '3',
  turns: '2',
  queries: '2000',
};

interface Config {
  dataDir: string;
  sizes: number[];
  libsqlMessagesMax: number;
  resourceMessages: number;
  budget: Budget;
  turns: number;
  ranking: 'hybrid' | 'dense';
  queries: number;
  seed: number;
  smoke: boolean;
  json: string | undefined;
}

interface Found {
  rows: report.Row[];
  samples: string[];
}

/** What every store is opened with. */
interface Surroundings {
  config: Config;
  corpus: Corpus;
  directory: string;
  embedder: MiniLm;
  postgres: Postgres | undefined;
}

async function main(): Promise<void> {
  const config = configOf(process.argv.slice(2));
  const corpus = await makeCorpus(config);
  const directory = await mkdtemp(path.join(os.tmpdir(), 'bench-mastra-'));
  // PostgreSQL runs as another user, and has a directory of its own in it.
  await chmod(directory, 0o755);
  process.on('exit', () => {
    rmSync(directory, { recursive: true, force: true });
  });
  await measure(config, corpus, directory);
}

async function measure(config: Config, corpus: Corpus, directory: string): Promise<void> {
  const model = (await output('semanticrecall', ['model', 'path'])).trim();
  const embedder = await MiniLm.open(model);
  const agreement = await agreementOf(corpus, directory, embedder);
  const loadBefore = os.loadavg()[0] ?? 0;
  const postgres = (await hasPostgres())
    ? await startPostgres(path.join(directory, 'postgres'))
    : undefined;
  const found: Found = { rows: [], samples: [] };
  const written = (): Promise<Result> =>
    resultOf(config, found, {
      'cosine of vectors made here and by the sidecar, least': agreement,
      'load of the machine before, mean of a minute': loadBefore,
      'a text embedded here, p50 ms': report.percentile(embedder.embedMs, 50),
      PostgreSQL: postgres?.version ?? 'not there: LibSQL alone',
    });
  const surroundings = { config, corpus, directory, embedder, postgres };
  try {
    for (const size of config.sizes) {
      for (const layout of LAYOUTS) {
        await measureStore(surroundings, { size, layout }, found);
        await save(config, await written());
      }
    }
  } finally {
    await postgres?.stop();
  }
  print(await written());
}

/** The model must be the same on both sides. */
async function agreementOf(corpus: Corpus, directory: string, embedder: MiniLm): Promise<number> {
  const texts = corpus.queries.slice(0, CHECKED_TEXTS);
  const theirs = await embedWithSidecar(directory, texts);
  const cosines: number[] = [];
  for (const [number, text] of texts.entries()) {
    const { embeddings } = await embedder.doEmbed({ values: [text] });
    cosines.push(cosine(embeddings[0] ?? [], theirs[number] ?? []));
  }
  const least = Math.min(...cosines);
  if (!(least >= COSINE_MIN)) throw new Error(`the models differ: cosine ${least}`);
  return least;
}

async function measureStore(
  surroundings: Surroundings,
  { size, layout }: { size: number; layout: Layout },
  found: Found,
): Promise<void> {
  const { config, corpus } = surroundings;
  const { resourceMessages, budget, turns } = config;
  const filling = { corpus, layout, size, resourceMessages };
  const started = performance.now();
  const systems = await openAll(surroundings, filling);
  try {
    progress(`${size} messages, ${layout}: filled in ${seconds(started)} s`);
    const speakers = new Speakers(filling);
    const questions = new Questions(corpus.queries);
    const add = (place: report.Place, series: readonly Series[]): void => {
      found.rows.push(...report.rowsOf(place, series));
      found.samples.push(...series.filter(isOurs).map(({ sample }) => sample));
    };
    await warmUp(systems, speakers, questions, Math.max(WARM_UP_CALLS_MIN, speakers.count));
    for (const callers of CALLERS) {
      for (const kind of KINDS) {
        const cell = { kind, callers, budget };
        const series = await recallInRounds(systems, speakers, questions, cell);
        add({ layout, messages: size, kind, callers }, series);
      }
    }
    const output = { turns, msMax: MINUTE_MS };
    const series = await outputInTurns(systems, speakers, questions, output);
    add({ layout, messages: size, kind: 'output', callers: 1 }, series);
    progress(`${size} messages, ${layout}: measured after ${seconds(started)} s`);
  } finally {
    for (const system of systems) await system.close();
  }
}

async function openAll(surroundings: Surroundings, filling: Filling): Promise<System[]> {
  const { config, corpus, directory, embedder, postgres } = surroundings;
  const systems = [await openOurs(directory, filling, config.ranking)];
  if (postgres !== undefined) systems.push(await openPostgres(postgres, filling, embedder));
  if (filling.size <= config.libsqlMessagesMax) {
    const shape = `${config.resourceMessages}-${corpus.name}`;
    const kept = path.join(config.dataDir, `libsql-${shape}`);
    systems.push(await openLibsql(kept, directory, filling, embedder));
  }
  return systems;
}

function isOurs({ system }: Series): boolean {
  return system === report.OURS;
}

/** As `benchmarks/report.py` describes it. */
interface Result {
  script: string;
  command: string;
  smoke: boolean;
  machine: string;
  versions: Record<string, string>;
  config: Record<string, unknown>;
  skipped: string;
  latencies_ms: Record<string, never>;
  figures: Record<string, number | string>;
  bars: report.Bar[];
  tables: { mastra: report.Row[] };
  charts: never[];
  answers_digest: string;
}

async function resultOf(
  config: Config,
  found: Found,
  figures: Record<string, number | string>,
): Promise<Result> {
  const { dataDir, smoke, budget, ...shown } = config;
  return {
    script: 'mastra',
    command: commandOf(process.argv.slice(2)),
    smoke,
    machine: await report.machine(),
    versions: await report.versions(),
    // Where the file goes is not among what it says.
    config: { ...shown, ...budget, json: undefined, dataDir: path.relative(ROOT, dataDir) },
    skipped: '',
    latencies_ms: {},
    figures,
    bars: report.barsOf(found.rows),
    tables: { mastra: found.rows },
    charts: [],
    answers_digest: report.digestOf(found.samples),
  };
}

/** What repeats a run. */
function commandOf(args: readonly string[]): string {
  const kept = args.filter((arg, i) => !arg.startsWith('--json') && args[i - 1] !== '--json');
  return ['make bench-mastra', ...(kept.length > 0 ? [`BENCH_ARGS='${kept.join(' ')}'`] : [])].join(
    ' ',
  );
}

/** After each store: what is measured is there, whatever happens to the rest. */
async function save({ json }: Config, result: Result): Promise<void> {
  if (json === undefined) return;
  await writeFile(path.resolve(ROOT, json), `${JSON.stringify(result, null, 1)}\n`);
}

function print(result: Result): void {
  const smoke = 'A smoke run: it shows that everything runs; its figures mean nothing.';
  const lines = [
    `mastra  ${result.machine}`,
    `config: ${JSON.stringify(result.config)}`,
    ...(result.smoke ? [smoke] : []),
    ...Object.entries(result.figures).map(([name, figure]) => `${name}: ${figure}`),
    '',
    report.tableText(result.tables.mastra),
    '',
    ...result.bars.map(report.barText),
    `answers ${result.answers_digest}`,
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
}

function configOf(args: readonly string[]): Config {
  const { values } = parseArgs({ args: [...args], options: FLAGS, strict: true });
  const given = new Set(args.map((arg) => arg.replace(/^--([^=]*).*$/, '$1')));
  const text = (name: keyof typeof values): string => {
    const smoke: string | undefined = (SMOKE as Record<string, string>)[name];
    const chosen = values.smoke && !given.has(name) ? (smoke ?? values[name]) : values[name];
    return String(chosen);
  };
  const count = (name: keyof typeof values): number => {
    const number = Number(text(name));
    if (!Number.isSafeInteger(number) || number < 1) throw new Error(`--${name}: 1 or more`);
    return number;
  };
  const sizes = text('sizes').split(',').map(Number);
  if (sizes.some((size) => !Number.isSafeInteger(size) || size < 1)) {
    throw new Error('--sizes: numbers of messages, by commas');
  }
  const ranking = text('ranking');
  if (ranking !== 'hybrid' && ranking !== 'dense') throw new Error('--ranking: hybrid or dense');
  const dataDir = path.resolve(ROOT, text('data-dir'));
  return {
    dataDir: values.smoke ? path.join(dataDir, 'smoke') : dataDir,
    sizes,
    libsqlMessagesMax: count('libsql-messages-max'),
    resourceMessages: count('resource-messages'),
    budget: {
      rounds: count('rounds'),
      calls: count('calls'),
      roundMsMax: count('round-ms-max'),
    },
    turns: count('turns'),
    ranking,
    queries: count('queries'),
    seed: count('seed'),
    smoke: values.smoke,
    json: values.json,
  };
}

function progress(line: string): void {
  process.stderr.write(`${line}\n`);
}

function seconds(startedMs: number): string {
  return ((performance.now() - startedMs) / 1_000).toFixed(1);
}

// What was started ends with this process; see `processes.ts`.
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => process.exit(1));
}
await main();
