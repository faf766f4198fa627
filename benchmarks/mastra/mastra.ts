/** Mastra's own processor over two stores. */
import { createClient } from '@libsql/client';
import { ConsoleLogger } from '@mastra/core/logger';
import { SemanticRecall, globalEmbeddingCache } from '@mastra/core/processors';
import type { MemoryStorage } from '@mastra/core/storage';
import type { MastraVector } from '@mastra/core/vector';
import { LibSQLStore, LibSQLVector } from '@mastra/libsql';
import { PgVector, PostgresStore } from '@mastra/pg';
import { constants, existsSync } from 'node:fs';
import { copyFile, mkdir, rename, rm } from 'node:fs/promises';
import path from 'node:path';
import { ownerOf, vectorOf } from './corpus.ts';
import type { StoredMessage } from './corpus.ts';
import type { MiniLm } from './embedder.ts';
import type { Postgres } from './processes.ts';
import type { Filling, System } from './systems.ts';
import { dbMessage, turnOf } from './turn.ts';

/** As Mastra's `Memory` names it for this model's dimensions. */
const INDEX = 'memory_messages_384';
const ROWS = 1_000;

/** Mastra's stores for messages and for vectors. */
interface Stores {
  storage: MemoryStorage;
  vector: MastraVector;
}

/** Counts what the processor would only log. */
class CountingLogger extends ConsoleLogger {
  errors = 0;

  override error(message: string, ...fields: unknown[]): void {
    this.errors += 1;
    super.error(message, ...fields);
  }
}

/** PostgreSQL in a schema of its own, with the indexes of metadata that `Memory` asks for. */
export async function openPostgres(
  postgres: Postgres,
  filling: Filling,
  embedder: MiniLm,
): Promise<System> {
  const schemaName = `${filling.layout}_${filling.size}`;
  const options = { ...postgres.connection, schemaName };
  const store = new PostgresStore({ id: 'pg', ...options });
  const vector = new PgVector({ id: 'pg-vector', ...options });
  await store.init();
  const storage = await memoryOf(store);
  const metadataIndexes = ['thread_id', 'resource_id'];
  const { dimensions } = filling.corpus;
  const asked = { indexName: INDEX, dimension: dimensions, metric: 'cosine' as const };
  await vector.createIndex({ ...asked, metadataIndexes });
  await fill({ storage, vector }, filling);
  await vector.pool.query('VACUUM ANALYZE');
  return mastra('PostgreSQL', { storage, vector }, embedder, async () => {
    await vector.disconnect();
    await store.close();
  });
}

/** Two libSQL files, kept in `keptIn` once they are filled: their vector index takes long. */
export async function openLibsql(
  keptIn: string,
  directory: string,
  filling: Filling,
  embedder: MiniLm,
): Promise<System> {
  const name = `${filling.layout}-${filling.size}.db`;
  const kept = path.join(keptIn, name);
  if (!existsSync(kept)) await makeLibsql(kept, filling);
  const file = path.join(directory, name);
  await copyFile(kept, file, constants.COPYFILE_FICLONE);
  const { store, storage, vector } = await libsql(file);
  return mastra('LibSQL', { storage, vector }, embedder, async () => {
    await vector.close();
    await store.close();
    await rm(file);
  });
}

async function libsql(
  file: string,
): Promise<Stores & { store: LibSQLStore; vector: LibSQLVector }> {
  const url = `file:${file}`;
  const store = new LibSQLStore({ id: 'libsql', url });
  await store.init();
  const vector = new LibSQLVector({ id: 'libsql-vector', url });
  return { store, storage: await memoryOf(store), vector };
}

async function makeLibsql(kept: string, filling: Filling): Promise<void> {
  await mkdir(path.dirname(kept), { recursive: true });
  const half = `${kept}.half`;
  await rm(half, { force: true });
  const other = path.join(path.dirname(kept), `resources-${filling.size}.db`);
  if (filling.layout === 'one_user' && existsSync(other)) {
    await giveToOneUser(other, half);
    await rename(half, kept);
    return;
  }
  const { store, storage, vector } = await libsql(half);
  const { dimensions } = filling.corpus;
  await vector.createIndex({ indexName: INDEX, dimension: dimensions });
  await fill({ storage, vector }, filling);
  await vector.close();
  await store.close();
  await intoOneFile(half);
  await rename(half, kept);
}

