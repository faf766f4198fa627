/** What a caller gets wrong is refused here, by name, before anything is sent. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { InvalidArgumentError, RecallClient, user } from '../src/index.js';

// Nobody listens there: what were sent would end in another error.
const memory = new RecallClient({
  address: 'unix:/nobody/listens/here',
  failOpen: false,
  connectTimeoutMs: 1,
});

/** Types forbid these calls; plain JavaScript does not. */
const untyped = memory as unknown as Record<string, (...args: unknown[]) => unknown>;

async function refusal(call: () => unknown): Promise<[string, string]> {
  try {
    await call();
  } catch (error) {
    assert.ok(error instanceof InvalidArgumentError, String(error));
    const [violation] = error.fieldViolations;
    assert.ok(violation !== undefined);
    assert.equal(error.message, `${violation.field}: ${violation.description}`);
    assert.equal(error.reason, 'FIELD_INVALID');
    return [violation.field, violation.description];
  }
  return assert.fail('nothing was refused');
}

const call = (method: string, ...args: unknown[]) => {
  const found = untyped[method];
  assert.ok(found !== undefined);
  return refusal(() => found.apply(memory, args));
};
const recall = (options: unknown) => call('recall', 'ada', 'query', options);
const index = (message: unknown, options?: unknown) =>
  call('index', 'ada', 't', [message], options);

test('unknown options are refused, and the known ones are named', async () => {
  const [field, description] = await recall({ topk: 3 });
  assert.equal(field, 'options.topk');
  assert.match(description, /^is unknown; known are .*\btopK\b.*$/);
  const nested: [string, unknown][] = [
    ['ranking.recency', { ranking: { recency: 1 } }],
    ['messageRange.from', { messageRange: { from: 1 } }],
  ];
  for (const [name, options] of nested) assert.equal((await recall(options))[0], name);
  assert.equal((await index({ role: 'user', content: 'x' }))[0], 'messages[0].content');
  assert.equal((await index(user('x'), { Wait: 'durable' }))[0], 'options.Wait');
  assert.equal((await call('embed', ['x'], { kind: 'query' }))[0], 'options.kind');
  assert.equal((await call('listMessages', 'ada', { topK: 1 }))[0], 'options.topK');
  assert.equal((await call('listThreads', 'ada', { topK: 1 }))[0], 'options.topK');
  assert.equal((await call('forgetThread', 'ada', 't', { purged: true }))[0], 'options.purged');
  assert.equal((await call('forget', 'ada', { author: 'x' }))[0], 'conditions.author');
  assert.equal(
    (await refusal(() => new RecallClient({ adress: 'x' } as object)))[0],
    'options.adress',
  );
  assert.equal(
    (await refusal(() => new RecallClient({ tls: { caPath: 'x' } as object })))[0],
    'tls.caPath',
  );
});

test('what has the wrong kind is named, and what was given is not repeated', async () => {
  const wrong: [string, unknown, string][] = [
    ['topK', '4', 'must be a whole number, not string'],
    ['topK', 1.5, 'must be a whole number'],
    ['topK', 0, 'must be 1 or more'],
    ['topK', 2 ** 40, 'must be at most 4294967295'],
    ['threshold', Number.NaN, 'must be a finite number'],
    ['threadId', 7, 'must be a string, not number'],
    ['threadId', 'half \ud83d', 'holds a lone surrogate, which UTF-8 cannot carry'],
    ['scope', 'Thread', 'must be one of "resource", "thread"'],
    ['scope', 'toString', 'must be one of "resource", "thread"'],
    ['roles', 'user', 'must be an array of names, not string'],
    ['createTimeFrom', '2024-01-01', 'must be a Date, not string'],
    ['createTimeFrom', new Date('nonsense'), 'is an invalid Date'],
    ['createTimeTo', null, 'must be a Date, not null'],
    ['excludeMessageIds', 'm1', 'must be an array of ids, not string'],
    ['explain', 1, 'must be true or false, not number'],
    ['filter', [1], 'must be an object, not an array'],
    ['filter', new Map(), 'must be an object, not an object of another kind'],
    ['timeoutMs', 0, 'must be above 0, at most 2147483647 milliseconds'],
    ['timeoutMs', Infinity, 'must be a finite number'],
    ['signal', { aborted: false }, 'must be an AbortSignal, not an object of another kind'],
  ];
  for (const [name, value, description] of wrong) {
    assert.deepEqual(await recall({ [name]: value }), [name, description]);
  }
  const paths: [unknown, string][] = [
    [{ roles: ['user', 'bot'] }, 'roles[1]'],
    [{ excludeMessageIds: ['a', 1] }, 'excludeMessageIds[1]'],
    [{ queryEmbedding: [1, 'x'] }, 'queryEmbedding[1]'],
    [{ messageRange: -1 }, 'messageRange'],
    [{ messageRange: { before: '1' } }, 'messageRange.before'],
    [{ ranking: { recencyHalfLifeMs: -1 } }, 'ranking.recencyHalfLifeMs'],
    [{ filter: { a: { $in: [1, () => 2] } } }, 'filter.a.$in[1]'],
    [{ filter: { a: Infinity } }, 'filter.a'],
    [{ filter: { projectId: undefined } }, 'filter.projectId'],
    [{ filter: { a: 10n } }, 'filter.a'],
    [{ filter: { a: new Date() } }, 'filter.a'],
    [{ contextFormat: 'xml' }, 'contextFormat'],
    [undefined, ''],
  ];
  for (const [options, field] of paths.slice(0, -1)) {
    assert.equal((await recall(options))[0], field);
  }
});

