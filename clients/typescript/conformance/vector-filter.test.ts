/** Filters of `SemanticRecallVector` over a real sidecar, against brute force. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';

import { MastraError } from '@mastra/core/error';
import * as fc from 'fast-check';

import { InvalidArgumentError } from '../src/index.js';
import { SemanticRecallVector } from '../src/mastra/index.js';
import { startSidecar, type Sidecar } from '../tests/support/sidecar.js';
import { matches } from './support/filter-model.js';

let sidecar: Sidecar;
let store: SemanticRecallVector;

before(async () => {
  sidecar = await startSidecar();
  store = new SemanticRecallVector({ client: sidecar.client() });
  await store.createIndex({ indexName: 'people', dimension: 1 });
  await store.upsert({
    indexName: 'people',
    ids: Object.keys(PEOPLE),
    vectors: Object.keys(PEOPLE).map(() => [1]),
    metadata: Object.values(PEOPLE),
  });
});
after(() => sidecar.stop());

const PEOPLE: Readonly<Record<string, Record<string, unknown>>> = {
  a: { name: 'Ann', age: 30, tags: ['x', 'y'], pets: [{ kind: 'cat', age: 3 }], ok: true },
  b: { name: 'bob', age: 40, tags: ['y'], pets: [{ kind: 'dog', age: 3 }, { kind: 'cat' }] },
  c: { name: 'Cid', age: null, tags: [], address: { town: 'Ulm', zip: 89_073 }, ok: false },
  d: { age: '40', tags: 'y', name: ['bob', 'Bo'] },
  e: { name: '', age: -0.5, tags: ['x', ['y'], { deep: { er: 1 } }], address: null },
  f: {},
};

const FILTERS: readonly unknown[] = [
  { age: 30 },
  { age: { $eq: null } },
  { age: { $ne: 40 } },
  { age: { $ne: null } },
  { age: { $gt: 30 } },
  { age: { $gte: '3' } },
  { age: { $gt: -1, $lte: 30 } },
  { name: ['Ann', 'bob'] },
  { name: { $in: [] } },
  { name: { $in: ['bob', null] } },
  { name: { $nin: ['bob', null] } },
  { tags: 'y' },
  { tags: { $all: ['x', 'y'] } },
  { tags: { $all: ['y'] } },
  { tags: { $size: 0 } },
  { tags: { $size: 1 } },
  { tags: { $contains: 'y' } },
  { tags: { $contains: { deep: { er: 1 } } } },
  { name: { $contains: 'o' } },
  { name: { $exists: false } },
  { address: { $exists: true } },
  { 'address.town': 'Ulm' },
  { address: { town: 'Ulm', zip: { $gt: 1 } } },
  { 'tags.0': 'x' },
  { pets: { $elemMatch: { kind: 'cat', age: 3 } } },
  { pets: { $elemMatch: { age: { $lt: 3 } } } },
  { age: { $elemMatch: { $gt: 1 } } },
  { name: { $regex: '^b' } },
  { name: { $regex: '^B', $options: 'i' } },
  { age: { $not: { $gte: 30 } } },
  { $not: { age: 30 } },
  { $nor: [{ age: 30 }, { tags: 'y' }] },
  { $and: [{ tags: 'y' }, { $or: [{ age: 30 }, { age: 40 }] }] },
  { $or: [{ age: 30, name: 'bob' }, { tags: { $size: 0 } }] },
  { $or: [{ age: 30 }], tags: 'x', ok: true },
  { ok: true },
  { ok: { $ne: true } },
  { ok: 1 },
  { nothing: 1 },
  { nothing: { $ne: 1 } },
];

/** Expressions of JavaScript, and what they are as text. */
const EXPRESSIONS: readonly (readonly [unknown, unknown])[] = [
  [{ name: /^b/i }, { name: { $regex: '^b', $options: 'i' } }],
  [{ name: { $not: /^b/i } }, { name: { $not: { $regex: '^b', $options: 'i' } } }],
  [{ name: { $regex: /^B/g, $options: 'i' } }, { name: { $regex: '^B', $options: 'i' } }],
  [{ name: { $regex: /o$/u } }, { name: { $regex: 'o$' } }],
];

async function chosen(filter: unknown, queryVector?: number[]): Promise<string[]> {
  const given = { indexName: 'people', filter: filter as never };
  const found = await store.query(queryVector === undefined ? given : { ...given, queryVector });
  return found.map(({ id }) => id);
}

/** By brute force. */
function expected(filter: unknown): string[] {
  return Object.keys(PEOPLE).filter((id) => matches(filter, PEOPLE[id]));
}

