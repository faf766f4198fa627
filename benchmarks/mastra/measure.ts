/** Rounds of calls: every system in turn, so that noise of the machine falls on all alike. */
import type { StoredMessage } from './corpus.ts';
import { ownerOf } from './corpus.ts';
import { LoopWatch } from './loop-watch.ts';
import type { LoopTimes } from './loop-watch.ts';
import type { Filling, System } from './systems.ts';
import type { Turn, Speaker } from './turn.ts';
import { answered, recalledText, turnOf } from './turn.ts';

export const KINDS = ['new', 'embedded', 'repeated'] as const;

/**
 * What is asked: a question that nobody asked before; one whose vector is cached, which takes the
 * embedding out of every system; one that was asked just before.
 */
export type Kind = (typeof KINDS)[number];

export interface Budget {
  rounds: number;
  /** Calls of each system in a round, by one caller; more callers make more, and repeated ones are. */
  calls: number;
  /** After so long no further call begins in a round. */
  roundMsMax: number;
}

/** What was seen of one system. */
export interface Series {
  system: string;
  /** Of every call. */
  callMs: number[];
  /** Of all rounds together, from the first call to the last answer. */
  wallMs: number;
  /** See `LoopTimes`. */
  loopLateMs: number;
  loopHeldMs: number;
  /** The text that was recalled, of the first question. */
  sample: string;
}

/** A question, and the number of the user who asks it. */
interface Asked {
  user: number;
  question: string;
}

const HISTORY_MESSAGES = 10;
const REPEATED_QUESTIONS = 20;
const CALLS_GROWTH_MAX = 4;
/** Asked again a question is quick: so many times the calls, that a round lasts long enough to count. */
const REPEATED_CALLS_GROWTH = 8;

/** Hands out questions, each of them once. */
export class Questions {
  #next = 0;
  readonly #texts: readonly string[];

  constructor(texts: readonly string[]) {
    this.#texts = texts;
  }

  take(count: number): string[] {
    const taken = this.#texts.slice(this.#next, this.#next + count);
    if (taken.length < count) throw new Error('there are too few questions: raise --queries');
    this.#next += count;
    return taken;
  }
}

/** Who asks, and what is in the prompt already: the end of a thread of theirs. */
export class Speakers {
  readonly #known: { speaker: Speaker; history: StoredMessage[] }[] = [];

  constructor({ corpus, layout, size, resourceMessages }: Filling) {
    const seen = new Map<string, { speaker: Speaker; history: StoredMessage[] }>();
    corpus.messages.slice(0, size).forEach((message, number) => {
      const resourceId = ownerOf(layout, resourceMessages, number);
      const { threadId } = message;
      const last = seen.get(resourceId);
      const history = last?.speaker.threadId === threadId ? last.history : [];
      history.push(message);
      if (history.length > HISTORY_MESSAGES) history.shift();
      seen.set(resourceId, { speaker: { resourceId, threadId }, history });
    });
    this.#known = [...seen.values()];
  }

  get count(): number {
    return this.#known.length;
  }

  /** A turn of the user of this number; numbers go round. */
  turn(user: number, question: string): Turn {
    const { speaker, history } = this.#of(user);
    return turnOf(history, question, speaker);
  }

  resourceOf(user: number): string {
    return this.#of(user).speaker.resourceId;
  }

  #of(user: number): { speaker: Speaker; history: StoredMessage[] } {
    const found = this.#known[user % this.#known.length];
    if (found === undefined) throw new Error('the store is empty');
    return found;
  }
}

/** Asks every system the same questions, in rounds; the first system begins another round each. */
export async function recallInRounds(
  systems: readonly System[],
  speakers: Speakers,
  questions: Questions,
  cell: { kind: Kind; callers: number; budget: Budget },
): Promise<Series[]> {
  const { kind, callers, budget } = cell;
  const calls = budget.calls * Math.min(callers, CALLS_GROWTH_MAX);
  const series = new Map(systems.map(({ name }) => [name, emptySeries(name)]));
  const repeated = kind === 'repeated' ? questions.take(REPEATED_QUESTIONS) : [];
  for (let round = 0; round < budget.rounds; round += 1) {
    const asked =
      kind === 'repeated'
        ? cycled(numbered(repeated), calls * REPEATED_CALLS_GROWTH)
        : numbered(questions.take(calls));
    for (let i = 0; i < systems.length; i += 1) {
      const system = systems[(i + round) % systems.length];
      const seen = system && series.get(system.name);
      if (system === undefined || seen === undefined) continue;
      if (kind === 'new') system.forgetVectors();
      if (kind === 'embedded') await embedAll(system, speakers, asked);
      if (kind === 'repeated' && round === 0) await askAll(system, speakers, numbered(repeated));
      const turns = asked.map(({ user, question }) => speakers.turn(user, question));
      await askTurns(system, turns, callers, { seen, msMax: budget.roundMsMax });
    }
  }
  return [...series.values()];
}

