/** The middleware and the tool in real turns of the AI SDK, with a real sidecar. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import {
  generateText,
  isStepCount,
  jsonSchema,
  type LanguageModel,
  type ModelMessage,
  streamText,
  tool,
  wrapLanguageModel,
} from 'ai';
import { MockLanguageModelV3, MockLanguageModelV4 } from 'ai/test';
import { recallMiddleware, type RecallMiddleware, recallTool } from '../src/ai/index.js';
import { RecallClient } from '../src/index.js';
import { refuses } from '../tests/support/refused.js';
import { type Sidecar, startSidecar } from '../tests/support/sidecar.js';
import { saidTo, scriptedModel } from './support/ai-model.js';

const FACT = 'My dog Rex is allergic to chicken.';
const QUESTION = 'What can Rex not eat?';

let sidecar: Sidecar;
let client: RecallClient;

before(async () => {
  sidecar = await startSidecar();
  client = sidecar.client();
});

after(async () => {
  await sidecar.stop();
});

/** A user nobody has heard of. */
function stranger(): string {
  return `user-${randomUUID()}`;
}

function as(resourceId: string, threadId: string) {
  return { providerOptions: { semanticrecall: { resourceId, threadId } } };
}

function remembering(model: MockLanguageModelV4, middleware: RecallMiddleware): LanguageModel {
  return wrapLanguageModel({ model, middleware });
}

async function stored(resourceId: string): Promise<string[]> {
  const texts: string[] = [];
  for await (const { threadId, role, text } of client.listMessages(resourceId)) {
    texts.push(`${threadId} ${role}: ${text}`);
  }
  return texts;
}

/** What the middleware put into the prompt of a call. */
function recalledBy(model: MockLanguageModelV4, call: number): string {
  const calls = [...model.doGenerateCalls, ...model.doStreamCalls];
  const texts = calls[call]?.prompt.flatMap(({ content }) =>
    typeof content === 'string'
      ? []
      : content.filter((part) => part.providerOptions?.['semanticrecall']?.['recalled'] === true),
  );
  return (texts ?? []).map((part) => (part.type === 'text' ? part.text : '')).join('');
}

test('a fact said in one thread is there in another', async () => {
  const user = stranger();
  const scripted = scriptedModel({ text: 'Noted.' }, { text: 'Chicken.' });
  const middleware = recallMiddleware({ client, wait: 'searchable' });
  const model = remembering(scripted, middleware);

  await generateText({ model, prompt: FACT, ...as(user, 'monday') });
  assert.deepEqual(saidTo(scripted.doGenerateCalls[0]), [`user: ${FACT}`]);
  assert.deepEqual(await stored(user), [`monday user: ${FACT}`, 'monday assistant: Noted.']);

  const { text } = await generateText({ model, prompt: QUESTION, ...as(user, 'friday') });
  assert.equal(text, 'Chicken.');
  const recalled = recalledBy(scripted, 1);
  assert.ok(recalled.includes(FACT), recalled);
  assert.deepEqual(saidTo(scripted.doGenerateCalls[1]), [`user: ${recalled}|${QUESTION}`]);
  assert.deepEqual((await stored(user)).slice(2), [
    `friday user: ${QUESTION}`,
    'friday assistant: Chicken.',
  ]);
  assert.deepEqual(middleware.stats, {
    recalls: 2,
    recallsEmpty: 1,
    recallsFailed: 0,
    messagesIndexed: 4,
    messagesRejected: 0,
    messagesNotIndexed: 0,
    messagesDropped: 0,
    pendingMessages: 0,
    textsCut: 0,
    failedCalls: 0,
    callsWithoutResource: 0,
    callsWithoutThread: 0,
  });
});

