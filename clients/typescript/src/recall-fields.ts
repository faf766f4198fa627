/** Options of a recall that hold others, checked: for the client's requests and for adapters. */
import * as check from './arguments.js';
import type { MessageRange, Mode, Ranking } from './values.js';

const RANGE: Readonly<Record<keyof MessageRange, true>> = { before: true, after: true };
const RANKING: Readonly<Record<keyof Ranking, true>> = {
  mode: true,
  recencyWeight: true,
  recencyHalfLifeMs: true,
  diversity: true,
  nearDuplicateCosine: true,
};
const MODES: Readonly<Record<Mode, Mode>> = {
  dense: 'dense',
  lexical: 'lexical',
  hybrid: 'hybrid',
};

/** Neighbours before and after a hit; one number is meant for both. Limits are the caller's. */
export function messageRange(value: unknown): { before: number; after: number } {
  if (typeof value === 'number') {
    const both = check.whole(value, 'messageRange');
    return { before: both, after: both };
  }
  const given = check.options<MessageRange>(
    check.fields(value, 'messageRange'),
    RANGE,
    'messageRange',
  );
  return {
    before: check.whole(given['before'] ?? 0, 'messageRange.before'),
    after: check.whole(given['after'] ?? 0, 'messageRange.after'),
  };
}

/** How hits are ranked: what is given of it. Limits are the caller's. */
export function ranking(value: unknown): Ranking {
  const given = check.options<Ranking>(check.fields(value, 'ranking'), RANKING, 'ranking');
  const made: Ranking = {};
  if (given['mode'] !== undefined) made.mode = check.member(MODES, given['mode'], 'ranking.mode');
  for (const name of ['recencyWeight', 'diversity', 'nearDuplicateCosine'] as const) {
    if (given[name] !== undefined) made[name] = check.number(given[name], `ranking.${name}`);
  }
  const halfLife = given['recencyHalfLifeMs'];
  if (halfLife !== undefined) {
    made.recencyHalfLifeMs = check.duration(halfLife, 'ranking.recencyHalfLifeMs');
  }
  return made;
}
