/** Every call of the client, against a real sidecar, over a Unix socket and over TCP. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { RecallClient, RecallOptions } from '../src/index.js';
import {
  AlreadyExistsError,
  FailedPreconditionError,
  InvalidArgumentError,
  NotFoundError,
  assistant,
  system,
  tool,
  user,
} from '../src/index.js';
import { collected } from './support/collected.js';
import type { Sidecar } from './support/sidecar.js';
import { startSidecar } from './support/sidecar.js';

const DAY_1 = new Date('2024-05-01T10:00:00.123Z');
const DAY_2 = new Date('2024-05-02T10:00:00Z');
const DAY_3 = new Date('2024-05-03T10:00:00Z');

for (const tcp of [false, true]) {
  describe(tcp ? 'over TCP' : 'over a Unix socket', () => {
    let sidecar: Sidecar;
    let memory: RecallClient;
    before(async () => {
      sidecar = await startSidecar({ tcp });
      memory = sidecar.client();
    });
    after(() => sidecar.stop());

    test('what was indexed is recalled, with its neighbours and all its fields', async () => {
      const payload = new Uint8Array([0, 1, 255]);
      const metadata = { project: 'dogs', turns: [1, 2.5, null, { deep: true }], note: 'ä€😀' };
      const indexed = await memory.index('ada', 'dogs', [
        user('Rex is allergic to chicken', {
          id: 'm1',
          author: 'Ada',
          createTimeNs: 1_714_557_600_123_456_789n,
          metadata,
          payload,
          payloadType: 'bytes',
          groupId: 'g1',
        }),
        assistant('I will remember that.', { id: 'm2', createTime: DAY_2 }),
      ]);
      assert.deepEqual(
        indexed.outcomes.map(({ messageId, status, error }) => [messageId, status, error]),
        [
          ['m1', 'indexed', undefined],
          ['m2', 'indexed', undefined],
        ],
      );
      assert.deepEqual(indexed.rejected, []);
      assert.equal(indexed.info.embeddingsComputed + indexed.info.embeddingsCached, 2);

      const found = await memory.recall('ada', 'What can Rex not eat?', {
        topK: 1,
        readToken: indexed.readToken,
        explain: true,
      });
      assert.equal(found.degraded, undefined);
      assert.deepEqual(
        [...found].map(({ message, hit, rank }) => [message.id, hit, rank]),
        [
          ['m1', true, 1],
          ['m2', false, 0],
        ],
      );
      assert.deepEqual(found.hits[0]?.message, {
        id: 'm1',
        threadId: 'dogs',
        resourceId: 'ada',
        role: 'user',
        author: 'Ada',
        text: 'Rex is allergic to chicken',
        createTime: DAY_1,
        createTimeNs: 1_714_557_600_123_456_789n,
        metadata,
        payload: Buffer.from(payload),
        payloadType: 'bytes',
        groupId: 'g1',
      });
      const [hit, neighbour] = found.messages;
      assert.ok(hit?.score !== undefined && hit.score > 0.3 && hit.score < 1);
      assert.equal(hit.explain?.chunks, 1);
      assert.equal(hit.groupState, 'whole');
      assert.deepEqual(
        [neighbour?.score, neighbour?.relevance, neighbour?.explain, neighbour?.groupState],
        [undefined, undefined, undefined, 'none'],
      );
      assert.ok(found.contextText.includes('Rex is allergic to chicken'));
      assert.deepEqual(
        [found.info?.modeUsed, found.info?.scopeUsed, found.info?.searchable, found.info?.whyEmpty],
        ['hybrid', 'resource', 2, 'unspecified'],
      );
      // With one hit asked for, the other message is told as left out.
      assert.deepEqual(
        found.excluded.map(({ messageId, reason }) => [messageId, reason]),
        [['m2', 'top_k']],
      );
    });

    test('every option of a recall has its effect', async () => {
      await memory.index('options', 't1', [
        user('The blue car needs new tyres', { id: 'a', createTime: DAY_1, metadata: { n: 1 } }),
        assistant('Blue cars are nice', { id: 'b', createTime: DAY_2, metadata: { n: 2 } }),
      ]);
      await memory.index('options', 't2', [
        user('My car is blue', { id: 'c', createTime: DAY_3, metadata: { n: 3 } }),
      ]);
      const ids = async (options: RecallOptions) => {
        const found = await memory.recall('options', 'blue car', { messageRange: 0, ...options });
        return found.messages.map(({ message }) => message.id).sort();
      };
      assert.deepEqual(await ids({}), ['a', 'b', 'c']);
      assert.deepEqual(await ids({ topK: 1, filter: { n: 1 } }), ['a']);
      const byTyres = async (messageRange: RecallOptions['messageRange']) =>
        (await memory.recall('options', 'tyres', { topK: 1, messageRange })).messages.length;
      assert.deepEqual(
        [
          await byTyres(0),
          await byTyres(1),
          await byTyres({ before: 1 }),
          await byTyres({ after: 1 }),
        ],
        [1, 2, 1, 2],
      );
      assert.deepEqual(await ids({ scope: 'thread', threadId: 't1' }), ['a', 'b']);
      assert.deepEqual(await ids({ filter: { n: { $gte: 2 } } }), ['b', 'c']);
      assert.deepEqual(await ids({ roles: ['assistant'] }), ['b']);
      assert.deepEqual(await ids({ createTimeFrom: DAY_2 }), ['b', 'c']);
      assert.deepEqual(await ids({ createTimeTo: DAY_2 }), ['a']);
      assert.deepEqual(await ids({ excludeMessageIds: ['a', 'c'] }), ['b']);
      assert.deepEqual(await ids({ threshold: 1 }), []);
      assert.deepEqual(await ids({ ranking: { mode: 'lexical' }, topK: 10 }), ['a', 'b', 'c']);
      assert.deepEqual(
        await ids({
          topK: 1,
          ranking: { mode: 'dense', recencyWeight: 1, recencyHalfLifeMs: 365 * 86_400_000 },
        }),
        ['c'],
      );
      assert.deepEqual(await ids({ ranking: { diversity: 0.5, nearDuplicateCosine: 1 } }), [
        'a',
        'b',
        'c',
      ]);
      const { embeddings } = await memory.embed(['blue car'], { role: 'query' });
      const byVector = await memory.recall('options', '', {
        queryEmbedding: embeddings[0]?.values ?? [],
        ranking: { mode: 'dense' },
      });
      const byText = await memory.recall('options', 'blue car', { ranking: { mode: 'dense' } });
      assert.deepEqual(
        byVector.hits.map(({ message, score }) => [message.id, score?.toFixed(4)]),
        byText.hits.map(({ message, score }) => [message.id, score?.toFixed(4)]),
      );
      const context = async (options: RecallOptions) =>
        (await memory.recall('options', 'blue car', options)).contextText;
      assert.equal(await context({ contextFormat: 'none' }), '');
      const others = await context({ threadId: 't1', contextOtherThreadsOnly: true });
      assert.deepEqual([others.includes('My car'), others.includes('tyres')], [true, false]);
      assert.ok((await context({ timeZone: 'Asia/Tokyo' })).includes('19:00'));
      const small = await memory.recall('options', 'blue car', { maxTokens: 8 });
      assert.ok(small.info !== undefined && small.info.tokens > 0 && small.info.tokens <= 8);
      const phrased = await memory.recall('options', 'tyres', { alternativeQueries: ['wheels'] });
      assert.equal(phrased.hits[0]?.message.id, 'a');
    });

    test('an empty answer says why', async () => {
      const blank = await memory.recall('ada', ' \n');
      assert.deepEqual([blank.info?.whyEmpty, blank.messages.length], ['no_query', 0]);
      const nobody = await memory.recall('nobody', 'anything');
      assert.deepEqual([nobody.info?.whyEmpty, nobody.degraded], ['no_messages', undefined]);
    });

    test('nothing of one thread is kept for the next', async () => {
      await memory.index('kept', 't1', [user('The first secret is a walnut', { id: 'one' })]);
      await memory.index('kept', 't2', [user('The second secret is a pear', { id: 'two' })]);
      const ask = (threadId: string) =>
        memory.recall('kept', 'What is the secret?', { threadId, scope: 'thread' });
      const first = await ask('t1');
      const second = await ask('t2');
      assert.deepEqual(
        [first, second].map((found) => found.messages.map(({ message }) => message.id)),
        [['one'], ['two']],
      );
      assert.ok(!second.contextText.includes('walnut'));
    });

    test('a session recalls on a stream of its own, until it is closed', async () => {
      const session = memory.recallStream();
      const asked = ['Rex', 'chicken', 'What can Rex not eat?'].map((query) =>
        session.recall('ada', query, { topK: 1, messageRange: 0 }),
      );
      const found = await Promise.all(asked);
      assert.deepEqual(
        found.map((result) => result.messages.map(({ message }) => message.id)),
        [['m1'], ['m1'], ['m1']],
      );
      await session.close();
      await assert.rejects(session.recall('ada', 'Rex'), { name: 'CancelledError' });
    });

    test('a bad message is rejected by itself', async () => {
      const warned: string[] = [];
      const strict = sidecar.client({
        logger: {
          warn: (_, fields) => {
            warned.push(JSON.stringify(fields));
          },
        },
      });
      const result = await strict.index('bad', 't', [
        user('fine', { id: 'ok' }),
        user('bad', { id: 'x'.repeat(600) }),
      ]);
      assert.deepEqual(
        result.outcomes.map(({ status }) => status),
        ['indexed', 'rejected'],
      );
      assert.ok(result.rejected[0]?.error instanceof InvalidArgumentError);
      assert.throws(() => {
        result.throwIfRejected();
      }, InvalidArgumentError);
      assert.equal(warned.length, 1);
    });

    test('what a batch says of all its messages, and when it is done', async () => {
      const options = { metadata: { project: 'A', by: 'batch' }, wait: 'durable' } as const;
      await memory.index('meta', 't', [user('one', { id: '1', metadata: { by: 'me' } })], options);
      const [message] = await memory.getMessages('meta', ['1']);
      assert.deepEqual(message?.metadata, { project: 'A', by: 'me' });
    });

    test('many batches on one stream: an answer each, in order', async () => {
      const batches = Array.from({ length: 30 }, (_, at) => ({
        resourceId: at === 7 ? '' : 'stream',
        threadId: 't',
        messages: [user(`message ${at}`, { id: `s${at}` })],
      }));
      const results = await collected(memory.indexStream(batches));
      assert.deepEqual(
        results.map(({ outcomes, error }) => outcomes[0]?.messageId ?? error?.code),
        batches.map(({ messages }, at) => (at === 7 ? 'INVALID_ARGUMENT' : messages[0]?.id)),
      );
    });

    test('a stream of batches ends with what its source throws, and when nobody reads on', async () => {
      const broken = new Error('no more');
      let returned = 0;
      async function* source(failing: boolean) {
        try {
          for (let at = 0; ; at++) {
            if (failing && at === 3) throw broken;
            yield { resourceId: 'src', threadId: 't', messages: [user('x', { id: `x${at}` })] };
            await Promise.resolve();
          }
        } finally {
          returned++;
        }
      }
      await assert.rejects(collected(memory.indexStream(source(true))), broken);
      for await (const result of memory.indexStream(source(false))) {
        assert.equal(result.outcomes.length, 1);
        break;
      }
      assert.equal(returned, 2);
    });

    test('messages are listed over pages, by time, thread and role', async () => {
      const messages = Array.from({ length: 7 }, (_, at) =>
        (at % 2 === 0 ? user : assistant)(`number ${at}`, {
          id: `l${at}`,
          createTime: new Date(DAY_1.getTime() + at * 1000),
        }),
      );
      await memory.index('list', 'a', messages.slice(0, 5));
      await memory.index('list', 'b', messages.slice(5));
      const ids = async (options: Parameters<RecallClient['listMessages']>[1]) =>
        (await collected(memory.listMessages('list', options))).map(({ id }) => id);
      assert.deepEqual(await ids({ pageSize: 2 }), ['l0', 'l1', 'l2', 'l3', 'l4', 'l5', 'l6']);
      assert.deepEqual(await ids({ pageSize: 2, limit: 3 }), ['l0', 'l1', 'l2']);
      assert.deepEqual(await ids({ newestFirst: true, limit: 2 }), ['l6', 'l5']);
      assert.deepEqual(await ids({ threadId: 'b' }), ['l5', 'l6']);
      assert.deepEqual(await ids({ roles: ['assistant'] }), ['l1', 'l3', 'l5']);
      const from = new Date(DAY_1.getTime() + 2000);
      const to = new Date(DAY_1.getTime() + 4000);
      assert.deepEqual(await ids({ createTimeFrom: from, createTimeTo: to }), ['l2', 'l3']);
      assert.deepEqual(
        (await memory.getMessages('list', ['l6', 'l0'])).map(({ text }) => text),
        ['number 6', 'number 0'],
      );
      await assert.rejects(memory.getMessages('list', ['l0', 'm1']), NotFoundError);
      const threads = await collected(memory.listThreads('list'));
      assert.deepEqual(threads, [
        {
          threadId: 'b',
          messages: 2,
          firstCreateTime: new Date(DAY_1.getTime() + 5000),
          lastCreateTime: new Date(DAY_1.getTime() + 6000),
        },
        {
          threadId: 'a',
          messages: 5,
          firstCreateTime: DAY_1,
          lastCreateTime: new Date(DAY_1.getTime() + 4000),
        },
      ]);
    });

    test('a thread changes hands', async () => {
      await memory.index('from', 't', [user('mine', { id: 'f1' }), system('rules', { id: 'f2' })]);
      assert.equal(await memory.transferThread('from', 't', 'to'), 2);
      assert.deepEqual(await collected(memory.listMessages('from')), []);
      await assert.rejects(memory.transferThread('from', 't', 'to'), NotFoundError);
      await memory.index('from', 't', [user('again', { id: 'f3' })]);
      await assert.rejects(memory.transferThread('from', 't', 'to'), AlreadyExistsError);
    });

    test('what is forgotten is gone', async () => {
      await memory.index('forget', 'a', [
        user('one', { id: '1', author: 'Mallory', createTime: DAY_1 }),
        user('two', { id: '2', createTime: DAY_2 }),
        tool('three', { id: '3', createTime: DAY_3 }),
      ]);
      await memory.index('forget', 'b', [user('four', { id: '4', createTime: DAY_3 })]);
      const left = async () =>
        (await collected(memory.listMessages('forget'))).map(({ id }) => id).sort();
      const by = await memory.forget('forget', { authors: ['Mallory'] });
      assert.deepEqual([by.messages, by.vectors, by.threads, by.purged], [1, 1, 0, false]);
      assert.ok(by.purgeDueTime instanceof Date && by.purgeDueTime.getTime() > Date.now());
      assert.deepEqual(await left(), ['2', '3', '4']);
      assert.equal((await memory.forgetMessages('forget', ['2', 'unknown'])).messages, 1);
      assert.equal((await memory.forgetBefore('forget', DAY_3)).messages, 0);
      assert.deepEqual(await left(), ['3', '4']);
      assert.equal((await memory.forgetThread('forget', 'a')).threads, 1);
      const all = await memory.forgetEverything('forget', { purge: true });
      assert.deepEqual([all.messages, all.purged, all.purgeDueTime], [1, true, undefined]);
      assert.deepEqual(await left(), []);
    });

    test('texts are embedded', async () => {
      const answer = await memory.embed(['hello', 'hello there']);
      assert.deepEqual(
        answer.embeddings.map(({ values, truncated }) => [values.length, truncated]),
        [
          [384, false],
          [384, false],
        ],
      );
      assert.equal(answer.dimensions, 384);
      assert.ok(answer.indexIdentity.startsWith('all-MiniLM-L6-v2@'));
      const [first] = answer.embeddings;
      const length = Math.hypot(...(first?.values ?? []));
      assert.ok(Math.abs(length - 1) < 1e-5, String(length));
      // [CLS] hello [SEP]
      assert.equal(first?.tokens, 3);
    });

    test('the store is looked after', async () => {
      await memory.index('care', 't', [user('keep me', { id: 'k' }), tool('t', { id: 'k2' })]);
      const stats = await memory.admin.stats({ resourceId: 'care' });
      assert.deepEqual([stats.messages, stats.vectors, stats.threads, stats.pending], [2, 1, 1, 0]);
      const whole = await memory.admin.stats();
      assert.ok(whole.resources >= 2 && whole.uptimeSeconds > 0 && whole.cache !== undefined);
      assert.deepEqual([whole.device, whole.encrypted, whole.damaged], ['cpu', false, 0]);

      const exported = await collected(memory.admin.export('care', { withVectors: true }));
      assert.deepEqual(
        exported.map(({ message, vectors }) => [message.id, vectors?.data.byteLength]),
        [
          ['k', 384 * 4],
          ['k2', undefined],
        ],
      );
      for await (const { message } of memory.admin.export('care')) {
        assert.equal(message.id, 'k');
        break;
      }
      const vectors = exported.flatMap((one) => (one.vectors === undefined ? [] : [one.vectors]));
      const again = await memory.index('copy', 't', [user('keep me', { id: 'k' })], { vectors });
      assert.equal(again.info.embeddingsComputed, 0);

      const events = await collected(memory.admin.verify());
      const summary = events.at(-1);
      assert.ok(summary?.type === 'summary');
      assert.deepEqual([summary.findings, summary.lost], [0, 0]);
      assert.ok(summary.messages >= 3);

      const snapshot = await memory.admin.createSnapshot();
      assert.equal(BigInt(snapshot.messages), BigInt(summary.messages));
      const listed = await memory.admin.listSnapshots();
      assert.deepEqual([listed.snapshots, listed.leftOut], [[snapshot], []]);
      await assert.rejects(memory.admin.restoreSnapshot(snapshot.name), {
        name: FailedPreconditionError.name,
        reason: 'STORE_NOT_EMPTY',
      });
      await memory.admin.deleteSnapshot(snapshot.name);
      await assert.rejects(memory.admin.deleteSnapshot(snapshot.name), NotFoundError);
      const purged = await memory.admin.purge();
      assert.deepEqual([purged.revision > 0n, purged.snapshotsHolding], [true, []]);
      await assert.rejects(collected(memory.admin.reembed()), { reason: 'NO_NEXT_MODEL' });
    });

    test('collections of vectors', async () => {
      const { vectors } = memory;
      const made = await vectors.createCollection('ada', 'docs', { dimensions: 2 });
      const empty = { name: 'docs', dimensions: 2, metric: 'cosine', vectors: 0 };
      assert.deepEqual(made, { collection: empty, created: true });
      await assert.rejects(vectors.createCollection('ada', 'docs', { dimensions: 3 }), {
        reason: 'DIMENSIONS_DIFFER',
      });
      const changed = await vectors.upsert('ada', 'docs', [
        { id: 'east', values: [1, 0], metadata: { kind: 'axis', n: 1 } },
        { id: 'north', values: [0, 1], metadata: { kind: 'axis', n: 2 } },
        { id: 'west', values: [-1, 0] },
      ]);
      assert.deepEqual(changed, { added: 3, replaced: 0, deleted: 0 });
      const found = await vectors.query('ada', 'docs', {
        values: [1, 0],
        topK: 2,
        includeValues: true,
      });
      assert.deepEqual(found, {
        matches: [
          { id: 'east', score: 1, metadata: { kind: 'axis', n: 1 }, values: [1, 0] },
          { id: 'north', score: 0, metadata: { kind: 'axis', n: 2 }, values: [0, 1] },
        ],
        dropped: 0,
      });
      const filtered = await vectors.query('ada', 'docs', {
        values: [1, 0],
        filter: { n: { $gt: 1 } },
        scoreMin: -0.5,
      });
      assert.deepEqual(
        filtered.matches.map(({ id }) => id),
        ['north'],
      );
      const selected = { filter: { kind: 'axis' } };
      assert.equal(await vectors.update('ada', 'docs', selected, { metadata: { seen: true } }), 2);
      const seen = await vectors.query('ada', 'docs', { filter: { seen: true } });
      assert.deepEqual(
        seen.matches.map(({ id, metadata }) => [id, metadata['kind']]),
        [
          ['east', 'axis'],
          ['north', 'axis'],
        ],
      );
      assert.equal(await vectors.delete('ada', 'docs', { ids: ['west', 'unknown'] }), 1);
      assert.deepEqual(await vectors.describeCollection('ada', 'docs'), { ...empty, vectors: 2 });
      assert.deepEqual(await vectors.listCollections('ada'), [{ ...empty, vectors: 2 }]);
      assert.deepEqual(await vectors.listCollections('bob'), []);
      const gone = await vectors.deleteCollection('ada', 'docs');
      assert.deepEqual(gone, { vectors: 2, deleted: true });
      await assert.rejects(vectors.query('ada', 'docs', { values: [1, 0] }), {
        name: NotFoundError.name,
        reason: 'COLLECTION_NOT_FOUND',
      });
    });

    test('what the server refuses says which field, and is typed', async () => {
      await assert.rejects(memory.recall('ada', 'x', { topK: 5000 }), (error) => {
        assert.ok(error instanceof InvalidArgumentError);
        assert.deepEqual(
          [error.code, error.reason, error.retryable, error.fieldViolations.map((v) => v.field)],
          ['INVALID_ARGUMENT', 'FIELD_INVALID', false, ['top_k']],
        );
        return true;
      });
      await assert.rejects(memory.recall('', 'x'), { name: 'InvalidArgumentError' });
      await assert.rejects(
        memory.recall('ada', 'x', { queryEmbedding: [1, 0] }),
        (error) =>
          error instanceof FailedPreconditionError || error instanceof InvalidArgumentError,
      );
    });
  });
}
