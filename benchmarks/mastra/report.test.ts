/** The arithmetic of the report: percentiles, ratios, and which bars are held and met. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { barsOf, percentile, rowsOf } from './report.ts';
import type { Place } from './report.ts';

const NEW: Place = { layout: 'resources', messages: 1_000, kind: 'new', callers: 1 };

/** Series of one cell: each system with the duration of its calls, one after the other. */
function series(durations: Record<string, number[]>, loopHeldMs = 1) {
  return Object.entries(durations).map(([system, callMs]) => ({
    system,
    callMs,
    wallMs: callMs.reduce((sum, ms) => sum + ms, 0),
    loopLateMs: 2 * loopHeldMs,
    loopHeldMs,
    sample: '',
  }));
}

void test('a percentile is a value that was measured', () => {
  const values = [5, 1, 4, 2, 3];
  assert.deepEqual(
    [0, 20, 50, 99, 100].map((percent) => percentile(values, percent)),
    [1, 1, 3, 5, 5],
  );
  assert.ok(Number.isNaN(percentile([], 50)));
});

void test('rows say how often each system answered, and how its p50 compares', () => {
  const rows = rowsOf(NEW, series({ SemanticRecall: [2, 2, 2], PostgreSQL: [10, 20, 30] }));
  assert.deepEqual(
    rows.map(({ system, p50_ms, per_second, ratio }) => [system, p50_ms, per_second, ratio]),
    [
      ['SemanticRecall', 2, 500, 1],
      ['PostgreSQL', 20, 50, 10],
    ],
  );
});

void test('the bar of a cell is held against the best of the others', () => {
  const measured = { SemanticRecall: [2], PostgreSQL: [12], LibSQL: [9] };
  const [p50, loop] = barsOf(rowsOf(NEW, series(measured)));
  assert.deepEqual([p50?.measured, p50?.limit, p50?.met], [4.5, 5, false]);
  assert.deepEqual([loop?.measured, loop?.limit, loop?.met], [1, 5, true]);
});

void test('each size and way of asking has its own bar, and some have none', () => {
  const measured = series({ SemanticRecall: [1], PostgreSQL: [20] }, 6);
  const limitOf = (place: Partial<Place>): (number | undefined)[] =>
    barsOf(rowsOf({ ...NEW, ...place }, measured)).map(({ limit }) => limit);
  assert.deepEqual(limitOf({ kind: 'repeated' }), [8, 5]);
  assert.deepEqual(limitOf({ kind: 'embedded' }), [5]);
  assert.deepEqual(limitOf({ callers: 4 }), [5]);
  assert.deepEqual(limitOf({ callers: 16 }), [5, 5]);
  assert.deepEqual(limitOf({ callers: 16, kind: 'repeated' }), [8, 5]);
  assert.deepEqual(limitOf({ layout: 'one_user' }), [5]);
  assert.deepEqual(limitOf({ layout: 'one_user', messages: 10_000 }), [12, 5]);
  assert.deepEqual(limitOf({ layout: 'one_user', messages: 50_000 }), [25, 5]);
  assert.deepEqual(limitOf({ kind: 'output' }), [3, 5]);
});

void test('a rate is compared with the best rate, and a loop held too long misses its bar', () => {
  const place: Place = { ...NEW, callers: 16 };
  const rows = rowsOf(place, series({ SemanticRecall: [1], PostgreSQL: [4], LibSQL: [8] }, 6));
  const [rate, loop] = barsOf(rows);
  assert.deepEqual([rate?.measured, rate?.met], [4, false]);
  assert.deepEqual([loop?.measured, loop?.met], [6, false]);
});
