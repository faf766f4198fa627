import type { ConformanceCase } from '../support/case.js';
import { matchChanges } from './match-changes.js';
import { matchList } from './match-list.js';
import { matchSearch } from './match-search.js';
import { surpassIndex } from './surpass-index.js';
import { surpassPrompt } from './surpass-prompt.js';
import { surpassSearch } from './surpass-search.js';

function numberOf(id: string): number {
  return Number(id.slice(1));
}

/** What must match, C1 to C13, and what must be surpassed, S1 to S32, in order. */
export const cases: readonly ConformanceCase[] = [
  ...matchSearch,
  ...matchList,
  ...matchChanges,
  ...[...surpassSearch, ...surpassIndex, ...surpassPrompt].sort(
    (a, b) => numberOf(a.id) - numberOf(b.id),
  ),
];
