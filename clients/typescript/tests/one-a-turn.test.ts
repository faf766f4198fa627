/** A burst of steps leaves others their turns of the event loop, and keeps its order. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { OneATurn } from '../src/one-a-turn.js';

test('the first step is taken at once, each other one in a turn of its own', async () => {
  const seen: string[] = [];
  const turns = new OneATurn();
  for (const name of ['a', 'b', 'c']) turns.take(() => seen.push(name));
  assert.deepEqual(seen, ['a']);
  for (const turn of ['first', 'second', 'third']) {
    await nextTurn();
    seen.push(turn);
  }
  assert.deepEqual(seen, ['a', 'b', 'first', 'c', 'second', 'third']);
});

test('a step that comes while others wait is taken after them', async () => {
  const seen: string[] = [];
  const turns = new OneATurn();
  turns.take(() => seen.push('a'));
  turns.take(() => {
    seen.push('b');
    turns.take(() => seen.push('d'));
  });
  turns.take(() => seen.push('c'));
  await nextTurn();
  await nextTurn();
  await nextTurn();
  assert.deepEqual(seen, ['a', 'b', 'c', 'd']);
});

test('after a quiet turn a step is taken at once again', async () => {
  const seen: string[] = [];
  const turns = new OneATurn();
  turns.take(() => seen.push('a'));
  await nextTurn();
  turns.take(() => seen.push('b'));
  assert.deepEqual(seen, ['a', 'b']);
});
