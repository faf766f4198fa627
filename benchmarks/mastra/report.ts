/** What was measured, as a table, as bars, and as the JSON that `benchmarks/report.py` describes. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import type { Layout } from './corpus.ts';
import { ROOT } from './corpus.ts';
import type { Kind, Series } from './measure.ts';

export const OURS = 'SemanticRecall';
const LOOP_HELD_MS_MAX = 5;
const OUTPUT_P50_MS_MAX = 3;
const DIGEST_DIGITS = 16;

/** Least ratios of p50 and of recalls a second, theirs against ours, as each ships. */
const P50_RATIO = { resources: { new: 5, repeated: 8 }, one_user: { 10_000: 12, 50_000: 25 } };
const RATE_CALLERS = 16;

/** One cell of the table: a system, asked in one way. */
export interface Row {
  layout: Layout;
  messages: number;
  kind: Kind | 'output';
  callers: number;
  system: string;
  calls: number;
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
  per_second: number;
  /** p50 by that of SemanticRecall. */
  ratio: number;
  loop_late_ms: number;
  loop_held_ms: number;
}

export interface Bar {
  name: string;
  measured: number;
  limit: number;
  rule: 'at most' | 'at least';
  met: boolean;
}

/** Where a series was measured. */
export type Place = Pick<Row, 'layout' | 'messages' | 'kind' | 'callers'>;

/** Rows of one cell, one for each system. */
export function rowsOf(place: Place, series: readonly Series[]): Row[] {
  const ours = series.find(({ system }) => system === OURS);
  const oursP50 = ours === undefined ? NaN : percentile(ours.callMs, 50);
  return series.map((one) => {
    const p50 = percentile(one.callMs, 50);
    return {
      ...place,
      system: one.system,
      calls: one.callMs.length,
      p50_ms: rounded(p50),
      p95_ms: rounded(percentile(one.callMs, 95)),
      p99_ms: rounded(percentile(one.callMs, 99)),
      per_second: rounded((1_000 * one.callMs.length) / one.wallMs),
      ratio: rounded(p50 / oursP50),
      loop_late_ms: rounded(one.loopLateMs),
      loop_held_ms: rounded(one.loopHeldMs),
    };
  });
}

/** The bars that these rows can be held to. */
export function barsOf(rows: readonly Row[]): Bar[] {
  const bars: Bar[] = [];
  for (const ours of rows.filter(({ system }) => system === OURS)) {
    const place = `${ours.messages} messages, ${ours.layout}, ${ours.kind}`;
    const same = rows.filter((row) => isSamePlace(row, ours) && row.system !== OURS);
    if (same.length === 0) continue;
    const p50Limit = p50LimitOf(ours);
    if (p50Limit !== undefined) {
      const best = Math.min(...same.map((row) => row.p50_ms));
      bars.push(atLeast(`${place}: their best p50 / ours`, best / ours.p50_ms, p50Limit));
    }
    const rateLimit = rateLimitOf(ours);
    if (rateLimit !== undefined) {
      const best = Math.max(...same.map((row) => row.per_second));
      const name = `${place}, ${RATE_CALLERS} callers: recalls/s / their best`;
      bars.push(atLeast(name, ours.per_second / best, rateLimit));
    }
    if (ours.kind === 'output') {
      const name = `${place}: p50 of the output hook, ms`;
      bars.push(atMost(name, ours.p50_ms, OUTPUT_P50_MS_MAX));
    }
  }
  const held = rows.filter(({ system }) => system === OURS).map((row) => row.loop_held_ms);
  bars.push(
    atMost('event loop held by our calls, longest, ms', Math.max(...held), LOOP_HELD_MS_MAX),
  );
  return bars;
}

function isSamePlace(left: Place, right: Place): boolean {
  return (['layout', 'messages', 'kind', 'callers'] as const).every(
    (key) => left[key] === right[key],
  );
}

function p50LimitOf({ layout, messages, kind, callers }: Place): number | undefined {
  if (callers !== 1 || (kind !== 'new' && kind !== 'repeated')) return undefined;
  if (layout === 'resources') return P50_RATIO.resources[kind];
  const limits: Record<number, number> = P50_RATIO.one_user;
  return limits[messages];
}

function rateLimitOf({ layout, kind, callers }: Place): number | undefined {
  if (callers !== RATE_CALLERS || layout !== 'resources') return undefined;
  return kind === 'new' || kind === 'repeated' ? P50_RATIO.resources[kind] : undefined;
}

function atLeast(name: string, measured: number, limit: number): Bar {
  return { name, measured: rounded(measured), limit, rule: 'at least', met: measured >= limit };
}

function atMost(name: string, measured: number, limit: number): Bar {
  return { name, measured: rounded(measured), limit, rule: 'at most', met: measured <= limit };
}

/** The value that so many percent of all are not above. */
export function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((left, right) => left - right);
  return sorted[Math.max(0, Math.ceil((percent / 100) * sorted.length) - 1)] ?? NaN;
}

function rounded(value: number): number {
  return Number(value.toPrecision(4));
}

/** Columns under their names. */
export function tableText(rows: readonly object[]): string {
  const first = rows[0];
  if (first === undefined) return '';
  const cells = [Object.keys(first), ...rows.map((row) => Object.values(row).map(String))];
  const widths = Object.keys(first).map((_, i) =>
    Math.max(...cells.map((line) => line[i]?.length ?? 0)),
  );
  return cells
    .map((line) => line.map((cell, i) => cell.padStart(widths[i] ?? 0)).join('  '))
    .join('\n');
}

/** "met" or not, for people. */
export function barText({ name, measured, limit, rule, met }: Bar): string {
  return `${name}: ${measured} (bar ${rule} ${limit}) ${met ? 'met' : 'NOT MET'}`;
}

/** Hexadecimal digits over what our processor recalled. */
export function digestOf(texts: readonly string[]): string {
  const hash = createHash('sha256');
  for (const text of texts) hash.update(`${text}\n`);
  return hash.digest('hex').slice(0, DIGEST_DIGITS);
}

/** Processor, cores, kernel and Node.js, in one line. */
export async function machine(): Promise<string> {
  const cpuinfo = await readFile('/proc/cpuinfo', 'utf8').catch(() => '');
  const model = os.cpus()[0]?.model ?? 'unknown processor';
  const vnni = cpuinfo.includes('avx512_vnni') ? ', AVX-512 VNNI' : '';
  return `${model}${vnni}, ${os.cpus().length} cores, Linux ${os.release()}, Node.js ${process.versions.node}`;
}

/** Exact versions of what is compared. */
export async function versions(): Promise<Record<string, string>> {
  const directory = path.join(ROOT, 'benchmarks/mastra/package.json');
  const own = JSON.parse(await readFile(directory, 'utf8')) as {
    dependencies: Record<string, string>;
  };
  return own.dependencies;
}
