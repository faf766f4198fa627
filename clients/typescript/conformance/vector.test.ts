/** `SemanticRecallVector`: every method of Mastra's vector store, over a real sidecar. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';

import { ErrorCategory, ErrorDomain, MastraError } from '@mastra/core/error';

import { InvalidArgumentError, RecallClient, UnavailableError } from '../src/index.js';
import { SemanticRecallVector } from '../src/mastra/index.js';
import { refuses } from '../tests/support/refused.js';
import { startSidecar, type Sidecar } from '../tests/support/sidecar.js';

let sidecar: Sidecar;
let client: RecallClient;
let store: SemanticRecallVector;
let resources = 0;

before(async () => {
  sidecar = await startSidecar();
  client = sidecar.client();
});
after(() => sidecar.stop());
beforeEach(() => {
  store = fresh();
});

/** A store of a resource that no other test knows. */
function fresh(): SemanticRecallVector {
  resources += 1;
  return new SemanticRecallVector({ client, resourceId: `resource-${resources}` });
}

/** The error that a call ends with. */
async function errorOf(call: () => Promise<unknown>): Promise<MastraError> {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof MastraError);
    return error;
  }
  return assert.fail('it did not fail');
}

/** A client whose calls on collections are counted by name. */
function counted(): { client: Pick<RecallClient, 'vectors'>; calls: string[] } {
  const calls: string[] = [];
  const vectors = new Proxy(client.vectors, {
    get(target, name): unknown {
      const found: unknown = Reflect.get(target, name);
      if (typeof found !== 'function') return found;
      return (...args: unknown[]): unknown => {
        calls.push(String(name));
        return Reflect.apply(found, target, args);
      };
    },
  });
  return { client: { vectors }, calls };
}

describe('indexes', () => {
  test('are made, listed, described and deleted', async () => {
    await store.createIndex({ indexName: 'b', dimension: 3, metric: 'dotproduct' });
    await store.createIndex({ indexName: 'a', dimension: 4 });
    await store.createIndex({ indexName: 'c', dimension: 1, metric: 'euclidean' });
    assert.deepEqual(await store.listIndexes(), ['a', 'b', 'c']);
    await store.upsert({ indexName: 'b', vectors: [[1, 2, 3]] });
    assert.deepEqual(await store.describeIndex({ indexName: 'a' }), {
      dimension: 4,
      count: 0,
      metric: 'cosine',
    });
    assert.deepEqual(await store.describeIndex({ indexName: 'b' }), {
      dimension: 3,
      count: 1,
      metric: 'dotproduct',
    });
    await store.deleteIndex({ indexName: 'b' });
    await store.deleteIndex({ indexName: 'b' });
    assert.deepEqual(await store.listIndexes(), ['a', 'c']);
  });

  test('made again cost one call in all, whatever Mastra adds to it', async () => {
    const { client: watched, calls } = counted();
    const vector = new SemanticRecallVector({ client: watched, resourceId: 'cheap' });
    for (let turn = 0; turn < 10; turn += 1) {
      await vector.createIndex({
        indexName: 'a',
        dimension: 3,
        metric: 'cosine',
        indexConfig: { type: 'hnsw', metric: 'dotproduct' },
        metadataIndexes: ['thread_id', 'resource_id'],
      });
    }
    assert.deepEqual(calls, ['createCollection']);
  });

  test('refuse another number of dimensions, as Mastra does', async () => {
    await store.createIndex({ indexName: 'a', dimension: 3 });
    for (const vector of [store, new SemanticRecallVector({ client, resourceId: resource() })]) {
      const error = await errorOf(() => vector.createIndex({ indexName: 'a', dimension: 4 }));
      assert.equal(error.id, 'VECTOR_VALIDATE_INDEX_DIMENSION_MISMATCH');
      assert.equal(error.category, ErrorCategory.USER);
      assert.deepEqual(error.details, { indexName: 'a', existingDim: 3, requestedDim: 4 });
    }
    assert.deepEqual(await store.describeIndex({ indexName: 'a' }), {
      dimension: 3,
      count: 0,
      metric: 'cosine',
    });
  });

  test('keep their metric where another is asked for', async () => {
    await store.createIndex({ indexName: 'a', dimension: 2, metric: 'euclidean' });
    await store.upsert({ indexName: 'a', ids: ['x'], vectors: [[3, 4]] });
    const other = new SemanticRecallVector({ client, resourceId: resource() });
    await other.createIndex({ indexName: 'a', dimension: 2, metric: 'cosine' });
    assert.equal((await other.describeIndex({ indexName: 'a' })).metric, 'euclidean');
    const [found] = await other.query({ indexName: 'a', queryVector: [0, 0] });
    assert.equal(found?.score, Math.fround(1 / 6));
  });

  test('that went are made again where they were known', async () => {
    await store.createIndex({ indexName: 'a', dimension: 2, metric: 'dotproduct' });
    const other = new SemanticRecallVector({ client, resourceId: resource() });
    await other.deleteIndex({ indexName: 'a' });
    assert.deepEqual(await store.query({ indexName: 'a', queryVector: [1, 0] }), []);
    await other.deleteIndex({ indexName: 'a' });
    await store.upsert({ indexName: 'a', ids: ['x'], vectors: [[1, 2]] });
    assert.deepEqual(await other.describeIndex({ indexName: 'a' }), {
      dimension: 2,
      count: 1,
      metric: 'dotproduct',
    });
  });

  test('that are nowhere known are an error with the sidecar in its cause', async () => {
    for (const [operation, call] of Object.entries({
      QUERY: () => store.query({ indexName: 'no', queryVector: [1] }),
      UPSERT: () => store.upsert({ indexName: 'no', vectors: [[1]] }),
      DESCRIBE_INDEX: () => store.describeIndex({ indexName: 'no' }),
      DELETE_VECTOR: () => store.deleteVector({ indexName: 'no', id: 'x' }),
      DELETE_VECTORS: () => store.deleteVectors({ indexName: 'no', ids: ['x'] }),
      UPDATE_VECTOR: () =>
        store.updateVector({ indexName: 'no', id: 'x', update: { metadata: { a: 1 } } }),
    })) {
      const error = await errorOf(call);
      assert.equal(error.id, `MASTRA_VECTOR_SEMANTICRECALL_${operation}_FAILED`);
      assert.equal(error.domain, ErrorDomain.MASTRA_VECTOR);
      assert.equal(error.category, ErrorCategory.USER);
      assert.deepEqual(error.details, {
        indexName: 'no',
        reason: 'COLLECTION_NOT_FOUND',
        retryable: false,
      });
    }
  });
});

