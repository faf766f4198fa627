import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { StreamPart } from '../src/ai/answer.js';
import { asks, DELTAS, QUESTION, quiet, readAll, sourceOf } from './support/ai-calls.js';
import { FakeMemory } from './support/fake-memory.js';

test('a stream passes through part by part, and is indexed after its last part', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  const source = sourceOf(DELTAS);
  const doStream = () => Promise.resolve({ stream: source.stream, request: { body: 1 } });
  const answer = await middleware.wrapStream({ doStream, params });
  assert.deepEqual(answer.request, { body: 1 });
  assert.equal(source.asked(), 0);
  const reader = answer.stream.getReader();
  for (const [index, part] of DELTAS.entries()) {
    assert.deepEqual(await reader.read(), { done: false, value: part });
    assert.equal(source.asked(), index + 1);
  }
  assert.equal(memory.indexes.length, 0);
  assert.equal((await reader.read()).done, true);
  assert.deepEqual(
    memory.indexes.map(({ messages }) => messages.map(({ text }) => text)),
    [[QUESTION, 'Rex must not eat chicken.']],
  );
});

test('blocks of text are told apart', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = asks();
  const parts = [
    { type: 'text-delta', id: '1', delta: 'One ' },
    { type: 'text-delta', id: '2', delta: 'Two' },
    { type: 'reasoning-delta', id: '3', delta: 'unsaid' },
    { type: 'text-delta', id: '1', delta: 'more' },
    { type: 'finish', finishReason: 'stop' },
  ];
  const doStream = () => Promise.resolve({ stream: sourceOf(parts).stream });
  await readAll((await middleware.wrapStream({ doStream, params })).stream);
  assert.equal(memory.indexes[0]?.messages[1]?.text, 'One more\nTwo');
});

test('a stream that breaks off, fails or has no end is not indexed', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  const open = async (source: ReadableStream<StreamPart>) =>
    (await middleware.wrapStream({ doStream: () => Promise.resolve({ stream: source }), params }))
      .stream;

  const broken = new Error('connection lost');
  const rest = readAll(await open(sourceOf(DELTAS.slice(0, 3), broken).stream));
  await assert.rejects(rest, (error) => error === broken);
  await readAll(await open(sourceOf(DELTAS.slice(0, 4)).stream));
  await readAll(await open(sourceOf([{ type: 'error' }, ...DELTAS]).stream));
  const source = sourceOf(DELTAS);
  const reader = (await open(source.stream)).getReader();
  await reader.read();
  await reader.cancel('enough');
  assert.equal(source.cancelled(), 'enough');
  assert.equal(memory.indexes.length, 0);
  assert.equal(middleware.stats.failedCalls, 4);
});

test('a reader who leaves after the last part does not lose the turn', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  const doStream = () => Promise.resolve({ stream: sourceOf(DELTAS).stream });
  const reader = (await middleware.wrapStream({ doStream, params })).stream.getReader();
  for (const part of DELTAS) assert.deepEqual((await reader.read()).value, part);
  await reader.cancel();
  assert.equal(memory.indexes.length, 1);
});

test('a reader who leaves while the turn is indexed does not have it indexed twice', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  const doStream = () => Promise.resolve({ stream: sourceOf(DELTAS).stream });
  const reader = (await middleware.wrapStream({ doStream, params })).stream.getReader();
  for (const part of DELTAS) assert.deepEqual((await reader.read()).value, part);
  let release = (): void => undefined;
  memory.held = new Promise((resolve) => (release = resolve));
  const last = reader.read();
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(memory.indexes.length, 1);
  const cancelled = reader.cancel();
  release();
  await cancelled;
  assert.equal((await last).done, true);
  assert.equal(memory.indexes.length, 1);
});