test('placement "system" and a model of the former specification', async () => {
  const user = stranger();
  await client.index(user, 'monday', [{ role: 'user', text: FACT }]);
  const usage = {
    inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
    outputTokens: { total: 1, text: 1, reasoning: 0 },
  };
  const mock = new MockLanguageModelV3({
    doGenerate: {
      content: [{ type: 'text', text: 'Chicken.' }],
      finishReason: { unified: 'stop', raw: undefined },
      usage,
      warnings: [],
    },
  });
  const middleware = recallMiddleware({ client, placement: 'system' });
  const model = wrapLanguageModel({ model: mock, middleware });
  await generateText({ model, instructions: 'Be brief.', prompt: QUESTION, ...as(user, 'friday') });
  const prompt = mock.doGenerateCalls[0]?.prompt ?? [];
  assert.deepEqual(
    prompt.map(({ role }) => role),
    ['system', 'system', 'user'],
  );
  assert.equal(prompt[0]?.content, 'Be brief.');
  const memories = prompt[1]?.content;
  assert.ok(typeof memories === 'string' && memories.includes(FACT));
  assert.deepEqual((await stored(user)).slice(1), [
    `friday user: ${QUESTION}`,
    'friday assistant: Chicken.',
  ]);
});

test('a streamed turn: the text arrives before anything is indexed', async () => {
  const user = stranger();
  await client.index(user, 'monday', [{ role: 'user', text: FACT }]);
  const events: string[] = [];
  const watched = {
    recall: client.recall.bind(client),
    index: (...call: Parameters<RecallClient['index']>) => {
      events.push('index');
      return client.index(...call);
    },
  };
  const scripted = scriptedModel({ text: 'No chicken for Rex.' });
  const model = remembering(scripted, recallMiddleware({ client: watched }));
  const result = streamText({ model, prompt: QUESTION, ...as(user, 'friday') });
  for await (const delta of result.textStream) events.push(delta);
  assert.deepEqual(events, ['No ', 'chicken ', 'for ', 'Rex.', 'index']);
  assert.ok(recalledBy(scripted, 0).includes(FACT));
  assert.deepEqual((await stored(user)).slice(1), [
    `friday user: ${QUESTION}`,
    'friday assistant: No chicken for Rex.',
  ]);
});

test('a turn with tools: every step has the memories once, every message is stored once', async () => {
  const user = stranger();
  await client.index(user, 'monday', [{ role: 'user', text: FACT }]);
  const weather = tool({
    inputSchema: jsonSchema<{ city: string }>({ type: 'object', properties: {} }),
    execute: () => 'sunny',
  });
  const call = { toolName: 'weather', input: { city: 'Bonn' } };
  for (const mode of ['generate', 'stream']) {
    const scripted = scriptedModel(
      { text: `I look it up (${mode}).`, call },
      { text: `No chicken, and it is sunny (${mode}).` },
    );
    const middleware = recallMiddleware({ client });
    const settings = {
      model: remembering(scripted, middleware),
      prompt: `${QUESTION} And how is the weather (${mode})?`,
      tools: { weather },
      stopWhen: isStepCount(3),
      ...as(user, mode),
    };
    const text =
      mode === 'generate' ? (await generateText(settings)).text : await streamText(settings).text;
    assert.equal(text, `No chicken, and it is sunny (${mode}).`);
    const [first, second] = [recalledBy(scripted, 0), recalledBy(scripted, 1)];
    assert.ok(first.includes(FACT));
    assert.equal(second, first);
    assert.equal(middleware.stats.messagesIndexed, 4);
    const thread = (await stored(user)).filter((line) => line.startsWith(mode));
    assert.deepEqual(thread, [
      `${mode} user: ${settings.prompt}`,
      `${mode} assistant: I look it up (${mode}).`,
      `${mode} assistant: No chicken, and it is sunny (${mode}).`,
    ]);
  }
});

