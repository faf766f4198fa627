/** Marks around what was recalled from long before, in this thread. No sidecar. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { MessageList } from '@mastra/core/agent/message-list';

import type { GapRules, RecalledHere } from '../src/mastra/gap-marks.js';
import { NOTE_ID_PREFIX, withGapMarks } from '../src/mastra/gap-marks.js';
import { said } from './support/mastra.js';

const RULES: GapRules = {
  threadId: 'thread-1',
  resourceId: 'user-1',
  before: 1,
  after: 1,
  timeZone: 'UTC',
};
const NOW = said('user', 'And now?', { id: 'now', createdAt: new Date('2024-05-06T07:08:00Z') });

function at(time: string, id: string, hit: boolean): RecalledHere {
  return { message: said('user', id, { id, createdAt: new Date(time) }), hit };
}

/** What the prompt would show: marks as they are, messages by their ids. */
function shown(recalled: readonly RecalledHere[], present = [NOW], rules = RULES): string[] {
  return withGapMarks(recalled, present, rules).map((message) =>
    message.id.startsWith('semantic-recall:') ? (message.content.content ?? '') : message.id,
  );
}

const LEFT_OUT = 'What was said in between is left out.]';
const END = '[End of what was recalled. Today is Monday 2024-05-06.]';

describe('marks of gaps', () => {
  test('one run: its date before it, today behind it', () => {
    const window = [
      at('2023-02-01T03:05:00Z', 'a', false),
      at('2023-02-01T03:06:00Z', 'hit', true),
      at('2023-02-01T03:07:00Z', 'b', false),
    ];
    assert.deepEqual(shown(window), [
      `[Recalled from earlier in this conversation, Wednesday 2023-02-01 03:05 UTC. ${LEFT_OUT}`,
      'a',
      'hit',
      'b',
      END,
    ]);
  });

  test('dates are of the zone that was asked for, whatever the zone of the host', () => {
    const window = [at('2024-02-01T03:05:00Z', 'hit', true)];
    const rules = { ...RULES, timeZone: 'America/Los_Angeles' };
    const when = 'Wednesday 2024-01-31 19:05 America/Los_Angeles';
    assert.equal(
      shown(window, [NOW], rules)[0],
      `[Recalled from earlier in this conversation, ${when}. ${LEFT_OUT}`,
    );
  });

  test('two windows that do not overlap are two runs, two that do are one', () => {
    const first = [at('2023-02-01T01:00:00Z', 'h1', true), at('2023-02-01T01:01:00Z', 'a', false)];
    const second = [at('2023-02-01T02:00:00Z', 'b', false), at('2023-02-01T02:01:00Z', 'h2', true)];
    assert.deepEqual(shown([...first, ...second]), [
      `[Recalled from earlier in this conversation, Wednesday 2023-02-01 01:00 UTC. ${LEFT_OUT}`,
      'h1',
      'a',
      `[Recalled from earlier in this conversation, Wednesday 2023-02-01 02:00 UTC. ${LEFT_OUT}`,
      'b',
      'h2',
      END,
    ]);
    assert.equal(shown([...first, ...second.slice(1)]).length, 5);
  });

  test('another day is another run', () => {
    const days = [at('2023-02-01T23:59:00Z', 'a', false), at('2023-02-02T00:01:00Z', 'hit', true)];
    assert.deepEqual(
      shown(days).map((line) => line.slice(0, 72)),
      [
        '[Recalled from earlier in this conversation, Wednesday 2023-02-01 23:59 ',
        'a',
        '[Recalled from earlier in this conversation, Thursday 2023-02-02 00:01 U',
        'hit',
        END,
      ],
    );
  });

  test('what is next to the list needs no mark', () => {
    const history = [
      said('user', 'next', { id: 'next', createdAt: new Date('2024-05-06T06:02:00Z') }),
      NOW,
    ];
    // Nobody stands between the hit and the history: else a neighbour would be here.
    const window = [
      at('2024-05-06T06:00:00Z', 'a', false),
      at('2024-05-06T06:01:00Z', 'hit', true),
    ];
    assert.deepEqual(shown(window, history).slice(1), ['a', 'hit']);
    // A whole window: something may stand between.
    const whole = [...window, at('2024-05-06T06:01:30Z', 'b', false)];
    assert.deepEqual(shown(whole, history).slice(1), ['a', 'hit', 'b', END]);
  });

  test("lie in Mastra's list where they belong, and belong to no one's turn", () => {
    const list = new MessageList({ threadId: 'thread-1', resourceId: 'user-1' });
    list.add(NOW, 'input');
    const window = [
      at('2023-02-01T03:05:00Z', 'one', true),
      at('2023-06-01T00:00:00Z', 'two', true),
    ];
    list.add(withGapMarks(window, list.get.all.db(), { ...RULES, before: 0, after: 0 }), 'memory');
    assert.deepEqual(
      list.get.all.db().map((message) => message.id),
      [
        `${NOTE_ID_PREFIX}gap:one`,
        'one',
        `${NOTE_ID_PREFIX}gap:two`,
        'two',
        `${NOTE_ID_PREFIX}end:two`,
        'now',
      ],
    );
    assert.deepEqual(
      list.drainUnsavedMessages().map((message) => message.id),
      ['now'],
    );
  });
});