test('messages are named by their position', async () => {
  const wrong: [unknown, string][] = [
    ['hello', 'messages[0]'],
    [{ text: 'no role' }, 'messages[0].role'],
    [{ role: 'User' }, 'messages[0].role'],
    [{ role: 'user', text: null }, 'messages[0].text'],
    [{ role: 'user', payload: 'text' }, 'messages[0].payload'],
    [{ role: 'user', createTime: 0 }, 'messages[0].createTime'],
    [{ role: 'user', createTimeNs: 5 }, 'messages[0].createTimeNs'],
    [{ role: 'user', createTimeNs: 10n ** 30n }, 'messages[0].createTimeNs'],
    [{ role: 'user', metadata: { a: [Symbol('x')] } }, 'messages[0].metadata.a[0]'],
  ];
  for (const [message, field] of wrong) assert.equal((await index(message))[0], field);
  assert.equal((await call('index', 'ada', 't', user('x')))[0], 'messages');
  assert.equal((await call('index', 7, 't', []))[0], 'resourceId');
  let metadata: object = {};
  for (let level = 0; level < 40; level++) metadata = { inner: metadata };
  assert.match((await index({ role: 'user', metadata }))[1], /^is more than 32 levels deep$/);
  const circle: Record<string, unknown> = {};
  circle['self'] = circle;
  assert.match((await index({ role: 'user', metadata: circle }))[1], /levels deep/);
});

test('forgetting asks for what it needs: an empty condition would forget more', async () => {
  for (const conditions of [{}, { threadId: '' }, { authors: [] }, { threadId: undefined }]) {
    const [field] = await call('forget', 'ada', conditions);
    assert.match(field, /^conditions/);
  }
  assert.equal((await call('forgetMessages', 'ada', 'm1'))[0], 'ids');
  assert.equal((await call('forgetBefore', 'ada', '2024'))[0], 'date');
});

test('a client is refused that could not work, or would send its token in plain text', async () => {
  const wrong: [object, string][] = [
    [{ address: 'localhost' }, 'address'],
    [{ address: 'http://127.0.0.1:7650' }, 'address'],
    [{ address: 'localhost:0' }, 'address'],
    [{ address: 'localhost:70000' }, 'address'],
    [{ address: 'unix:' }, 'address'],
    [{ timeoutMs: -1 }, 'timeoutMs'],
    [{ connectTimeoutMs: 'x' }, 'connectTimeoutMs'],
    [{ failOpen: 'no' }, 'failOpen'],
    [{ logger: {} }, 'logger'],
    [{ token: 'two words' }, 'token'],
    [{ token: 'secret', address: 'example.com:7650' }, 'token'],
    [{ tls: { caFile: '/does/not/exist' } }, 'tls.caFile'],
    [{ tls: { ca: 'not pem' } }, 'tls.ca'],
    [{ tls: { ca: '-----BEGIN X-----', caFile: 'y' } }, 'tls.ca'],
    [{ tls: { cert: '-----BEGIN CERTIFICATE-----' } }, 'tls'],
    [{ tls: { ca: '-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----' } }, 'tls'],
  ];
  for (const [options, field] of wrong) {
    const refused = await refusal(() => new RecallClient(options));
    assert.equal(refused[0], field, JSON.stringify(options));
    assert.ok(!refused[1].includes('secret'));
  }
  for (const address of ['unix:///a/b', 'unix:/a/b', '[::1]:7650', 'localhost:1']) {
    const client = new RecallClient({ address, token: 'secret' });
    assert.equal(client.address, address);
    await client.close();
  }
});
