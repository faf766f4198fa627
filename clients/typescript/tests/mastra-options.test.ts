/** The options of Mastra's `SemanticRecall`: defaults, limits, what is refused. No sidecar. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import { InvalidArgumentError, RecallClient } from '../src/index.js';
import type { SemanticRecallOptions } from '../src/mastra/index.js';
import { SemanticRecall } from '../src/mastra/index.js';
import {
  filterOfRequest,
  optionsNotNeeded,
  resolveOptions,
  settingsOfRequest,
} from '../src/mastra/options.js';
import { KeptLog } from './support/mastra.js';

describe('defaults', () => {
  test('are those of the original, where it has the option', () => {
    const { topK, messageRange, scope, threshold } = resolveOptions({});
    assert.deepEqual(
      { topK, messageRange, scope, threshold },
      { topK: 4, messageRange: { before: 1, after: 1 }, scope: 'resource', threshold: undefined },
    );
  });

  test('one number is so many before and after; a missing side is none', () => {
    assert.deepEqual(resolveOptions({ messageRange: 0 }).messageRange, { before: 0, after: 0 });
    assert.deepEqual(resolveOptions({ messageRange: 3 }).messageRange, { before: 3, after: 3 });
    const range = resolveOptions({ messageRange: { before: 2 } }).messageRange;
    assert.deepEqual(range, { before: 2, after: 0 });
  });
});

describe('limits', () => {
  const allowed: SemanticRecallOptions[] = [
    { topK: 1 },
    { topK: 1_000 },
    { messageRange: 50 },
    { threshold: -1 },
    { threshold: 1 },
    { maxTokens: 1_000_000 },
    { timeZone: 'Europe/Berlin' },
    { retryQueueMessagesMax: 0 },
    { ranking: { mode: 'dense', recencyWeight: 1, diversity: 0, nearDuplicateCosine: 1 } },
    { filter: { $or: [{ a: 1, b: 2 }, { c: [3, null, true] }] } },
    { vector: {}, embedder: {}, indexName: 'x', embedderOptions: {} },
  ];
  for (const options of allowed) {
    test(`takes ${JSON.stringify(options)}`, () => {
      assert.doesNotThrow(() => resolveOptions(options));
    });
  }

  // What no type check stands in the way of in plain JavaScript.
  const refused: [unknown, string][] = [
    [{ topk: 4 }, 'options.topk'],
    [{ topK: 0 }, 'topK'],
    [{ topK: 1_001 }, 'topK'],
    [{ topK: 1.5 }, 'topK'],
    [{ topK: '4' }, 'topK'],
    [{ messageRange: 51 }, 'messageRange'],
    [{ messageRange: -1 }, 'messageRange'],
    [{ messageRange: { before: 51 } }, 'messageRange.before'],
    [{ messageRange: { behind: 1 } }, 'messageRange.behind'],
    [{ messageRange: 'one' }, 'messageRange'],
    [{ scope: 'user' }, 'scope'],
    [{ threshold: 1.01 }, 'threshold'],
    [{ threshold: Number.NaN }, 'threshold'],
    [{ filter: 'a' }, 'filter'],
    [{ filter: { at: new Date(0) } }, 'filter.at'],
    [{ maxTokens: 0 }, 'maxTokens'],
    [{ ranking: { mode: 'best' } }, 'ranking.mode'],
    [{ ranking: { recencyWeight: 2 } }, 'ranking.recencyWeight'],
    [{ ranking: { nearDuplicateCosine: 0 } }, 'ranking.nearDuplicateCosine'],
    [{ ranking: { weight: 1 } }, 'ranking.weight'],
    [{ contextFormat: 'none' }, 'contextFormat'],
    [{ timeZone: 'Mars/Olympus' }, 'timeZone'],
    [{ timeZone: '' }, 'timeZone'],
    [{ readOnly: 1 }, 'readOnly'],
    [{ placement: 'user' }, 'placement'],
    [{ timeoutMs: 0 }, 'timeoutMs'],
    [{ wait: 'never' }, 'wait'],
    [{ failedTurns: 'keep' }, 'failedTurns'],
    [{ retryQueueMessagesMax: -1 }, 'retryQueueMessagesMax'],
    [{ address: 'nowhere' }, 'address'],
  ];
  for (const [options, field] of refused) {
    test(`refuses ${JSON.stringify(options)}, naming ${field}`, () => {
      assert.throws(
        () => Reflect.construct(SemanticRecall, [options]),
        (error: unknown) => {
          assert.ok(error instanceof InvalidArgumentError);
          assert.equal(error.fieldViolations[0]?.field, field);
          return true;
        },
      );
    });
  }

  test('a client, and what describes another, are one too many', () => {
    const client = new RecallClient();
    for (const other of [{ address: '127.0.0.1:1' }, { token: 'secret' }, { tls: true }]) {
      const [field] = Object.keys(other);
      const isRefused = (error: unknown) =>
        error instanceof InvalidArgumentError && error.fieldViolations[0]?.field === field;
      assert.throws(() => resolveOptions({ client, ...other }), isRefused);
    }
  });
});

describe('options of the original that are not needed', () => {
  test('are told once, to a logger at debug level, and never elsewhere', async () => {
    const log = new KeptLog();
    const options = { vector: {}, embedder: {}, topK: 4, logger: log };
    assert.deepEqual(optionsNotNeeded(options), ['vector', 'embedder']);
    await using recall = new SemanticRecall(options);
    assert.equal(recall.id, 'semantic-recall');
    assert.deepEqual(log.lines, [
      {
        level: 'debug',
        message: '[SemanticRecall] options that the sidecar makes needless',
        fields: { options: 'vector, embedder' },
      },
    ]);
  });
});

describe("a request's own settings", () => {
  const request = { topK: 9, messageRange: { before: 0, after: 2 }, scope: 'thread' };

  test('hold where the processor was given none', () => {
    const settings = settingsOfRequest(resolveOptions({ topK: 2 }), request);
    assert.deepEqual(settings, {
      topK: 2,
      messageRange: { before: 0, after: 2 },
      scope: 'thread',
      threshold: undefined,
    });
  });

  test('true, false and nothing say nothing', () => {
    for (const said of [true, false, undefined]) {
      assert.equal(settingsOfRequest(resolveOptions({ topK: 2 }), said).topK, 2);
    }
  });

  test('are refused by the same limits', () => {
    const wrong = { topK: 0 };
    assert.throws(() => settingsOfRequest(resolveOptions({}), wrong), InvalidArgumentError);
  });

  test('both filters must hold', () => {
    const options = resolveOptions({ filter: { a: 1 } });
    assert.deepEqual(filterOfRequest(options, undefined), { a: 1 });
    assert.deepEqual(filterOfRequest(options, { filter: { b: 2 } }), {
      $and: [{ a: 1 }, { b: 2 }],
    });
    assert.deepEqual(filterOfRequest(resolveOptions({}), { filter: { b: 2 } }), { b: 2 });
    assert.equal(filterOfRequest(resolveOptions({}), true), undefined);
  });
});
