import { readFile, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';

import type { ConformanceCase, Observation } from './case.js';

/** One case, and what was seen of each system. */
export interface Row {
  readonly one: ConformanceCase;
  readonly mastra: Observation;
  readonly ours: Observation;
}

const BEGIN = '<!-- conformance: begin -->';
const END = '<!-- conformance: end -->';
// From build/conformance/support, where this runs.
const PAGE = new URL('../../../../../docs/mastra.md', import.meta.url);

function cell({ verdict, seen }: Observation): string {
  const text = seen.replaceAll('|', '\\|').replaceAll('<', '&lt;');
  switch (verdict) {
    case 'right':
      return text;
    case 'wrong':
      return `**wrong**: ${text}`;
    case 'outside':
      return `not shown here: ${text}`;
  }
}

async function versionOf(name: string): Promise<string> {
  const main = createRequire(import.meta.url).resolve(name);
  const root = main.slice(0, main.lastIndexOf(`/node_modules/${name}/`));
  const manifest = await readFile(`${root}/node_modules/${name}/package.json`, 'utf8');
  const version = /"version": *"([^"]+)"/.exec(manifest)?.[1];
  return `\`${name}\` ${version ?? 'of an unknown version'}`;
}

/** The table as it stands in docs/mastra.md, between the markers. */
export async function tableOf(rows: readonly Row[]): Promise<string> {
  const versions = await Promise.all(
    ['@mastra/core', '@mastra/memory', '@mastra/libsql'].map(versionOf),
  );
  const wrong = rows.filter((row) => row.mastra.verdict === 'wrong').length;
  const shown = rows.filter((row) => row.mastra.verdict !== 'outside').length;
  const shownHere = rows.filter((row) => row.ours.verdict !== 'outside').length;
  return [
    `Run on ${versions.join(', ')}: wrong there in ${wrong} of ${shown}, here in ${
      rows.filter((row) => row.ours.verdict === 'wrong').length
    } of ${shownHere}.`,
    '',
    '| | what is right | Mastra | SemanticRecall |',
    '|---|---|---|---|',
    ...rows.map(
      ({ one, mastra, ours }) =>
        `| ${one.id} | ${one.behaviour.replaceAll('|', '\\|')} | ${cell(mastra)} | ${cell(ours)} |`,
    ),
  ].join('\n');
}

/** What stands between the markers of docs/mastra.md. */
export async function committedTable(): Promise<string> {
  const page = await readFile(PAGE, 'utf8');
  const [begin, end] = [page.indexOf(BEGIN), page.indexOf(END)];
  if (begin < 0 || end < begin) {
    throw new Error(`docs/mastra.md has no ${BEGIN} … ${END}`);
  }
  return page.slice(begin + BEGIN.length, end).trim();
}

/** Puts a table between the markers of docs/mastra.md. */
export async function commitTable(table: string): Promise<void> {
  const page = await readFile(PAGE, 'utf8');
  const committed = await committedTable();
  const begin = page.indexOf(BEGIN) + BEGIN.length;
  const rest = page.slice(begin).replace(committed, '').trimStart();
  await writeFile(PAGE, `${page.slice(0, begin)}\n\n${table}\n\n${rest}`);
}
