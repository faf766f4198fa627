/**
 * What callers pass, checked in one place: each function names its argument and how to mend it.
 *
 * Types are gone at run time, and plain JavaScript has none: so everything is taken as `unknown`.
 * Nothing here repeats a text of the caller: an error may end up in a log.
 */
import { InvalidArgumentError } from './errors.js';
import type { JsonObject, JsonValue } from './values.js';

const UINT32_MAX = 2 ** 32 - 1;
// What a timer of Node can wait: 24 days.
const TIMER_MS_MAX = 2 ** 31 - 1;
const JSON_LEVELS_MAX = 32;
const LONE_SURROGATE = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/;

/** An object whose fields are not known yet. */
export type Fields = Readonly<Record<string, unknown>>;

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  if (typeof value === 'object') return 'an object of another kind';
  return typeof value;
}

function wrong(field: string, expected: string, value: unknown): InvalidArgumentError {
  return InvalidArgumentError.of(field, `must be ${expected}, not ${kindOf(value)}`);
}

/** A string that UTF-8 can carry. */
export function text(value: unknown, field: string): string {
  if (typeof value !== 'string') throw wrong(field, 'a string', value);
  if (LONE_SURROGATE.test(value)) {
    throw InvalidArgumentError.of(field, 'holds a lone surrogate, which UTF-8 cannot carry');
  }
  return value;
}

/** True or false. */
export function flag(value: unknown, field: string): boolean {
  if (typeof value !== 'boolean') throw wrong(field, 'true or false', value);
  return value;
}

/** Bytes. */
export function octets(value: unknown, field: string): Uint8Array {
  if (!(value instanceof Uint8Array)) throw wrong(field, 'a Uint8Array', value);
  return value;
}

/** A whole number that the wire holds. */
export function whole(value: unknown, field: string, least = 0): number {
  if (typeof value !== 'number') throw wrong(field, 'a whole number', value);
  if (!Number.isInteger(value)) throw InvalidArgumentError.of(field, 'must be a whole number');
  if (value < least) throw InvalidArgumentError.of(field, `must be ${least} or more`);
  if (value > UINT32_MAX) throw InvalidArgumentError.of(field, `must be at most ${UINT32_MAX}`);
  return value;
}

/** A finite number; its range is the server's to say. */
export function number(value: unknown, field: string): number {
  if (typeof value !== 'number') throw wrong(field, 'a number', value);
  if (!Number.isFinite(value)) throw InvalidArgumentError.of(field, 'must be a finite number');
  return value;
}

/** A function to call. */
export function callback(value: unknown, field: string): void {
  if (typeof value !== 'function') throw wrong(field, 'a function', value);
}

/** What ends a call from outside. */
export function abortSignal(value: unknown, field: string): AbortSignal {
  if (!(value instanceof AbortSignal)) throw wrong(field, 'an AbortSignal', value);
  return value;
}

/** A positive number of milliseconds that a timer can wait. */
export function milliseconds(value: unknown, field: string): number {
  const given = number(value, field);
  if (given <= 0 || given > TIMER_MS_MAX) {
    throw InvalidArgumentError.of(field, `must be above 0, at most ${TIMER_MS_MAX} milliseconds`);
  }
  return given;
}

/** A length of time in milliseconds; its range is the server's to say. */
export function duration(value: unknown, field: string): number {
  const given = number(value, field);
  if (given <= 0) throw InvalidArgumentError.of(field, 'must be a positive number of milliseconds');
  return given;
}

/** A moment. */
export function moment(value: unknown, field: string): Date {
  if (!(value instanceof Date)) throw wrong(field, 'a Date', value);
  if (Number.isNaN(value.getTime())) throw InvalidArgumentError.of(field, 'is an invalid Date');
  return value;
}

/** A moment in nanoseconds since 1970. */
export function nanoseconds(value: unknown, field: string): bigint {
  if (typeof value !== 'bigint') throw wrong(field, 'a bigint of nanoseconds', value);
  return value;
}

/** A plain object. */
export function fields(value: unknown, field: string): Fields {
  if (!isFields(value)) throw wrong(field, 'an object', value);
  return value;
}

function isFields(value: unknown): value is Fields {
  return (
    typeof value === 'object' &&
    value !== null &&
    !Array.isArray(value) &&
    !(value instanceof Date) &&
    !ArrayBuffer.isView(value) &&
    !(value instanceof Map) &&
    !(value instanceof Set)
  );
}

