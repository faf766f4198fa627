/**
 * Mastra's own SemanticRecall and ours, asked the same. Ours has to be right; Mastra's has to be as
 * it is known to be, so that what it mends is noticed. What is seen stands in docs/mastra.md:
 * `CONFORMANCE_WRITE=1` writes it there.
 */
import assert from 'node:assert/strict';
import { after, before, suite, test } from 'node:test';

import { startSidecar, type Sidecar } from '../tests/support/sidecar.js';
import { cases } from './cases/index.js';
import type { Observation } from './support/case.js';
import { MastraWorld } from './support/mastra-world.js';
import { OurWorld } from './support/our-world.js';
import { commitTable, committedTable, tableOf, type Row } from './support/table.js';

// Dates in prompts are compared to the byte; a case that needs another zone sets it.
process.env['TZ'] = 'UTC';

suite('conformance with Mastra', () => {
  let sidecar: Sidecar;
  const mastra = new Map<string, Observation>();
  const ours = new Map<string, Observation>();

  before(async () => {
    sidecar = await startSidecar();
  });
  after(async () => {
    await sidecar.stop();
  });

  for (const one of cases) {
    test(`${one.id}, Mastra: known to be ${one.mastra}`, async () => {
      const observation = await one.run((settings) => MastraWorld.open(settings ?? {}));
      mastra.set(one.id, observation);
      assert.equal(
        observation.verdict,
        one.mastra,
        `Mastra 1.71 was known to be ${one.mastra} in ${one.id} (${one.behaviour}); seen now: ${observation.seen}`,
      );
    });

    test(`${one.id}, ours: ${one.behaviour}`, async () => {
      const observation = await one.run((settings) =>
        OurWorld.open(settings ?? {}, sidecar.address),
      );
      ours.set(one.id, observation);
      assert.equal(observation.verdict, one.ours ?? 'right', observation.seen);
    });
  }

  test('docs/mastra.md has the table of this run', async (context) => {
    const rows = cases.flatMap((one): Row[] => {
      const [theirs, own] = [mastra.get(one.id), ours.get(one.id)];
      return theirs === undefined || own === undefined ? [] : [{ one, mastra: theirs, ours: own }];
    });
    if (rows.length < cases.length) {
      context.skip('not every case was run');
      return;
    }
    const table = await tableOf(rows);
    process.stdout.write(`${table}\n`);
    if (process.env['CONFORMANCE_WRITE'] === '1') {
      await commitTable(table);
    }
    assert.equal(await committedTable(), table);
  });
});
