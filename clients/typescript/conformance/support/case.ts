import type { World, WorldSettings } from './world.js';

/**
 * Whether a system does what it should. `outside`: the behaviour cannot be shown through this
 * system's seam here; the observation says why, and what holds instead.
 */
export type Verdict = 'right' | 'wrong' | 'outside';

/** What was seen of one system. */
export interface Observation {
  readonly verdict: Verdict;
  /** In few words, the same in every run. */
  readonly seen: string;
}

/** Opens an empty world of the system that the case is run against. */
export type OpenWorld = (settings?: WorldSettings) => Promise<World>;

/** One behaviour, and how it is looked at: the same for both systems. */
export interface ConformanceCase {
  readonly id: string;
  /** What is right, in one line. */
  readonly behaviour: string;
  /** What Mastra's own processor is known to do. */
  readonly mastra: Verdict;
  /** What ours has to be. Default "right". */
  readonly ours?: 'outside';
  run(open: OpenWorld): Promise<Observation>;
}

/** An observation that is right where the condition holds; `otherwise` says what was seen instead. */
export function observed(right: boolean, seen: string, otherwise = seen): Observation {
  return right ? { verdict: 'right', seen } : { verdict: 'wrong', seen: otherwise };
}

/** An observation of what cannot be shown here. */
export function outside(seen: string): Observation {
  return { verdict: 'outside', seen };
}

/** How many of these words a text holds. */
export function countOf(text: string, words: readonly string[]): number {
  return words.filter((word) => text.includes(word)).length;
}

/** Which of these words a text holds, joined by a comma; `nothing` where it is none. */
export function foundIn(text: string, words: readonly string[]): string {
  return words.filter((word) => text.includes(word)).join(', ') || 'nothing';
}
