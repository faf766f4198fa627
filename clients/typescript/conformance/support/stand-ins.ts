/**
 * What the examples of the documentation import and what needs a network: OpenAI's embedding model,
 * and PostgreSQL. In their places a model of words, and files of LibSQL.
 */
import { LibSQLVector, MemoryLibSQL } from '@mastra/libsql';

import { WordEmbedder } from './word-embedder.js';

/** Every storage that an example has opened. */
export const openedStorages: PostgresStorage[] = [];
/** Every vector store that an example has opened. */
export const openedVectors: PgVector[] = [];

/** In place of `@ai-sdk/openai`. */
export const openai = {
  embedding: (modelId: string): WordEmbedder => new WordEmbedder({ modelId }),
};

/** In place of the storage of `@mastra/pg`; the connection is a `file:` URL. */
export class PostgresStorage extends MemoryLibSQL {
  constructor({ connectionString }: { id: string; connectionString: string }) {
    super({ url: connectionString });
    openedStorages.push(this);
  }
}

/** In place of the vector store of `@mastra/pg`. */
export class PgVector extends LibSQLVector {
  constructor({ id, connectionString }: { id: string; connectionString: string }) {
    super({ id, url: connectionString });
    openedVectors.push(this);
  }
}

/** Free names of the first example. */
export const memoryStorage = new MemoryLibSQL({ url: process.env['DATABASE_URL'] ?? ':memory:' });
export const vectorStore = new LibSQLVector({
  id: 'vectors',
  url: process.env['DATABASE_URL'] ?? ':memory:',
});
