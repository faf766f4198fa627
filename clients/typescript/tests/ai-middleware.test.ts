import assert from 'node:assert/strict';
import { test } from 'node:test';
import type {
  LanguageModelV2Middleware,
  LanguageModelV3Middleware,
  LanguageModelV4Middleware,
} from '@ai-sdk/provider';
import { recallMiddleware } from '../src/ai/middleware.js';
import type { GeneratedAnswer, ModelCall } from '../src/ai/options.js';
import type { PromptMessage } from '../src/ai/prompt.js';
import { InvalidArgumentError, RecallResult, UnavailableError } from '../src/index.js';
import { asks, FACT, generated, IDS, MARK, QUESTION, quiet, says } from './support/ai-calls.js';
import { FakeMemory } from './support/fake-memory.js';

test('it fits wrapLanguageModel of AI SDK 5, 6 and 7', () => {
  const { middleware } = quiet(new FakeMemory());
  const five: LanguageModelV2Middleware = middleware;
  const six: LanguageModelV3Middleware = middleware;
  const seven: Omit<LanguageModelV4Middleware, 'specificationVersion'> = middleware;
  assert.equal(six.specificationVersion, 'v3');
  assert.equal(five.transformParams, seven.transformParams);
});

test('memories go before the text of the last user message, as a part of their own', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware } = quiet(memory);
  const system: PromptMessage = { role: 'system', content: 'Be brief.' };
  const params = { ...asks(system, says('user', FACT), says('assistant', 'Noted.')), seed: 7 };
  const transformed = await middleware.transformParams({ params });
  assert.deepEqual(transformed, {
    prompt: [
      system,
      says('user', FACT),
      says('assistant', 'Noted.'),
      {
        role: 'user',
        content: [
          { type: 'text', text: '<memories/>\n', providerOptions: MARK },
          { type: 'text', text: QUESTION },
        ],
      },
    ],
    seed: 7,
  });
});

test('placement "system" puts them behind the system messages', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware } = quiet(memory, { placement: 'system' });
  const system: PromptMessage = { role: 'system', content: 'Be brief.' };
  const { prompt } = await middleware.transformParams({ params: asks(system) });
  assert.deepEqual(prompt, [
    system,
    { role: 'system', content: '<memories/>', providerOptions: MARK },
    says('user', QUESTION),
  ]);
});

test('a recall asks for what the options say, without what the prompt holds', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory, {
    topK: 7,
    messageRange: 2,
    threshold: 0.3,
    scope: 'thread',
    filter: { project: 'A' },
    maxTokens: 500,
    ranking: { mode: 'dense' },
    timeZone: 'Europe/Berlin',
    timeoutMs: 1234,
  });
  const signal = new AbortController().signal;
  const params = { ...asks(says('user', FACT), says('assistant', 'Noted.')), abortSignal: signal };
  await middleware.transformParams({ params });
  assert.equal(memory.recalls.length, 1);
  const [call] = memory.recalls;
  assert.equal(call?.resourceId, 'u1');
  assert.equal(call.query, QUESTION);
  assert.equal(call.options?.signal, signal);
  assert.deepEqual(call.options.excludeMessageIds, [IDS.fact, IDS.noted, IDS.question]);
  const { topK, messageRange, threshold, scope, filter, maxTokens, ranking } = call.options;
  assert.deepEqual(
    { topK, messageRange, threshold, scope, filter, maxTokens, ranking },
    {
      topK: 7,
      messageRange: 2,
      threshold: 0.3,
      scope: 'thread',
      filter: { project: 'A' },
      maxTokens: 500,
      ranking: { mode: 'dense' },
    },
  );
  assert.equal(call.options.threadId, 't1');
  assert.equal(call.options.timeZone, 'Europe/Berlin');
  assert.equal(call.options.timeoutMs, 1234);
});