describe('vectors', () => {
  beforeEach(async () => {
    await store.createIndex({ indexName: 'a', dimension: 2 });
  });

  test('are found by their nearness, with what belongs to them', async () => {
    const ids = await store.upsert({
      indexName: 'a',
      ids: ['x', 'y', 'z'],
      vectors: [
        [1, 0],
        [1, 1],
        [0, 1],
      ],
      metadata: [{ n: 1 }, { n: 2, when: new Date(0), gone: undefined }, { n: 3 }],
    });
    assert.deepEqual(ids, ['x', 'y', 'z']);
    assert.deepEqual(await store.query({ indexName: 'a', queryVector: [0, 2], topK: 2 }), [
      { id: 'z', score: 1, metadata: { n: 3 } },
      {
        id: 'y',
        score: Math.fround(Math.SQRT1_2),
        metadata: { n: 2, when: '1970-01-01T00:00:00.000Z' },
      },
    ]);
    const vectors = await store.query({
      indexName: 'a',
      queryVector: [0, 2],
      filter: { n: { $lt: 3 } },
      includeVector: true,
      minScore: 0.5,
    });
    assert.deepEqual(
      vectors.map(({ id, vector }) => [id, vector]),
      [['y', [1, 1]]],
    );
  });

  test('have random ids of their own where none are given', async () => {
    const vectors = Array.from({ length: 50 }, (_, at) => [1, at]);
    const ids = await store.upsert({ indexName: 'a', vectors });
    assert.equal(new Set(ids).size, 50);
    for (const id of ids) assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f-]{17}$/);
    const found = await store.query({ indexName: 'a', queryVector: [0, 1], topK: 50 });
    assert.deepEqual(new Set(found.map(({ id }) => id)), new Set(ids));
  });

  test('without a query come by id, as many as are asked for', async () => {
    await store.upsert({
      indexName: 'a',
      ids: ['z', 'y', 'x'],
      vectors: [
        [1, 0],
        [1, 0],
        [1, 0],
      ],
      metadata: [{ n: 1 }, { n: 1 }, { n: 2 }],
    });
    assert.deepEqual(await store.query({ indexName: 'a', filter: { n: { $gte: 1 } }, topK: 2 }), [
      { id: 'x', score: 0, metadata: { n: 2 } },
      { id: 'y', score: 0, metadata: { n: 1 } },
    ]);
    const error = await errorOf(() => store.query({ indexName: 'a' }));
    assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_QUERY_INVALID_ARGS');
  });

  test('replace those of the same id, and those that a filter names', async () => {
    await store.upsert({
      indexName: 'a',
      ids: ['x', 'y', 'z'],
      vectors: [
        [1, 0],
        [1, 0],
        [1, 0],
      ],
      metadata: [{ doc: 'A' }, { doc: 'A' }, { doc: 'B' }],
    });
    await store.upsert({
      indexName: 'a',
      ids: ['x', 'z'],
      vectors: [
        [0, 1],
        [0, 1],
      ],
      metadata: [{ doc: 'A' }, { doc: 'B', new: true }],
      deleteFilter: { doc: 'A' },
    });
    const found = await store.query({ indexName: 'a', queryVector: [0, 1] });
    assert.deepEqual(found, [
      { id: 'x', score: 1, metadata: { doc: 'A' } },
      { id: 'z', score: 1, metadata: { doc: 'B', new: true } },
    ]);
  });

  test('go in several requests where they are too many for one', async () => {
    const { client: watched, calls } = counted();
    const vector = new SemanticRecallVector({ client: watched, resourceId: resource() });
    const count = 2_500;
    const ids = Array.from({ length: count }, (_, at) => String(at));
    await store.upsert({ indexName: 'a', vectors: [[9, 9]], metadata: [{ old: true }] });
    const given = await vector.upsert({
      indexName: 'a',
      ids,
      vectors: ids.map((_, at) => [1, at]),
      metadata: ids.map((_, at) => ({ at })),
      deleteFilter: { old: true },
    });
    assert.deepEqual(given, ids);
    assert.deepEqual(calls, ['upsert', 'upsert', 'upsert']);
    assert.equal((await store.describeIndex({ indexName: 'a' })).count, count);
    const last = await store.query({ indexName: 'a', filter: { at: count - 1 } });
    assert.deepEqual(last, [{ id: '2499', score: 0, metadata: { at: count - 1 } }]);
    await vector.deleteVectors({ indexName: 'a', ids: ids.slice(1) });
    assert.equal((await store.describeIndex({ indexName: 'a' })).count, 1);
  });

  test('of many bytes go in several requests, too', async () => {
    const vectors = Array.from({ length: 300 }, (_, at) => [at, 1]);
    const metadata = vectors.map((_, at) => ({ at, text: 'x'.repeat(60_000) }));
    await store.upsert({ indexName: 'a', vectors, metadata });
    assert.equal((await store.describeIndex({ indexName: 'a' })).count, 300);
  });

  test('keep the fields that an update does not name', async () => {
    await store.upsert({
      indexName: 'a',
      ids: ['x', 'y'],
      vectors: [
        [1, 0],
        [1, 0],
      ],
      metadata: [{ user: 1, text: 'one' }, { user: 2 }],
    });
    await store.updateVector({
      indexName: 'a',
      filter: { user: 1 },
      update: { metadata: { status: 'archived' } },
    });
    await store.updateVector({ indexName: 'a', id: 'y', update: { vector: [0, 1] } });
    assert.deepEqual(await store.query({ indexName: 'a', queryVector: [0, 1] }), [
      { id: 'y', score: 1, metadata: { user: 2 } },
      { id: 'x', score: 0, metadata: { user: 1, text: 'one', status: 'archived' } },
    ]);
    const missing = await errorOf(() =>
      store.updateVector({ indexName: 'a', id: 'no', update: { vector: [0, 1] } }),
    );
    assert.equal(missing.details?.['reason'], 'VECTOR_NOT_FOUND');
  });

  test('are deleted by id or by filter, and never all by mistake', async () => {
    const ids = ['v', 'w', 'x', 'y', 'z'];
    await store.upsert({
      indexName: 'a',
      ids,
      vectors: ids.map(() => [1, 0]),
      metadata: ids.map((id) => ({ is: id })),
    });
    await store.deleteVector({ indexName: 'a', id: 'v' });
    await store.deleteVector({ indexName: 'a', id: 'v' });
    await store.deleteVectors({ indexName: 'a', ids: ['w', 'never'] });
    await store.deleteVectors({ indexName: 'a', filter: { is: { $in: ['x', 'never'] } } });
    for (const params of [
      {},
      { ids: [] },
      { filter: {} },
      { filter: null },
      { ids: [], filter: {} },
      { ids: ['y'], filter: { is: 'z' } },
      { filter: { is: undefined } },
    ]) {
      const error = await errorOf(() => store.deleteVectors({ indexName: 'a', ...params }));
      assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_DELETE_VECTORS_INVALID_ARGS');
      assert.ok(error.cause instanceof InvalidArgumentError);
    }
    const found = await store.query({ indexName: 'a', queryVector: [1, 0] });
    assert.deepEqual(
      found.map(({ id }) => id),
      ['y', 'z'],
    );
  });

  test('of the wrong kind are refused, and nothing of the call is kept', async () => {
    const one = [1, 1];
    const sparse = { indices: [0], values: [1] };
    const bad: Record<string, Parameters<SemanticRecallVector['upsert']>[0]> = {
      'no vectors': { indexName: 'a', vectors: [] },
      'too few ids': { indexName: 'a', vectors: [one, one], ids: ['x'] },
      'too many metadata': { indexName: 'a', vectors: [one], metadata: [{}, {}] },
      'not a number': { indexName: 'a', vectors: [one, [1, NaN]] },
      'too many numbers': { indexName: 'a', vectors: [one, [1, 2, 3]] },
      'all zero': { indexName: 'a', vectors: [one, [0, 0]] },
      'an empty id': { indexName: 'a', vectors: [one], ids: [''] },
      'a list as metadata': { indexName: 'a', vectors: [one], metadata: [[1]] },
      'metadata with a cycle': { indexName: 'a', vectors: [one], metadata: [cycle()] },
      'a text beyond the limit': {
        indexName: 'a',
        vectors: [one],
        metadata: [{ text: 'x'.repeat(70_000) }],
      },
      'sparse vectors': { indexName: 'a', vectors: [one], sparseVectors: [sparse] },
      'a filter that is none': {
        indexName: 'a',
        vectors: [one],
        deleteFilter: { a: { $near: 1 } } as never,
      },
    };
    for (const [what, params] of Object.entries(bad)) {
      const error = await errorOf(() => store.upsert(params));
      assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_UPSERT_INVALID_ARGS', what);
      assert.equal(error.category, ErrorCategory.USER, what);
    }
    assert.equal((await store.describeIndex({ indexName: 'a' })).count, 0);
    const query = { indexName: 'a', queryVector: one };
    for (const params of [
      { ...query, topK: 0 },
      { ...query, topK: 1.5 },
      { ...query, queryVector: [1] },
      { ...query, sparseVector: sparse },
    ]) {
      const error = await errorOf(() => store.query(params));
      assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_QUERY_INVALID_ARGS');
    }
  });

  test('of another resource are not there', async () => {
    await store.upsert({ indexName: 'a', ids: ['x'], vectors: [[1, 0]] });
    const other = fresh();
    assert.deepEqual(await other.listIndexes(), []);
    await other.createIndex({ indexName: 'a', dimension: 2 });
    assert.deepEqual(await other.query({ indexName: 'a', queryVector: [1, 0] }), []);
  });
});