test('what the prompt holds is not recalled into it again', async () => {
  const user = stranger();
  const scripted = scriptedModel({ text: 'Noted.' }, { text: 'Chicken.' }, { text: 'As I said.' });
  const model = remembering(scripted, recallMiddleware({ client, wait: 'searchable' }));
  const messages: ModelMessage[] = [{ role: 'user', content: FACT }];
  for (const question of [QUESTION, 'And what is Rex allergic to?', undefined]) {
    const { finalStep } = await generateText({ model, messages, ...as(user, 'monday') });
    messages.push(...finalStep.response.messages);
    if (question !== undefined) messages.push({ role: 'user', content: question });
  }
  assert.deepEqual(saidTo(scripted.doGenerateCalls[2]), [
    `user: ${FACT}`,
    'assistant: Noted.',
    `user: ${QUESTION}`,
    'assistant: Chicken.',
    'user: And what is Rex allergic to?',
  ]);
  // With the beginning of the conversation trimmed away, it comes back as a memory; the rest not.
  const trimmed = scriptedModel({ text: 'Chicken.' });
  const later = remembering(trimmed, recallMiddleware({ client }));
  await generateText({ model: later, messages: messages.slice(2, -1), ...as(user, 'monday') });
  const recalled = recalledBy(trimmed, 0);
  assert.ok(recalled.includes(FACT) && recalled.includes('Noted.'), recalled);
  assert.ok(!recalled.includes(QUESTION), recalled);
});

test('two users never see each other’s', async () => {
  const [ann, bob] = [stranger(), stranger()];
  const scripted = scriptedModel({ text: 'Noted.' }, { text: 'I do not know.' });
  const model = remembering(scripted, recallMiddleware({ client, wait: 'searchable' }));
  await generateText({ model, prompt: FACT, ...as(ann, 'same-thread') });
  await generateText({ model, prompt: QUESTION, ...as(bob, 'same-thread') });
  assert.deepEqual(saidTo(scripted.doGenerateCalls[1]), [`user: ${QUESTION}`]);
  assert.deepEqual(await stored(bob), [
    `same-thread user: ${QUESTION}`,
    'same-thread assistant: I do not know.',
  ]);
  assert.deepEqual(await stored(ann), [
    `same-thread user: ${FACT}`,
    'same-thread assistant: Noted.',
  ]);
});

test('turns of many users at once do not mix', async () => {
  const users = Array.from({ length: 6 }, stranger);
  const middleware = recallMiddleware({ client, wait: 'searchable' });
  const turns = users.map(async (user, index) => {
    const scripted = scriptedModel({ text: `Noted ${index}.` }, { text: `Answer ${index}.` });
    const model = remembering(scripted, middleware);
    await generateText({ model, prompt: `My secret word is w${index}.`, ...as(user, 'a') });
    await streamText({ model, prompt: 'What is my secret word?', ...as(user, 'b') }).text;
    return recalledBy(scripted, 1) + recalledBy(scripted, 0);
  });
  for (const [index, recalled] of (await Promise.all(turns)).entries()) {
    assert.deepEqual(recalled.match(/secret word is w\d+/gu), [`secret word is w${index}`]);
    assert.deepEqual(await stored(users[index] ?? ''), [
      `a user: My secret word is w${index}.`,
      `a assistant: Noted ${index}.`,
      'b user: What is my secret word?',
      `b assistant: Answer ${index}.`,
    ]);
  }
});

test('a call without an identity has no memory', async () => {
  const scripted = scriptedModel({ text: 'Hello.' });
  const middleware = recallMiddleware({ client });
  await generateText({ model: remembering(scripted, middleware), prompt: FACT });
  assert.deepEqual(saidTo(scripted.doGenerateCalls[0]), [`user: ${FACT}`]);
  assert.equal(middleware.stats.callsWithoutResource, 1);
});

test('a turn whose model fails is not indexed, and fails as without middleware', async () => {
  const user = stranger();
  const failure = new Error('the model is away');
  const middleware = recallMiddleware({ client });
  const model = remembering(scriptedModel({ failure }), middleware);
  const turn = generateText({ model, prompt: FACT, maxRetries: 0, ...as(user, 'monday') });
  await assert.rejects(turn, (error) => error === failure);
  assert.deepEqual(await stored(user), []);
  assert.equal(middleware.stats.failedCalls, 1);
});

test('a streamed turn that is aborted is not indexed', async () => {
  const user = stranger();
  const controller = new AbortController();
  const middleware = recallMiddleware({ client });
  const model = remembering(scriptedModel({ text: 'No chicken for Rex.' }), middleware);
  const { abortSignal } = { abortSignal: controller.signal };
  const result = streamText({ model, prompt: FACT, abortSignal, ...as(user, 'monday') });
  const types: string[] = [];
  for await (const part of result.stream) {
    types.push(part.type);
    if (part.type === 'text-delta') controller.abort();
  }
  assert.equal(types.at(-1), 'abort');
  assert.deepEqual(await stored(user), []);
  assert.equal(middleware.stats.failedCalls, 1);
});