test('an answer is indexed with the message it answers, under the ids of later turns', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware } = quiet(memory, { author: 'Ann', metadata: { project: 'A' } });
  const params = await middleware.transformParams({ params: { prompt: [says('user', FACT)] } });
  const answer = await middleware.wrapGenerate({ doGenerate: generated('Noted.'), params });
  assert.deepEqual(answer.content, [{ type: 'text', text: 'Noted.' }]);
  const [call] = memory.indexes;
  const { timeoutMs = 0, ...options } = call?.options ?? {};
  assert.ok(timeoutMs > 0 && timeoutMs <= 3_000);
  assert.deepEqual(
    { ...call, options },
    {
      resourceId: 'u1',
      threadId: 't1',
      messages: [
        { id: IDS.fact, role: 'user', text: FACT, author: 'Ann' },
        { id: IDS.noted, role: 'assistant', text: 'Noted.' },
      ],
      options: { metadata: { project: 'A' }, wait: 'durable' },
    },
  );
  assert.equal(memory.indexes.length, 1);
  assert.equal(middleware.stats.messagesIndexed, 2);
});

test('equal messages of a thread have ids of their own', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = asks(says('user', QUESTION), says('assistant', 'No fowl.'));
  await middleware.transformParams({ params });
  await middleware.wrapGenerate({ doGenerate: generated('No fowl.'), params });
  const [first, fowl, second] = memory.recalls[0]?.options?.excludeMessageIds ?? [];
  assert.equal(first, IDS.question);
  assert.equal(second, `${IDS.question}-1`);
  assert.deepEqual(
    memory.indexes[0]?.messages.map(({ id }) => id),
    [`${IDS.question}-1`, `${String(fowl)}-1`],
  );
});

test('ids that the application gives its messages are taken', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const own = (message: PromptMessage, messageId: string): PromptMessage => ({
    ...message,
    providerOptions: { semanticrecall: { messageId } },
  });
  const prompt = [own(says('user', FACT), 'db-1'), own(says('user', QUESTION), 'db-2')];
  const params = await middleware.transformParams({ params: { prompt } });
  await middleware.wrapGenerate({ doGenerate: generated('Chicken.'), params });
  assert.deepEqual(memory.recalls[0]?.options?.excludeMessageIds, ['db-1', 'db-2']);
  assert.equal(memory.indexes[0]?.messages[0]?.id, 'db-2');
});

test('a prompt that went through before is not given memories twice', async () => {
  for (const placement of ['beforeLastUser', 'system'] as const) {
    const memory = new FakeMemory().saying('<memories/>');
    const { middleware } = quiet(memory, { placement });
    const once = await middleware.transformParams({ params: asks() });
    const twice = await middleware.transformParams({ params: once });
    assert.deepEqual(twice, once);
    assert.deepEqual(
      memory.recalls.map(({ query }) => query),
      [QUESTION, QUESTION],
    );
  }
});

test('a step after a tool call recalls the same, and its text is indexed once', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware } = quiet(memory);
  const first = await middleware.transformParams({ params: asks() });
  await middleware.wrapGenerate({ doGenerate: generated('I look.', 'tool-calls'), params: first });
  const steps: PromptMessage[] = [
    { role: 'assistant', content: [{ type: 'text', text: 'I look.' }, { type: 'tool-call' }] },
    { role: 'tool', content: [{ type: 'tool-result' }] },
  ];
  const second = await middleware.transformParams({
    params: { prompt: [...asks().prompt, ...steps] },
  });
  assert.deepEqual(second.prompt, [...first.prompt, ...steps]);
  await middleware.wrapGenerate({ doGenerate: generated('No chicken.'), params: second });
  const ids = memory.indexes.map(({ messages }) => messages.map(({ id }) => id));
  assert.equal(ids[0]?.[0], IDS.question);
  assert.equal(ids[1]?.[0], IDS.question);
  const texts = memory.indexes.map(({ messages }) => messages.map(({ text }) => text));
  assert.deepEqual(texts, [
    [QUESTION, 'I look.'],
    [QUESTION, 'No chicken.'],
  ]);
});

