/**
 * Marks around messages of this thread that were recalled from long before.
 *
 * Spliced into the list as they are, "my appointment is tomorrow" of last year reads like today's.
 * So every run of recalled messages gets a short message before it that tells its date, and what
 * follows it gets one that tells where the conversation goes on. See decision 0031.
 */
import type { MastraDBMessage } from '@mastra/core/agent/message-list';

import { lastOf, textMessage } from './messages.js';

/** How ids of messages begin that only the prompt of this turn has. They are never stored. */
export const NOTE_ID_PREFIX = 'semantic-recall:';

/** One recalled message of this thread. */
export interface RecalledHere {
  readonly message: MastraDBMessage;
  /** Found by the query; else it is a neighbour of one that was. */
  readonly hit: boolean;
}

/** Whose and which conversation. */
export interface Place {
  readonly threadId: string;
  readonly resourceId: string;
}

/** What decides where runs begin and end, and how dates are written. */
export interface GapRules extends Place {
  /** Neighbours that were asked for. */
  readonly before: number;
  readonly after: number;
  readonly timeZone: string;
}

interface Run {
  readonly items: RecalledHere[];
}

/**
 * The recalled messages, oldest first, with the marks between them, in the order in which they are
 * to be added to the list.
 *
 * @param recalled - messages of this thread, oldest first.
 * @param present - what the list holds already, oldest first.
 */
export function withGapMarks(
  recalled: readonly RecalledHere[],
  present: readonly MastraDBMessage[],
  rules: GapRules,
): MastraDBMessage[] {
  const clock = clockOf(rules.timeZone);
  const result: MastraDBMessage[] = [];
  const runs = runsOf(recalled, present, rules, clock);
  for (const [index, run] of runs.entries()) {
    const first = run.items[0]?.message;
    const last = run.items.at(-1)?.message;
    if (first === undefined || last === undefined) continue;
    const previous = lastOf(present, (message) => message.createdAt <= first.createdAt);
    if (!isNextTo(previous, first, leading(run) < rules.before, clock)) {
      const text = `[Recalled from earlier in this conversation: ${clock.minute(first.createdAt)}. What was said in between is left out.]`;
      result.push(note(`gap:${first.id}`, text, first.createdAt, rules));
    }
    result.push(...run.items.map((item) => item.message));
    const next = present.find((message) => message.createdAt > last.createdAt);
    const nextRun = runs[index + 1]?.items[0]?.message;
    const goesOnHere = next !== undefined && !(nextRun && nextRun.createdAt < next.createdAt);
    if (goesOnHere && !isNextTo(next, last, trailing(run) < rules.after, clock)) {
      const text = `[End of what was recalled. The conversation goes on: ${clock.minute(next.createdAt)}.]`;
      result.push(note(`end:${last.id}`, text, last.createdAt, rules));
    }
  }
  return result;
}

/** A message that only this turn's prompt has. */
export function note(
  name: string,
  text: string,
  createdAt: Date,
  { threadId, resourceId }: Place,
): MastraDBMessage {
  const place = { threadId, resourceId };
  return textMessage(`${NOTE_ID_PREFIX}${name}`, 'user', text, createdAt, place);
}

/**
 * Runs of messages that follow one another.
 *
 * The answer does not say what lies between two messages. Between two hits there are as many
 * neighbours as their windows hold together only if the windows do not touch for sure; fewer mean
 * that they overlap. A new day begins a new run too, and so does a message of the list in between.
 */
function runsOf(
  recalled: readonly RecalledHere[],
  present: readonly MastraDBMessage[],
  rules: GapRules,
  clock: Clock,
): Run[] {
  const runs: Run[] = [];
  const breaks = breaksBetweenHits(recalled, rules);
  for (const [index, item] of recalled.entries()) {
    const open = runs.at(-1)?.items;
    const last = open?.at(-1)?.message;
    const continues =
      last !== undefined &&
      !breaks.has(index) &&
      clock.day(last.createdAt) === clock.day(item.message.createdAt) &&
      !present.some((m) => m.createdAt > last.createdAt && m.createdAt < item.message.createdAt);
    if (continues) open?.push(item);
    else runs.push({ items: [item] });
  }
  return runs;
}

/** Positions at which the window of another hit begins that does not overlap the one before. */
function breaksBetweenHits(recalled: readonly RecalledHere[], rules: GapRules): Set<number> {
  const breaks = new Set<number>();
  let lastHit = -1;
  for (const [index, item] of recalled.entries()) {
    if (!item.hit) continue;
    const between = index - lastHit - 1;
    if (lastHit >= 0 && between >= rules.before + rules.after) breaks.add(index - rules.before);
    lastHit = index;
  }
  return breaks;
}

/** Neighbours before the first hit of a run: fewer than asked for where its thread has no more. */
function leading(run: Run): number {
  const first = run.items.findIndex((item) => item.hit);
  return first === -1 ? run.items.length : first;
}

function trailing(run: Run): number {
  const hit = lastOf(run.items, (item) => item.hit);
  return hit === undefined ? run.items.length : run.items.length - 1 - run.items.indexOf(hit);
}

/**
 * Whether a message of the list is next to one end of a run: the window is short there, since what
 * is in the list is left out of it, and it is the same day.
 */
function isNextTo(
  inList: MastraDBMessage | undefined,
  end: MastraDBMessage,
  isShort: boolean,
  clock: Clock,
): boolean {
  return (
    inList !== undefined && isShort && clock.day(inList.createdAt) === clock.day(end.createdAt)
  );
}

interface Clock {
  /** E.g. "2024-02-01". */
  day(date: Date): string;
  /** E.g. "Thursday 2024-02-01 03:05 UTC". */
  minute(date: Date): string;
}

const clocks = new Map<string, Clock>();

/** The same text on every host: neither its zone nor its language counts. */
function clockOf(timeZone: string): Clock {
  const known = clocks.get(timeZone);
  if (known !== undefined) return known;
  const format = new Intl.DateTimeFormat('en-US', {
    timeZone,
    calendar: 'gregory',
    numberingSystem: 'latn',
    weekday: 'long',
    year: 'numeric',
    month: '2-digit',
    day: '2-digit',
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23',
  });
  const read = (date: Date) => {
    const parts = new Map(format.formatToParts(date).map((part) => [part.type, part.value]));
    const part = (type: Intl.DateTimeFormatPartTypes) => parts.get(type) ?? '';
    const day = `${part('year')}-${part('month')}-${part('day')}`;
    return {
      day,
      minute: `${part('weekday')} ${day} ${part('hour')}:${part('minute')} ${timeZone}`,
    };
  };
  const clock: Clock = {
    day: (date) => read(date).day,
    minute: (date) => read(date).minute,
  };
  clocks.set(timeZone, clock);
  return clock;
}
