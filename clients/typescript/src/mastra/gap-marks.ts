/**
 * Marks around messages of this thread that were recalled from long before.
 *
 * Spliced into the list as they are, "my appointment is tomorrow" of last year reads like today's.
 * So every run of recalled messages gets a short message before it that tells its date, and one
 * behind it, where the list goes on, that tells today's. See decision 0031.
 */
import { randomUUID } from 'node:crypto';

import type { MastraDBMessage } from '@mastra/core/agent/message-list';

import { isOfUser, lastOf, textMessage } from './messages.js';

/**
 * How ids of messages begin that only the prompt of this turn has. They are never stored. Nobody can
 * know them: a list holds one message of an id, so whoever named theirs alike would lose it.
 */
export const NOTE_ID_PREFIX = `semantic-recall:${randomUUID()}:`;

const LEFT_OUT = 'What was said in between is left out.';

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
  const today = clock.read((lastOf(present, isOfUser) ?? present.at(-1))?.createdAt ?? new Date());
  const result: MastraDBMessage[] = [];
  // Lists may hold thousands, and comparing dates is slow.
  const times = present.map((message) => message.createdAt.getTime());
  const runs = runsOf(recalled, times, rules, clock);
  for (const [index, run] of runs.entries()) {
    const { first, last } = run;
    const previous = present[countUntil(times, first.createdAt) - 1];
    if (!isNextTo(previous, first, run.leading < rules.before, clock)) {
      const { weekday, day, time } = clock.read(first.createdAt);
      const when = `${weekday} ${day} ${time} ${rules.timeZone}`;
      const text = `[Recalled from earlier in this conversation, ${when}. ${LEFT_OUT}]`;
      result.push(note(`gap:${first.id}`, text, first.createdAt, rules));
    }
    result.push(...run.messages);
    const next = present[countUntil(times, last.createdAt)];
    const nextRun = runs[index + 1];
    const isNextHere =
      next !== undefined && (nextRun === undefined || nextRun.first.createdAt > next.createdAt);
    if (isNextHere && !isNextTo(next, last, run.trailing < rules.after, clock)) {
      const text = `[End of what was recalled. Today is ${today.weekday} ${today.day}.]`;
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

/** Messages that follow one another. */
interface Run {
  readonly messages: readonly MastraDBMessage[];
  readonly first: MastraDBMessage;
  readonly last: MastraDBMessage;
  /** Neighbours before its first hit: fewer than asked for where its window is cut. */
  readonly leading: number;
  /** Neighbours after its last hit. */
  readonly trailing: number;
}

/**
 * The recalled messages as runs.
 *
 * The answer does not say what lies between two messages. Where there are as many neighbours
 * between two hits as both windows hold, something may lie between the windows; where there are
 * fewer, the windows overlap. A new day begins a new run too, and so does a message of the list in
 * between.
 */
function runsOf(
  recalled: readonly RecalledHere[],
  times: readonly number[],
  rules: GapRules,
  clock: Clock,
): Run[] {
  const runs: Run[] = [];
  const begins = beginsOfWindows(recalled, rules);
  let open: RecalledHere[] = [];
  for (const [index, item] of recalled.entries()) {
    const last = open.at(-1)?.message;
    const { createdAt } = item.message;
    const continues =
      last !== undefined &&
      !begins.has(index) &&
      clock.isSameDay(last.createdAt, createdAt) &&
      !isAnyBetween(times, last.createdAt, createdAt);
    if (!continues) {
      runs.push(...runOf(open));
      open = [];
    }
    open.push(item);
  }
  return [...runs, ...runOf(open)];
}

/** How many of these times, which are in order, are not after a moment. */
function countUntil(times: readonly number[], moment: Date): number {
  const until = moment.getTime();
  let [from, to] = [0, times.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((times[middle] ?? 0) <= until) from = middle + 1;
    else to = middle;
  }
  return from;
}

function isAnyBetween(times: readonly number[], from: Date, to: Date): boolean {
  const next = times[countUntil(times, from)];
  return next !== undefined && next < to.getTime();
}

function runOf(items: readonly RecalledHere[]): Run[] {
  const messages = items.map((item) => item.message);
  const [first, last] = [messages[0], messages.at(-1)];
  if (first === undefined || last === undefined) return [];
  const hits = items.map((item) => item.hit);
  const firstHit = hits.indexOf(true);
  const none = firstHit === -1;
  const leading = none ? items.length : firstHit;
  const trailing = none ? items.length : items.length - 1 - hits.lastIndexOf(true);
  return [{ messages, first, last, leading, trailing }];
}

/** Positions at which the window of a hit begins that does not overlap the one before. */
function beginsOfWindows(recalled: readonly RecalledHere[], rules: GapRules): Set<number> {
  const begins = new Set<number>();
  let lastHit = -1;
  for (const [index, item] of recalled.entries()) {
    if (!item.hit) continue;
    const between = index - lastHit - 1;
    if (lastHit >= 0 && between >= rules.before + rules.after) begins.add(index - rules.before);
    lastHit = index;
  }
  return begins;
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
  return inList !== undefined && isShort && clock.isSameDay(inList.createdAt, end.createdAt);
}

/** A moment as a wall calendar and a clock show it, e.g. "Thursday", "2024-02-01", "03:05". */
interface Reading {
  readonly weekday: string;
  readonly day: string;
  readonly time: string;
}

interface Clock {
  read(date: Date): Reading;
  isSameDay(one: Date, other: Date): boolean;
}

/** Longer than any day, those included on which clocks are put back. */
const LONGEST_DAY_MS = 26 * 3_600_000;
const WEEKDAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const DAY_MS = 24 * 3_600_000;
const UTC: Clock = { read: readUtc, isSameDay: (one, other) => utcDay(one) === utcDay(other) };
const clocks = new Map<string, Clock>();

/** The same text on every host: neither its zone nor its language counts. */
function clockOf(timeZone: string): Clock {
  if (timeZone === 'UTC') return UTC;
  const known = clocks.get(timeZone);
  if (known !== undefined) return known;
  const read = readerOf(timeZone);
  const clock: Clock = {
    read,
    isSameDay: (one, other) =>
      Math.abs(one.getTime() - other.getTime()) < LONGEST_DAY_MS &&
      read(one).day === read(other).day,
  };
  clocks.set(timeZone, clock);
  return clock;
}

/** Without `Intl`, which takes 15 us a date: there are dozens in a turn. */
function readUtc(date: Date): Reading {
  const iso = date.toISOString();
  const [day = '', time = ''] = iso.split('T');
  return { weekday: WEEKDAYS[date.getUTCDay()] ?? '', day, time: time.slice(0, 5) };
}

/** The number of the day, without its text: every recalled message is asked for its day. */
function utcDay(date: Date): number {
  return Math.floor(date.getTime() / DAY_MS);
}

function readerOf(timeZone: string): (date: Date) => Reading {
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
  return (date) => {
    const parts = new Map(format.formatToParts(date).map((part) => [part.type, part.value]));
    const part = (type: Intl.DateTimeFormatPartTypes) => parts.get(type) ?? '';
    return {
      weekday: part('weekday'),
      day: `${part('year')}-${part('month')}-${part('day')}`,
      time: `${part('hour')}:${part('minute')}`,
    };
  };
}