test('an image is not searched for by an older question, and the answer to it is indexed', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware } = quiet(memory);
  const image: PromptMessage = { role: 'user', content: [{ type: 'file' }] };
  const params = await middleware.transformParams({
    params: { prompt: [says('user', FACT), image] },
  });
  assert.deepEqual(params.prompt, [says('user', FACT), image]);
  assert.deepEqual(memory.recalls, []);
  await middleware.wrapGenerate({ doGenerate: generated('A dog.'), params });
  assert.deepEqual(
    memory.indexes[0]?.messages.map(({ text }) => text),
    ['A dog.'],
  );
});

test('a blank message is neither searched for nor indexed', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: { prompt: [says('user', ' \n')] } });
  await middleware.wrapGenerate({ doGenerate: generated('  '), params });
  assert.deepEqual([memory.recalls, memory.indexes], [[], []]);
});

test('text longer than the server takes is cut between characters', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  // 4 bytes each, with one byte in front: the limit of 262,144 lies inside a character.
  const text = `a${'𝄞'.repeat(65_536)}`;
  const params = { prompt: [says('user', text)] };
  await middleware.transformParams({ params });
  assert.equal(memory.recalls[0]?.query, `a${'𝄞'.repeat(65_535)}`);
  await middleware.wrapGenerate({ doGenerate: generated(text), params });
  assert.deepEqual(
    memory.indexes[0]?.messages.map((message) => message.text?.length),
    [131_071, 131_071],
  );
  assert.equal(middleware.stats.textsCut, 2);
});

test('a call that fails is passed on and not indexed', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  const error = new Error('no model');
  const doGenerate = () => Promise.reject(error);
  await assert.rejects(middleware.wrapGenerate({ doGenerate, params }), (e) => e === error);
  const doStream = () => Promise.reject(error);
  await assert.rejects(middleware.wrapStream({ doStream, params }), (e) => e === error);
  for (const reason of ['error', { unified: 'error' }]) {
    await middleware.wrapGenerate({ doGenerate: generated('Half', reason), params });
  }
  assert.deepEqual(memory.indexes, []);
  assert.equal(middleware.stats.failedCalls, 4);
});

test('an aborted call is not indexed, and that its recall ended is no failure', async () => {
  const memory = new FakeMemory();
  const { middleware, failures } = quiet(memory);
  const controller = new AbortController();
  const params = { ...asks(), abortSignal: controller.signal };
  memory.answer = () => {
    controller.abort();
    throw new DOMException('aborted', 'AbortError');
  };
  const transformed = await middleware.transformParams({ params });
  assert.deepEqual(transformed.prompt, params.prompt);
  await middleware.wrapGenerate({ doGenerate: generated('Late.'), params: transformed });
  assert.deepEqual([memory.indexes, failures], [[], []]);
  assert.equal(middleware.stats.failedCalls, 1);
});

test('without a sidecar the call goes on, and the failure is logged, told and counted', async () => {
  const memory = new FakeMemory();
  const { middleware, failures, lines } = quiet(memory);
  const down = new UnavailableError('no sidecar', { reason: 'UNREACHABLE' });
  memory.answer = () => {
    throw down;
  };
  memory.outcome = () => {
    throw down;
  };
  const params = await middleware.transformParams({ params: asks() });
  assert.deepEqual(params.prompt, asks().prompt);
  const answer = await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  assert.equal(answer.content[0]?.text, 'Hm.');
  assert.deepEqual(
    failures.map(({ operation, error }) => ({ operation, error })),
    [
      { operation: 'recall', error: down },
      { operation: 'index', error: down },
    ],
  );
  assert.deepEqual(lines, [
    '[SemanticRecall] nothing could be recalled; the call goes on without memories (UNREACHABLE)',
    '[SemanticRecall] the turn could not be indexed (UNREACHABLE)',
  ]);
  const { recalls, recallsFailed, messagesIndexed, messagesNotIndexed } = middleware.stats;
  assert.deepEqual([recalls, recallsFailed, messagesIndexed, messagesNotIndexed], [1, 1, 0, 2]);
});

