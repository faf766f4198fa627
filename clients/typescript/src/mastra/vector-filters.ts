/**
 * Mastra's filters and metadata as the JSON that the sidecar takes.
 *
 * The language is the sidecar's own (Mongo's, with an AND between the keys of one object, also
 * inside `$or`); what JavaScript has beyond JSON is written in it here. A value that would change
 * what a filter means is refused: a condition on `undefined` must never become no condition.
 */
import { isJsonObject, isRecord } from '../adapters/json.js';
import { InvalidArgumentError } from '../errors.js';
import type { JsonObject, JsonValue } from '../values.js';

const LEVELS_MAX = 32;
const FLAGS_OF_THE_LANGUAGE = 'ims';
/** They say how a search goes on or how it counts, not what matches; RE2 is always Unicode. */
const FLAGS_WITHOUT_MEANING = 'dguy';
const LONE_SURROGATES = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/g;

/**
 * A filter as JSON; `undefined` where there is none, or an empty one.
 *
 * @throws InvalidArgumentError - it holds what no filter can: `undefined`, NaN, functions, flags
 *     that RE2 does not have.
 */
export function filterToJson(filter: unknown, field = 'filter'): JsonObject | undefined {
  if (filter === undefined || filter === null) return undefined;
  if (!isRecord(filter) || filter instanceof Date || filter instanceof RegExp) {
    throw InvalidArgumentError.of(field, 'must be an object of conditions');
  }
  const conditions = objectToJson(filter, field, LEVELS_MAX);
  return Object.keys(conditions).length === 0 ? undefined : conditions;
}

function objectToJson(
  given: Readonly<Record<string, unknown>>,
  field: string,
  levels: number,
): JsonObject {
  if (levels === 0) {
    throw InvalidArgumentError.of(field, `is nested deeper than ${LEVELS_MAX} levels`);
  }
  const found: [string, JsonValue][] = [];
  for (const [key, value] of Object.entries(given)) {
    if (key === '$regex' && value instanceof RegExp) {
      const options = given['$options'];
      found.push(...Object.entries(expressionToJson(value, `${field}.$regex`, options)));
    } else if (!(key === '$options' && given['$regex'] instanceof RegExp)) {
      found.push([key, valueToJson(value, `${field}.${key}`, levels - 1)]);
    }
  }
  // Not one by one into an object: a condition on "__proto__" would become none.
  return Object.fromEntries(found);
}

function valueToJson(value: unknown, field: string, levels: number): JsonValue {
  if (value === null || typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) throw InvalidArgumentError.of(field, 'is an invalid Date');
    return value.toISOString();
  }
  if (value instanceof RegExp) return expressionToJson(value, field);
  if (Array.isArray(value)) {
    return value.map((one, at) => {
      if (one instanceof RegExp) {
        throw InvalidArgumentError.of(
          `${field}[${at}]`,
          'is a regular expression in a list; use $or of one $regex each',
        );
      }
      return valueToJson(one, `${field}[${at}]`, levels - 1);
    });
  }
  if (isRecord(value)) return objectToJson(value, field, levels);
  const kind = typeof value === 'number' ? String(value) : typeof value;
  throw InvalidArgumentError.of(
    field,
    `is ${kind}: a filter holds strings, finite numbers, true, false, null, dates, regular ` +
      'expressions, lists and objects',
  );
}

function expressionToJson(expression: RegExp, field: string, options?: unknown): JsonObject {
  const more = typeof options === 'string' ? options : '';
  const flags = new Set(expression.flags + more);
  for (const flag of FLAGS_WITHOUT_MEANING) flags.delete(flag);
  for (const flag of flags) {
    if (!FLAGS_OF_THE_LANGUAGE.includes(flag)) {
      throw InvalidArgumentError.of(field, `has the flag "${flag}"; only i, m and s are possible`);
    }
  }
  const found: JsonObject = { $regex: expression.source };
  if (flags.size > 0) found['$options'] = [...flags].sort().join('');
  return found;
}

/**
 * Metadata as JSON has it: what `JSON.stringify` leaves out is left out, dates are ISO texts, and
 * halves of characters, which UTF-8 cannot carry, are U+FFFD.
 *
 * @throws InvalidArgumentError - it is no object, or cannot be written as JSON (cycles, bigints).
 */
export function metadataToJson(metadata: unknown, field = 'metadata'): JsonObject {
  if (metadata === undefined || metadata === null) return {};
  let copy: unknown;
  try {
    copy = JSON.parse(JSON.stringify(metadata), wellFormed);
  } catch {
    throw InvalidArgumentError.of(field, 'cannot be written as JSON');
  }
  if (!isJsonObject(copy)) throw InvalidArgumentError.of(field, 'must be an object');
  return copy;
}

function wellFormed(_key: string, value: unknown): unknown {
  return typeof value === 'string' ? value.replaceAll(LONE_SURROGATES, '\uFFFD') : value;
}

/** The operators that every condition on one field may have, beside Mastra's own. */
export interface MoreOperators {
  /** The list has exactly so many elements. */
  $size: number;
  /** The list has this element, or the text this part. */
  $contains: string | number | boolean | null | Record<string, unknown>;
}