/**
 * The options of a call, none of them unknown: a misspelt one would else be ignored.
 *
 * @param allowed - what is known; the type sees to it that none is forgotten.
 */
export function options<T extends object>(
  value: unknown,
  allowed: Readonly<Record<keyof T, true>>,
  field = 'options',
): Fields {
  if (value === undefined) return {};
  const given = fields(value, field);
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(allowed, name)) {
      const known = Object.keys(allowed).sort().join(', ');
      throw InvalidArgumentError.of(`${field}.${name}`, `is unknown; known are ${known}`);
    }
  }
  return given;
}

/** An array. */
export function items(value: unknown, field: string, what: string): readonly unknown[] {
  if (!Array.isArray(value)) throw wrong(field, `an array of ${what}`, value);
  return value;
}

/** What `for await` goes through. */
export function iterable(
  value: unknown,
  field: string,
): AsyncIterable<unknown> | Iterable<unknown> {
  if (!isIterable(value)) throw wrong(field, 'an iterable, e.g. an array', value);
  return value;
}

function isIterable(value: unknown): value is AsyncIterable<unknown> | Iterable<unknown> {
  return (
    typeof value === 'object' &&
    value !== null &&
    (Symbol.asyncIterator in value || Symbol.iterator in value)
  );
}

/** An array of strings. */
export function texts(value: unknown, field: string, what: string): string[] {
  return items(value, field, what).map((item, at) => text(item, `${field}[${at}]`));
}

/** An array of finite numbers; typed arrays are fine. */
export function numbers(value: unknown, field: string): number[] {
  if (value instanceof Float32Array || value instanceof Float64Array) {
    return numbers(Array.from(value), field);
  }
  return items(value, field, 'numbers').map((item, at) => number(item, `${field}[${at}]`));
}

/** One of a table's names, as what it stands for. */
export function member<T>(table: Readonly<Record<string, T>>, value: unknown, field: string): T {
  const found = typeof value === 'string' && Object.hasOwn(table, value) ? table[value] : undefined;
  if (found === undefined) {
    const names = Object.keys(table).map((name) => `"${name}"`);
    throw InvalidArgumentError.of(field, `must be one of ${names.join(', ')}`);
  }
  return found;
}

/** An array of a table's names, as what they stand for. */
export function members<T>(table: Readonly<Record<string, T>>, value: unknown, field: string): T[] {
  return items(value, field, 'names').map((item, at) => member(table, item, `${field}[${at}]`));
}

/** A JSON object: nothing in it would be lost or changed on the way. */
export function json(value: unknown, field: string): JsonObject {
  return jsonObject(value, field, 1, false);
}

/**
 * A filter. What is undefined in it is refused: without that condition it would match more than was
 * meant, e.g. what belongs to other projects.
 */
export function filter(value: unknown, field: string): JsonObject {
  return jsonObject(value, field, 1, true);
}

function jsonObject(value: unknown, path: string, level: number, isFilter: boolean): JsonObject {
  if (level > JSON_LEVELS_MAX) {
    throw InvalidArgumentError.of(path, `is more than ${JSON_LEVELS_MAX} levels deep`);
  }
  const made: [string, JsonValue][] = [];
  for (const [key, inner] of Object.entries(fields(value, path))) {
    text(key, path);
    // As JSON.stringify has it: what is undefined is not there.
    if (inner === undefined && !isFilter) continue;
    made.push([key, jsonValue(inner, `${path}.${key}`, level + 1, isFilter)]);
  }
  return Object.fromEntries(made);
}

function jsonValue(value: unknown, path: string, level: number, isFilter: boolean): JsonValue {
  switch (typeof value) {
    case 'string':
      return text(value, path);
    case 'boolean':
      return value;
    case 'number':
      return number(value, path);
    case 'object':
      if (value === null) return null;
      if (level > JSON_LEVELS_MAX) {
        throw InvalidArgumentError.of(path, `is more than ${JSON_LEVELS_MAX} levels deep`);
      }
      if (Array.isArray(value)) {
        return value.map((inner: unknown, at) =>
          jsonValue(inner, `${path}[${at}]`, level + 1, isFilter),
        );
      }
      return jsonObject(value, path, level, isFilter);
    default:
      throw InvalidArgumentError.of(path, `must be a JSON value, not ${kindOf(value)}`);
  }
}