test('a turn that was not indexed can be sent again, under its ids and with its time', async () => {
  const memory = new FakeMemory();
  const { middleware, failures } = quiet(memory, { metadata: { project: 'A' } });
  const indexed = memory.outcome;
  const down = new UnavailableError('no sidecar', { reason: 'UNREACHABLE' });
  memory.outcome = () => {
    throw down;
  };
  const from = Date.now();
  const params = await middleware.transformParams({ params: asks() });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  const to = Date.now();
  const retry = failures[0]?.retry;
  assert.ok(retry);
  await assert.rejects(retry(), (error) => error === down);
  memory.outcome = indexed;
  await retry();
  const [first, , last] = memory.indexes;
  assert.equal(memory.indexes.length, 3);
  assert.deepEqual(last?.options, {
    metadata: { project: 'A' },
    wait: 'durable',
    timeoutMs: 3_000,
  });
  assert.deepEqual(
    last.messages.map(({ id, role, text }) => ({ id, role, text })),
    first?.messages.map(({ id, role, text }) => ({ id, role, text })),
  );
  for (const { createTime } of last.messages) {
    const time = createTime?.getTime() ?? 0;
    assert.ok(time >= from && time <= to);
  }
});

test('a client that fails open does not hide that it failed', async () => {
  const memory = new FakeMemory();
  memory.answer = () => new RecallResult({ degraded: 'QUEUE_FULL' });
  const { middleware, failures } = quiet(memory);
  await middleware.transformParams({ params: asks() });
  const error = failures[0]?.error;
  assert.ok(error instanceof UnavailableError);
  assert.equal(error.reason, 'QUEUE_FULL');
  assert.equal(middleware.stats.recallsFailed, 1);
});

test('a rejected message is told of, and the others count', async () => {
  const memory = new FakeMemory();
  const error = InvalidArgumentError.of('messages[0].text', 'is too long');
  memory.outcome = ({ id = '', role }) =>
    role === 'user'
      ? { messageId: id, status: 'rejected', error }
      : { messageId: id, status: 'unchanged', error: undefined };
  const { middleware, failures } = quiet(memory);
  const params = await middleware.transformParams({ params: asks() });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  assert.deepEqual(
    failures.map((failure) => failure.error),
    [error],
  );
  const { messagesIndexed, messagesRejected } = middleware.stats;
  assert.deepEqual([messagesIndexed, messagesRejected], [1, 1]);
});

test('a logger and a listener that throw end nothing', async () => {
  const memory = new FakeMemory();
  const broken = () => {
    throw new Error('broken');
  };
  memory.answer = broken;
  const { middleware } = quiet(memory, { logger: { warn: broken }, onError: broken });
  await middleware.transformParams({ params: asks() });
  assert.equal(middleware.stats.recallsFailed, 1);
});

test('a logger and a listener that reject end nothing', async () => {
  const memory = new FakeMemory();
  memory.answer = () => {
    throw new Error('broken');
  };
  let calls = 0;
  // An async function fits where nothing is awaited; unhandled, its rejection would end the process.
  const rejects = ((): unknown => {
    calls += 1;
    return Promise.reject(new Error('broken'));
  }) as () => void;
  const { middleware } = quiet(memory, { logger: { warn: rejects }, onError: rejects });
  await middleware.transformParams({ params: asks() });
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(calls, 2);
});

test('a prompt and an answer that are not as they should be end nothing', async () => {
  const memory = new FakeMemory().saying('<memories/>');
  const { middleware, failures } = quiet(memory);
  const broken = JSON.parse('{"prompt":[{"role":"user"}]}') as ModelCall;
  assert.equal(await middleware.transformParams({ params: broken }), broken);
  const empty = JSON.parse('{"finishReason":"stop"}') as GeneratedAnswer;
  const doGenerate = () => Promise.resolve(empty);
  assert.equal(await middleware.wrapGenerate({ doGenerate, params: asks() }), empty);
  assert.deepEqual(
    failures.map(({ operation }) => operation),
    ['recall', 'index'],
  );
});