/** The same rows and vectors with another owner: building the index again would take long. */
async function giveToOneUser(from: string, to: string): Promise<void> {
  await copyFile(from, to);
  const client = createClient({ url: `file:${to}` });
  const owner = ownerOf('one_user', 1, 0);
  const changes = [
    'UPDATE mastra_threads SET "resourceId" = ?',
    'UPDATE mastra_messages SET "resourceId" = ?',
    `UPDATE ${INDEX} SET metadata = json_set(metadata, '$.resource_id', ?)`,
  ];
  await client.batch(
    changes.map((sql) => ({ sql, args: [owner] })),
    'write',
  );
  client.close();
  await intoOneFile(to);
}

/** Writes what is in the log beside a file into it, so that the file alone is all of it. */
async function intoOneFile(file: string): Promise<void> {
  const client = createClient({ url: `file:${file}` });
  const answer = await client.execute('PRAGMA wal_checkpoint(TRUNCATE)');
  client.close();
  if (answer.rows[0]?.busy !== 0) throw new Error('the log is still in use');
  await Promise.all([rm(`${file}-wal`, { force: true }), rm(`${file}-shm`, { force: true })]);
}

async function memoryOf(store: LibSQLStore | PostgresStore): Promise<MemoryStorage> {
  const memory = await store.getStore('memory');
  if (memory === undefined) throw new Error('the store keeps no messages');
  return memory;
}

function mastra(
  name: string,
  { storage, vector }: Stores,
  embedder: MiniLm,
  close: () => Promise<void>,
): System {
  const logger = new CountingLogger({ level: 'error' });
  const options = { storage, vector, embedder, indexName: INDEX, logger };
  const embedding = new SemanticRecall({ ...options, vector: withoutSearch(vector) });
  return {
    name,
    hooks: new SemanticRecall(options),
    failures: () => logger.errors,
    embed: async (resourceId, question) => {
      await embedding.processInput(turnOf([], question, { resourceId, threadId: 'none' }));
    },
    forgetVectors: () => {
      globalEmbeddingCache.clear();
    },
    close,
  };
}

/** The same index, which finds nothing: with it the processor embeds and caches, and no more. */
function withoutSearch(vector: MastraVector): MastraVector {
  const nothing = { value: () => Promise.resolve([]) };
  return Object.create(vector, { query: nothing, createIndex: nothing }) as MastraVector;
}

/** Rows and vectors as the stores themselves write them, in large batches. */
async function fill({ storage, vector }: Stores, filling: Filling): Promise<void> {
  const { corpus, layout, size, resourceMessages } = filling;
  const threads = new Set<string>();
  for (let start = 0; start < size; start += ROWS) {
    const numbers = Array.from({ length: Math.min(ROWS, size - start) }, (_, i) => start + i);
    const messages = numbers.map((number) => {
      const message = corpus.messages[number] as StoredMessage;
      const resourceId = ownerOf(layout, resourceMessages, number);
      return dbMessage(message, { resourceId, threadId: message.threadId });
    });
    for (const { threadId = '', resourceId = '', createdAt } of messages) {
      if (threads.has(threadId)) continue;
      threads.add(threadId);
      const times = { createdAt, updatedAt: createdAt };
      await storage.saveThread({ thread: { id: threadId, resourceId, title: '', ...times } });
    }
    await storage.saveMessages({ messages });
    await vector.upsert({
      indexName: INDEX,
      vectors: numbers.map((number) => vectorOf(corpus, number)),
      ids: messages.map(({ id }) => id),
      // What the processor writes with each of them.
      metadata: messages.map((message) => ({
        message_id: message.id,
        thread_id: message.threadId,
        resource_id: message.resourceId,
        role: message.role,
        content: message.content.content,
        created_at: message.createdAt.toISOString(),
      })),
    });
  }
}