/** Asks once for each of some users, or so often, so that all is loaded. */
export async function warmUp(
  systems: readonly System[],
  speakers: Speakers,
  questions: Questions,
  times: number,
): Promise<void> {
  const asked = numbered(questions.take(times));
  for (const system of systems) await askAll(system, speakers, asked);
}

/** The output hook after the input hook of a new question, one turn after the other. */
export async function outputInTurns(
  systems: readonly System[],
  speakers: Speakers,
  questions: Questions,
  { turns, msMax }: { turns: number; msMax: number },
): Promise<Series[]> {
  const said = questions.take(turns);
  const replies = questions.take(turns).map((text) => `I noted this: ${text}`);
  const series: Series[] = [];
  for (const system of systems) {
    system.forgetVectors();
    const seen = emptySeries(system.name);
    const until = performance.now() + msMax;
    for (let i = 0; i < turns && performance.now() < until; i += 1) {
      const turn = speakers.turn(i, said[i] ?? '');
      await system.hooks.processInput(turn);
      const ended = answered(turn, replies[i] ?? '');
      const watch = LoopWatch.start();
      const began = performance.now();
      await system.hooks.processOutputResult(ended);
      seen.callMs.push(performance.now() - began);
      note(seen, watch.stop());
    }
    seen.wallMs = seen.callMs.reduce((sum, ms) => sum + ms, 0);
    refuseFailures(system);
    series.push(seen);
  }
  return series;
}

async function askTurns(
  system: System,
  turns: readonly Turn[],
  callers: number,
  { seen, msMax }: { seen: Series; msMax: number },
): Promise<void> {
  globalThis.gc?.();
  let next = 0;
  const watch = LoopWatch.start();
  const began = performance.now();
  const caller = async (): Promise<void> => {
    while (next < turns.length && performance.now() - began < msMax) {
      const turn = turns[next++] as Turn;
      const started = performance.now();
      await system.hooks.processInput(turn);
      seen.callMs.push(performance.now() - started);
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  seen.wallMs += performance.now() - began;
  note(seen, watch.stop());
  for (const turn of turns.slice(0, next)) refuseNothing(system, turn);
  seen.sample ||= recalledText(turns[0] as Turn);
}

async function askAll(system: System, speakers: Speakers, asked: readonly Asked[]): Promise<void> {
  for (const { user, question } of asked) {
    await system.hooks.processInput(speakers.turn(user, question));
    refuseFailures(system);
  }
}

async function embedAll(
  system: System,
  speakers: Speakers,
  asked: readonly Asked[],
): Promise<void> {
  for (const { user, question } of asked) {
    await system.embed(speakers.resourceOf(user), question);
  }
}

function refuseNothing(system: System, turn: Turn): void {
  if (recalledText(turn) === '') throw new Error(`${system.name} recalled nothing`);
  refuseFailures(system);
}

function refuseFailures(system: System): void {
  if (system.failures() > 0) throw new Error(`${system.name} failed; its own words are above`);
}

/** What a watch has seen, added to what was the worst before. */
function note(seen: Series, { lateMs, heldMs }: LoopTimes): void {
  seen.loopLateMs = Math.max(seen.loopLateMs, lateMs);
  seen.loopHeldMs = Math.max(seen.loopHeldMs, heldMs);
}

function numbered(questions: readonly string[]): Asked[] {
  return questions.map((question, user) => ({ user, question }));
}

function cycled(asked: readonly Asked[], count: number): Asked[] {
  return Array.from({ length: count }, (_, number) => asked[number % asked.length] as Asked);
}

function emptySeries(system: string): Series {
  return { system, callMs: [], wallMs: 0, loopLateMs: 0, loopHeldMs: 0, sample: '' };
}