test('calls that do not say whose turn it is are counted, and told of once', async () => {
  const memory = new FakeMemory();
  const nobody = quiet(memory, { resourceId: undefined });
  const threadless = quiet(memory, { threadId: undefined });
  for (const { middleware } of [nobody, nobody, threadless, threadless]) {
    const params = await middleware.transformParams({ params: asks() });
    await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  }
  assert.deepEqual(nobody.lines, [
    '[SemanticRecall] a call names no resourceId: it has no memory; said once',
  ]);
  assert.deepEqual(threadless.lines, [
    '[SemanticRecall] a call names no threadId: it is not indexed; said once',
  ]);
  assert.equal(nobody.middleware.stats.callsWithoutResource, 2);
  assert.equal(threadless.middleware.stats.callsWithoutThread, 2);
  assert.deepEqual([memory.recalls.length, memory.indexes.length], [2, 0]);
});

test('readOnly recalls and indexes nothing', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory, { readOnly: true });
  const params = await middleware.transformParams({ params: asks() });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  assert.deepEqual([memory.recalls.length, memory.indexes.length], [1, 0]);
});

test('a call names its user under providerOptions.semanticrecall', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory, { author: 'Ann', filter: { project: 'A' } });
  const semanticrecall = { resourceId: 'u2', threadId: 't2', filter: { year: 2024 } };
  const params = { ...asks(), providerOptions: { semanticrecall } };
  await middleware.transformParams({ params });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  assert.equal(memory.recalls[0]?.resourceId, 'u2');
  assert.deepEqual(memory.recalls[0].options?.filter, {
    $and: [{ project: 'A' }, { year: 2024 }],
  });
  const [indexed] = memory.indexes;
  assert.deepEqual([indexed?.resourceId, indexed?.threadId], ['u2', 't2']);
  assert.equal(indexed?.messages[0]?.author, undefined);
});

test('the thread of the options is not used for the user of a call', async () => {
  const memory = new FakeMemory();
  const { middleware } = quiet(memory);
  const params = { ...asks(), providerOptions: { semanticrecall: { resourceId: 'u2' } } };
  await middleware.transformParams({ params });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
  assert.equal(memory.recalls[0]?.options?.threadId, undefined);
  assert.deepEqual(memory.indexes, []);
  assert.equal(middleware.stats.callsWithoutThread, 1);
});

test('a call that names its user wrongly gets nobody else’s memory', async () => {
  const wrong = [{ resourceId: 42 }, { resourceId: '' }, { threadId: null }, { filter: [] }];
  for (const semanticrecall of wrong) {
    const memory = new FakeMemory();
    const { middleware, failures } = quiet(memory);
    const params = { ...asks(), providerOptions: { semanticrecall } };
    await middleware.transformParams({ params });
    await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params });
    assert.deepEqual([memory.recalls, memory.indexes], [[], []]);
    assert.equal(failures[0]?.operation, 'identity');
    assert.ok(failures[0].error instanceof InvalidArgumentError);
    assert.equal(middleware.stats.callsWithoutResource, 1);
  }
});

test('resolve says whose turn it is, and nothing is added to that', async () => {
  const memory = new FakeMemory();
  const asked: ModelCall[] = [];
  const { middleware } = quiet(memory, {
    resolve: (call: ModelCall) => {
      asked.push(call);
      return Promise.resolve({});
    },
  });
  const params = asks();
  const transformed = await middleware.transformParams({ params });
  await middleware.wrapGenerate({ doGenerate: generated('Hm.'), params: transformed });
  assert.deepEqual(asked, [params]);
  assert.deepEqual([memory.recalls, memory.indexes], [[], []]);
  assert.equal(middleware.stats.callsWithoutResource, 1);
});

test('an option that breaks its limit is refused at once', () => {
  const client = new FakeMemory();
  assert.throws(() => recallMiddleware({ client, topK: 0 }), InvalidArgumentError);
  assert.throws(() => recallMiddleware({ client, timeoutMs: -1 }), InvalidArgumentError);
  assert.throws(() => recallMiddleware({ client, address: 'localhost:1' }), InvalidArgumentError);
});
