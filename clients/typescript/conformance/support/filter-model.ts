/**
 * What a filter means, by brute force over one vector's metadata: written from the words of the
 * contract (`QueryVectorsRequest.filter`), and knowing nothing of the code that is tested.
 */
import { isDeepStrictEqual } from 'node:util';

/** Any JSON. */
export type Json = unknown;
type Fields = Readonly<Record<string, Json>>;

const MISSING = Symbol('missing');

function isFields(value: Json): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function listOf(value: Json): readonly Json[] {
  return Array.isArray(value) ? (value as readonly Json[]) : [value];
}

/** Whether metadata match a filter. */
export function matches(filter: Json, metadata: Json): boolean {
  if (!isFields(filter)) throw new Error('a filter is an object');
  return Object.entries(filter).every(([key, operand]) => {
    if (key === '$and') return listOf(operand).every((one) => matches(one, metadata));
    if (key === '$or') return listOf(operand).some((one) => matches(one, metadata));
    if (key === '$nor') return !listOf(operand).some((one) => matches(one, metadata));
    if (key === '$not') return !matches(operand, metadata);
    return fieldMatches(operand, under(metadata, key));
  });
}

function under(metadata: Json, key: string): Json {
  let value = metadata;
  for (const step of key.split('.')) {
    value = isFields(value) && Object.hasOwn(value, step) ? value[step] : MISSING;
  }
  return value;
}

function fieldMatches(operand: Json, value: Json): boolean {
  if (Array.isArray(operand)) return holds('$in', operand, value, {});
  if (!isFields(operand)) return holds('$eq', operand, value, {});
  const isOperators = Object.keys(operand).some((name) => name.startsWith('$'));
  return isOperators ? allHold(operand, value) : matches(operand, value);
}

function allHold(operators: Fields, value: Json): boolean {
  return Object.entries(operators).every(
    ([name, operand]) => name === '$options' || holds(name, operand, value, operators),
  );
}

function equal(operand: Json, value: Json): boolean {
  if (operand === null && value === MISSING) return true;
  return (
    isDeepStrictEqual(operand, value) ||
    listOf(value).some((one) => isDeepStrictEqual(one, operand))
  );
}

const ORDERS: Readonly<Record<string, (one: never, other: never) => boolean>> = {
  $gt: (one, other) => one > other,
  $gte: (one, other) => one >= other,
  $lt: (one, other) => one < other,
  $lte: (one, other) => one <= other,
};

function holds(name: string, operand: Json, value: Json, beside: Fields): boolean {
  switch (name) {
    case '$eq':
      return equal(operand, value);
    case '$ne':
      return !equal(operand, value);
    case '$in':
      return listOf(operand).some((one) => equal(one, value));
    case '$nin':
      return !listOf(operand).some((one) => equal(one, value));
    case '$all':
      return listOf(operand).length > 0 && listOf(operand).every((one) => equal(one, value));
    case '$exists':
      return (value !== MISSING) === operand;
    case '$size':
      return Array.isArray(value) && value.length === operand;
    case '$not':
      return !isFields(operand) || !allHold(operand, value);
    case '$regex': {
      const flags = typeof beside['$options'] === 'string' ? beside['$options'] : '';
      const expression = new RegExp(String(operand), `${flags}u`);
      return listOf(value).some((one) => typeof one === 'string' && expression.test(one));
    }
    case '$contains':
      return listOf(operand).every((one) => contains(value, one));
    case '$elemMatch':
      return Array.isArray(value) && value.some((one) => elementMatches(operand, one));
    default: {
      const order = ORDERS[name];
      if (order === undefined) throw new Error(`no operator ${name}`);
      return listOf(value).some(
        (one) => typeof one === typeof operand && order(one as never, operand as never),
      );
    }
  }
}

function contains(value: Json, operand: Json): boolean {
  if (Array.isArray(value)) return value.some((one) => hasFields(one, operand));
  if (typeof value === 'string' && typeof operand === 'string') return value.includes(operand);
  return hasFields(value, operand);
}

function hasFields(value: Json, operand: Json): boolean {
  if (!isFields(value) || !isFields(operand)) return isDeepStrictEqual(value, operand);
  return Object.entries(operand).every(
    ([key, part]) => Object.hasOwn(value, key) && hasFields(value[key], part),
  );
}

function elementMatches(operand: Json, element: Json): boolean {
  if (!isFields(operand)) return false;
  const isOperators = Object.keys(operand).every((name) => name.startsWith('$'));
  return isOperators ? allHold(operand, element) : isFields(element) && matches(operand, element);
}