describe('a filter', () => {
  for (const filter of FILTERS) {
    test(`chooses as brute force does: ${JSON.stringify(filter)}`, async () => {
      assert.deepEqual(await chosen(filter), expected(filter));
      assert.deepEqual(await chosen(filter, [1]), expected(filter));
    });
  }

  for (const [given, meant] of EXPRESSIONS) {
    test(`takes an expression as it is written in JavaScript: ${JSON.stringify(meant)}`, async () => {
      assert.deepEqual(await chosen(given), expected(meant));
    });
  }

  test('is AND inside a branch of $or', async () => {
    await store.createIndex({ indexName: 'a', dimension: 1 });
    await store.upsert({
      indexName: 'a',
      ids: ['both', 'half', 'other'],
      vectors: [[1], [1], [1]],
      metadata: [{ a: 1, b: 2 }, { a: 1, b: 9 }, { c: 3 }],
    });
    const filter = { $or: [{ a: 1, b: 2 }, { c: 3 }] };
    const found = await store.query({ indexName: 'a', queryVector: [1], filter });
    assert.deepEqual(
      found.map(({ id }) => id),
      ['both', 'other'],
    );
  });

  test('means what brute force says, whatever it is', async () => {
    const scalar = fc.constantFrom<unknown>(30, 40, -0.5, '40', 'y', 'x', 'bob', null, true, '');
    const key = fc.constantFrom('age', 'name', 'tags', 'ok', 'address.town', 'nothing');
    const operators = fc.oneof(
      fc.record({ $eq: scalar }),
      fc.record({ $ne: scalar }),
      fc.record({ $in: fc.array(scalar, { maxLength: 3 }) }),
      fc.record({ $nin: fc.array(scalar, { maxLength: 3 }) }),
      fc.record({ $all: fc.array(scalar, { maxLength: 2 }) }),
      fc.record({ $exists: fc.boolean() }),
      fc.record({ $gt: fc.constantFrom(-1, 0, 30, '3') }),
      fc.record({ $lte: fc.constantFrom(30, 40, 'bob'), $gte: fc.constantFrom(0, 30, 'a') }),
      fc.record({ $size: fc.nat(3) }),
      fc.record({ $contains: fc.constantFrom('o', 'y', 'x', 30) }),
      fc.record({ $regex: fc.constantFrom('b', '^[A-C]', 'o$'), $options: fc.constant('i') }),
    );
    const field = fc
      .tuple(
        key,
        fc.oneof(
          scalar,
          operators,
          operators.map(($not) => ({ $not })),
        ),
      )
      .map(([name, value]) => ({ [name]: value }));
    const { filter } = fc.letrec<{ filter: unknown }>((tie) => ({
      filter: fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        field,
        fc
          .array(field, { minLength: 2, maxLength: 3 })
          .map((all) => Object.fromEntries(all.flatMap((one) => Object.entries(one)))),
        fc.record({ $and: fc.array(tie('filter'), { minLength: 1, maxLength: 3 }) }),
        fc.record({ $or: fc.array(tie('filter'), { minLength: 1, maxLength: 3 }) }),
        fc.record({ $nor: fc.array(tie('filter'), { minLength: 1, maxLength: 2 }) }),
        fc.record({ $not: tie('filter') }),
      ),
    }));
    const property = fc.asyncProperty(filter, async (one) => {
      assert.deepEqual(await chosen(one), expected(one));
    });
    await fc.assert(property, { numRuns: 300 });
  });

  test('on a field with a name that JavaScript has a meaning for is a condition', async () => {
    for (const name of ['__proto__', 'constructor', 'toString']) {
      const filter: unknown = JSON.parse(`{"${name}": "nobody has this"}`);
      assert.deepEqual(await chosen(filter), []);
    }
  });

  test('with what no filter can say is refused by name', async () => {
    const bad: Record<string, unknown> = {
      'filter.a': { a: undefined },
      'filter.a.$in[1]': { a: { $in: [1, undefined] } },
      'filter.b.c': { b: { c: () => 1 } },
      'filter.n': { n: Number.POSITIVE_INFINITY },
      'filter.d': { d: new Date(Number.NaN) },
      'filter.r': { r: new RegExp('x', 'v') },
      'filter.l[0]': { l: [/x/] },
      'filter.a.$near': { a: { $near: 1 } },
      'filter.$where': { $where: 'x' },
      'filter.a.$size': { a: { $size: -1 } },
    };
    for (const [field, filter] of Object.entries(bad)) {
      const error: unknown = await chosen(filter).then(
        () => undefined,
        (raised: unknown) => raised,
      );
      assert.ok(error instanceof MastraError);
      assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_QUERY_INVALID_ARGS', field);
      assert.ok(error.cause instanceof InvalidArgumentError);
      const [violation] = error.cause.fieldViolations;
      assert.equal(violation?.field.replaceAll("'", ''), field);
    }
  });

  test('takes dates as the metadata have them', async () => {
    const when = new Date('2024-05-06T07:08:09.010Z');
    await store.createIndex({ indexName: 'dates', dimension: 1 });
    await store.upsert({
      indexName: 'dates',
      ids: ['old', 'new'],
      vectors: [[1], [1]],
      metadata: [{ when: new Date(0) }, { when }],
    });
    const found = await store.query({ indexName: 'dates', filter: { when: { $gte: when } } });
    assert.deepEqual(found, [{ id: 'new', score: 0, metadata: { when: when.toISOString() } }]);
  });
});