test('a turn that is aborted while it recalls ends as aborted, without a failure of memory', async () => {
  const controller = new AbortController();
  const reason = new Error('the user left');
  const slow = {
    index: client.index.bind(client),
    recall: (...[resourceId, query, options]: Parameters<RecallClient['recall']>) => {
      controller.abort(reason);
      return client.recall(resourceId, query, options);
    },
  };
  const middleware = recallMiddleware({ client: slow });
  let passed: AbortSignal | undefined;
  const mock = new MockLanguageModelV4({
    doGenerate: ({ abortSignal }) => {
      passed = abortSignal;
      abortSignal?.throwIfAborted();
      throw new Error('not aborted');
    },
  });
  const turn = generateText({
    model: remembering(mock, middleware),
    prompt: FACT,
    abortSignal: controller.signal,
    ...as(stranger(), 'monday'),
  });
  await assert.rejects(turn, (error) => error === reason);
  assert.equal(passed?.aborted, true);
  assert.equal(middleware.stats.recallsFailed, 0);
});

test('without a sidecar a turn answers as without memory, and says so', async () => {
  const lines: string[] = [];
  const middleware = recallMiddleware({
    address: 'unix:/tmp/semanticrecall-nobody-listens.sock',
    timeoutMs: 500,
    logger: { warn: (message) => lines.push(message) },
  });
  const scripted = scriptedModel({ text: 'Hello.' }, { text: 'Hello again.' });
  const model = remembering(scripted, middleware);
  const who = as(stranger(), 'monday');
  assert.equal((await generateText({ model, prompt: FACT, ...who })).text, 'Hello.');
  assert.equal(await streamText({ model, prompt: FACT, ...who }).text, 'Hello again.');
  assert.deepEqual(saidTo(scripted.doGenerateCalls[0]), [`user: ${FACT}`]);
  assert.equal(middleware.stats.recallsFailed, 2);
  assert.equal(middleware.stats.messagesNotIndexed, 4);
  assert.equal(lines.length, 4);
  await middleware.close();
});

test('the model looks with the tool, and cannot choose whose memory it is', async () => {
  const [ann, bob] = [stranger(), stranger()];
  const createTime = new Date('2024-02-01T03:05:00.500Z');
  await client.index(ann, 'monday', [{ role: 'user', author: 'Ann', text: FACT, createTime }]);
  const recall = recallTool({ client, resourceId: ann, threadId: 'friday', topKMax: 1 });
  const input = { query: QUESTION, topK: 9 };
  const scripted = scriptedModel(
    { call: { toolName: 'recall', input } },
    { call: { toolName: 'recall', input: { ...input, resourceId: bob } } },
    { call: { toolName: 'recall', input: { topK: 2 } } },
    { text: 'Chicken.' },
  );
  const { steps } = await generateText({
    model: scripted,
    prompt: QUESTION,
    tools: { recall },
    stopWhen: isStepCount(5),
  });
  const found = {
    messages: [
      {
        at: '2024-02-01T03:05:00Z',
        role: 'user',
        author: 'Ann',
        thread: 'monday',
        text: FACT,
        found: true,
      },
    ],
  };
  assert.deepEqual(steps[0]?.toolResults[0]?.output, found);
  assert.deepEqual(steps[1]?.toolResults[0]?.output, found);
  assert.equal(steps[2]?.content.at(-1)?.type, 'tool-error');
  const [offered] = scripted.doGenerateCalls[0]?.tools ?? [];
  assert.ok(offered?.type === 'function');
  assert.deepEqual(Object.keys(offered.inputSchema.properties ?? {}), ['query', 'topK']);
});

