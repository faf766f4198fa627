import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { EmbeddingModelV2, EmbeddingModelV3, EmbeddingModelV4 } from '@ai-sdk/provider';
import type { MastraEmbeddingModel } from '@mastra/core/vector';
import type { CallOptions, EmbedOptions, EmbedResult } from '../src/index.js';
import { FailedPreconditionError, InvalidArgumentError } from '../src/index.js';
import { semanticRecallEmbedder } from '../src/adapters/embedder.js';

/** Embeds every text as its length, and keeps what it was asked. */
class Lengths {
  readonly calls: { texts: readonly string[]; options: EmbedOptions & CallOptions }[] = [];
  indexIdentity = 'model@1';

  embed(texts: readonly string[], options: EmbedOptions & CallOptions = {}): Promise<EmbedResult> {
    this.calls.push({ texts, options });
    const embeddings = texts.map((text) => ({
      values: [text.length],
      tokens: 3,
      truncated: text.length > 5,
    }));
    return Promise.resolve({ embeddings, dimensions: 1, indexIdentity: this.indexIdentity });
  }
}

test('it is an embedding model of each specification, and of Mastra', () => {
  const client = new Lengths();
  const v2: EmbeddingModelV2<string> = semanticRecallEmbedder({
    client,
    specificationVersion: 'v2',
  });
  const v3: EmbeddingModelV3 = semanticRecallEmbedder({ client });
  const v4: EmbeddingModelV4 = semanticRecallEmbedder({ client, specificationVersion: 'v4' });
  const mastra: MastraEmbeddingModel<string>[] = [
    semanticRecallEmbedder({ client }),
    semanticRecallEmbedder({ client, specificationVersion: 'v2' }),
  ];
  const versions = [v2, v3, v4, ...mastra].map(({ specificationVersion }) => specificationVersion);
  assert.deepEqual(versions, ['v2', 'v3', 'v4', 'v3', 'v2']);
  const { provider, modelId, maxEmbeddingsPerCall, supportsParallelCalls } = v3;
  assert.deepEqual(
    { provider, modelId, maxEmbeddingsPerCall, supportsParallelCalls },
    {
      provider: 'semanticrecall',
      modelId: 'sidecar',
      maxEmbeddingsPerCall: 256,
      supportsParallelCalls: true,
    },
  );
});

test('values are embedded in one call, with role and signal', async () => {
  const client = new Lengths();
  const embedder = semanticRecallEmbedder({ client, role: 'query', modelId: 'e5', timeoutMs: 70 });
  const { signal } = new AbortController();
  const answer = await embedder.doEmbed({ values: ['one', 'longer'], abortSignal: signal });
  assert.deepEqual(answer, {
    embeddings: [[3], [6]],
    usage: { tokens: 6 },
    warnings: [
      { type: 'other', message: "values[1] is longer than the model's window and was cut" },
    ],
    providerMetadata: { semanticrecall: { indexIdentity: 'model@1' } },
  });
  assert.equal(client.calls.length, 1);
  assert.deepEqual(client.calls[0]?.texts, ['one', 'longer']);
  assert.deepEqual(client.calls[0].options, { role: 'query', signal, timeoutMs: 70 });
  assert.equal(embedder.modelId, 'e5');
});

test('a blank value is refused without a call, and nothing is asked for no values', async () => {
  const client = new Lengths();
  const embedder = semanticRecallEmbedder({ client });
  await assert.rejects(embedder.doEmbed({ values: ['one', ' \t'] }), (error) => {
    assert.ok(error instanceof InvalidArgumentError);
    assert.deepEqual(
      error.fieldViolations.map(({ field }) => field),
      ['values[1]'],
    );
    return true;
  });
  const { embeddings, usage } = await embedder.doEmbed({ values: [] });
  assert.deepEqual({ embeddings, usage }, { embeddings: [], usage: { tokens: 0 } });
  assert.equal(client.calls.length, 0);
});

test('vectors of two models are never given out by one embedder', async () => {
  const client = new Lengths();
  const embedder = semanticRecallEmbedder({ client });
  await embedder.doEmbed({ values: ['one'] });
  client.indexIdentity = 'model@2';
  await assert.rejects(embedder.doEmbed({ values: ['one'] }), (error) => {
    assert.ok(error instanceof FailedPreconditionError);
    assert.equal(error.reason, 'MODEL_CHANGED');
    return true;
  });
  const fresh = semanticRecallEmbedder({ client });
  assert.deepEqual((await fresh.doEmbed({ values: ['one'] })).embeddings, [[3]]);
});

test('dimensions that the model does not have are refused', async () => {
  const embedder = semanticRecallEmbedder({ client: new Lengths() });
  const { embeddings } = await embedder.doEmbed({ values: ['one'], dimensions: 1 });
  assert.deepEqual(embeddings, [[3]]);
  const wrong = embedder.doEmbed({ values: ['one'], dimensions: 2 });
  await assert.rejects(wrong, InvalidArgumentError);
});