/** The resource of the store of this test. */
function resource(): string {
  return `resource-${resources}`;
}

function cycle(): Record<string, unknown> {
  const value: Record<string, unknown> = {};
  value['self'] = value;
  return value;
}

test('a client brings its own address', () => {
  for (const more of [{ address: '127.0.0.1:1' }, { token: 'x' }, { tls: true }]) {
    assert.throws(() => new SemanticRecallVector({ client, ...more }), InvalidArgumentError);
  }
});

describe('options that are refused', () => {
  refuses(
    (options) => new SemanticRecallVector(options),
    [
      [{ adress: '127.0.0.1:1' }, 'options.adress'],
      [{ indexName: 'a' }, 'options.indexName'],
      [{ id: 7 }, 'id'],
      [{ resourceId: 7 }, 'resourceId'],
      [{ memoryIndexName: true }, 'memoryIndexName'],
      [{ timeoutMs: 0 }, 'timeoutMs'],
      [{ deletesReachEveryIndex: 'yes' }, 'deletesReachEveryIndex'],
      [{ address: 'nowhere' }, 'address'],
    ],
  );
});

test('halves of characters in metadata do not keep a vector out', async () => {
  await store.createIndex({ indexName: 'a', dimension: 1 });
  const metadata = [{ text: 'cut \uD83D', list: ['\uDE00 off', '\uD83D\uDE00'] }];
  await store.upsert({ indexName: 'a', ids: ['x'], vectors: [[1]], metadata });
  const [found] = await store.query({ indexName: 'a', queryVector: [1] });
  assert.deepEqual(found?.metadata, {
    text: 'cut \uFFFD',
    list: ['\uFFFD off', '\uD83D\uDE00'],
  });
});

test('an outage is told as one that may pass', async () => {
  const nowhere = new SemanticRecallVector({ address: 'unix:/nowhere/at/all', timeoutMs: 500 });
  const error = await errorOf(() => nowhere.listIndexes());
  assert.equal(error.id, 'MASTRA_VECTOR_SEMANTICRECALL_LIST_INDEXES_FAILED');
  assert.equal(error.category, ErrorCategory.THIRD_PARTY);
  assert.equal(error.details?.['retryable'], true);
  assert.ok(error.cause instanceof UnavailableError);
  await nowhere.close();
});