test('a tool that is given an address has a connection of its own, and closes it', async () => {
  const ann = stranger();
  await client.index(ann, 'monday', [{ role: 'user', text: FACT }]);
  const recall = recallTool({ address: sidecar.address, resourceId: ann });
  const scripted = scriptedModel(
    { call: { toolName: 'recall', input: { query: QUESTION } } },
    { text: 'Chicken.' },
  );
  const { steps } = await generateText({
    model: scripted,
    prompt: QUESTION,
    tools: { recall },
    stopWhen: isStepCount(5),
  });
  assert.ok(JSON.stringify(steps[0]?.toolResults[0]?.output).includes(FACT));
  await recall.close();
  const call = { toolCallId: 'call-1', messages: [], context: {} };
  const closed = recall.execute?.({ query: QUESTION }, call);
  await assert.rejects(Promise.resolve(closed), { reason: 'CLIENT_CLOSED' });
});

describe('options of recallTool', () => {
  const nobody = { recall: () => Promise.reject(new Error('nobody is asked')) };
  refuses(
    (options) => recallTool({ client: nobody, resourceId: 'ann', ...options }),
    [
      [{ topMax: 4 }, 'options.topMax'],
      [{ address: '127.0.0.1:1' }, 'address'],
      [{ token: 'secret' }, 'token'],
      [{ tls: true }, 'tls'],
      [{ client: undefined, address: 'nowhere' }, 'address'],
      [{ client: undefined, address: 'recall.example:7650', token: 'secret' }, 'token'],
      [{ client: undefined, tls: { certFile: 'nowhere.pem' } }, 'tls.certFile'],
      [{ client: {} }, 'client.recall'],
      [{ resourceId: undefined }, 'resourceId'],
      [{ threadId: 7 }, 'threadId'],
      [{ scope: 'all' }, 'scope'],
      [{ messageRange: -1 }, 'messageRange'],
      [{ ranking: { recency: 1 } }, 'ranking.recency'],
      [{ topK: 0 }, 'topK'],
      [{ topK: 21 }, 'topK'],
      [{ topK: 5, topKMax: 4 }, 'topK'],
      [{ topKMax: 0 }, 'topKMax'],
      [{ maxTokens: -1 }, 'maxTokens'],
      [{ timeoutMs: 0 }, 'timeoutMs'],
      [{ description: 7 }, 'description'],
    ],
  );
});

test('a tool without a sidecar says that nothing is known, and the turn goes on', async () => {
  const address = 'unix:/tmp/semanticrecall-nobody-listens.sock';
  const logger = { warn: () => undefined };
  await using away = new RecallClient({ address, logger, connectTimeoutMs: 100 });
  const recall = recallTool({ client: away, resourceId: stranger() });
  const scripted = scriptedModel(
    { call: { toolName: 'recall', input: { query: QUESTION } } },
    { text: 'I cannot look now.' },
  );
  const { text, steps } = await generateText({
    model: scripted,
    prompt: QUESTION,
    tools: { recall },
    stopWhen: isStepCount(5),
  });
  assert.equal(text, 'I cannot look now.');
  const last = steps[0]?.content.at(-1);
  assert.ok(last?.type === 'tool-error' && String(last.error).includes('cannot be reached'));
});

test('a sidecar that ends within a turn: the turn answers, and is stored when it is sent again', async () => {
  const user = stranger();
  const own = sidecar.client({ connectTimeoutMs: 100 });
  const retries: (() => Promise<void>)[] = [];
  const middleware = recallMiddleware({
    client: own,
    logger: { warn: () => undefined },
    onError: ({ retry }) => retries.push(retry ?? assert.fail('nothing to retry')),
  });
  const mock = new MockLanguageModelV4({
    doStream: async () => {
      await sidecar.kill();
      return await scriptedModel({ text: 'Noted.' }).doStream({ prompt: [] });
    },
  });
  const model = remembering(mock, middleware);
  assert.equal(await streamText({ model, prompt: FACT, ...as(user, 'monday') }).text, 'Noted.');
  assert.equal(middleware.stats.messagesNotIndexed, 2);
  assert.equal(retries.length, 1);
  await sidecar.start();
  for (const retry of [...retries, ...retries]) await retry();
  assert.deepEqual(await stored(user), [`monday user: ${FACT}`, 'monday assistant: Noted.']);
});
