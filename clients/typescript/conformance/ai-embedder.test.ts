/** The embedding model in the AI SDK and in Mastra's own memory, with a real sidecar. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { LibSQLStore, LibSQLVector } from '@mastra/libsql';
import { Memory } from '@mastra/memory';
import { cosineSimilarity, embed, embedMany } from 'ai';
import { semanticRecallEmbedder } from '../src/ai/index.js';
import { InvalidArgumentError, type RecallClient } from '../src/index.js';
import { type Sidecar, startSidecar } from '../tests/support/sidecar.js';

const FACT = 'My dog Rex is allergic to chicken.';
const OTHER = 'The train to Bonn leaves at noon.';
const QUESTION = 'What can Rex not eat?';

let sidecar: Sidecar;
let client: RecallClient;
let folder: string;

before(async () => {
  folder = mkdtempSync(join(tmpdir(), 'semanticrecall-embedder-'));
  sidecar = await startSidecar();
  client = sidecar.client();
});

after(async () => {
  await sidecar.stop();
  rmSync(folder, { recursive: true, force: true });
});

test('embed() and embedMany() take it under each specification', async () => {
  const { embeddings: expected } = await client.embed([FACT, OTHER]);
  for (const specificationVersion of ['v2', 'v3', 'v4'] as const) {
    const model = semanticRecallEmbedder({ client, specificationVersion });
    const one = await embed({ model, value: FACT });
    assert.deepEqual(one.embedding, expected[0]?.values);
    assert.equal(one.usage.tokens, expected[0]?.tokens);
    const { indexIdentity } = await client.embed([FACT]);
    assert.deepEqual(one.providerMetadata, { semanticrecall: { indexIdentity } });
    const many = await embedMany({ model, values: [FACT, OTHER] });
    assert.deepEqual(
      many.embeddings,
      expected.map(({ values }) => values),
    );
    assert.equal(
      many.usage.tokens,
      expected.reduce((sum, { tokens }) => sum + tokens, 0),
    );
  }
});

test('a question is nearer to its answer than to something else', async () => {
  const model = semanticRecallEmbedder({ client });
  const { embeddings } = await embedMany({ model, values: [QUESTION, FACT, OTHER] });
  const [question = [], fact = [], other = []] = embeddings;
  assert.ok(cosineSimilarity(question, fact) > cosineSimilarity(question, other) + 0.2);
});

test('more values than one call takes are embedded in order', async () => {
  const model = semanticRecallEmbedder({ client });
  const values = Array.from({ length: 300 }, (_, index) => `number ${index % 3}`);
  const { embeddings } = await embedMany({ model, values });
  assert.equal(embeddings.length, 300);
  const three = await client.embed(['number 0', 'number 1', 'number 2']);
  assert.deepEqual(
    embeddings.slice(255, 258),
    three.embeddings.map(({ values: vector }) => vector),
  );
});

test('a blank value is refused, and named', async () => {
  const model = semanticRecallEmbedder({ client });
  for (const blank of ['', ' \n']) {
    await assert.rejects(embedMany({ model, values: [FACT, blank] }), (error) => {
      assert.ok(error instanceof InvalidArgumentError);
      assert.equal(error.fieldViolations[0]?.field, 'values[1]');
      return true;
    });
  }
});

test('a text that was cut is warned of', async () => {
  const model = semanticRecallEmbedder({ client });
  const { warnings } = await model.doEmbed({ values: [FACT, 'word '.repeat(5_000)] });
  assert.deepEqual(warnings, [
    { type: 'other', message: "values[1] is longer than the model's window and was cut" },
  ]);
});

test('dimensions that the model does not have are refused', async () => {
  const model = semanticRecallEmbedder({ client });
  const { dimensions } = await client.embed([FACT]);
  const { embedding } = await embed({ model, value: FACT, dimensions });
  assert.equal(embedding.length, dimensions);
  await assert.rejects(embed({ model, value: FACT, dimensions: 7 }), InvalidArgumentError);
});

test('an aborted call ends with the reason of its signal', async () => {
  const model = semanticRecallEmbedder({ client });
  const reason = new Error('no longer wanted');
  const abortSignal = AbortSignal.abort(reason);
  await assert.rejects(model.doEmbed({ values: [FACT], abortSignal }), (e) => e === reason);
});

test("Mastra's own memory finds with it what was said in another thread", async () => {
  for (const specificationVersion of ['v2', 'v3'] as const) {
    const url = `file:${join(folder, `${specificationVersion}.db`)}`;
    const memory = new Memory({
      storage: new LibSQLStore({ id: 'store', url }),
      vector: new LibSQLVector({ id: 'vector', url }),
      embedder: semanticRecallEmbedder({ address: sidecar.address, specificationVersion }),
      options: { semanticRecall: { topK: 1, messageRange: 0, scope: 'resource' } },
    });
    const resourceId = 'user-1';
    const now = new Date();
    for (const [threadId, text] of [
      ['monday', FACT],
      ['tuesday', OTHER],
    ] as const) {
      await memory.saveThread({
        thread: { id: threadId, resourceId, title: '', createdAt: now, updatedAt: now },
      });
      await memory.saveMessages({
        messages: [
          {
            id: threadId,
            threadId,
            resourceId,
            role: 'user',
            createdAt: now,
            content: { format: 2, parts: [{ type: 'text', text }], content: text },
          },
        ],
      });
    }
    const { messages } = await memory.recall({
      threadId: 'tuesday',
      resourceId,
      vectorSearchString: QUESTION,
      perPage: 0,
    });
    assert.deepEqual(
      messages.map(({ id }) => id),
      ['monday'],
    );
  }
});
