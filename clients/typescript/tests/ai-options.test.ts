/** What recallMiddleware and semanticRecallEmbedder refuse when they are made. No sidecar. */
import { describe } from 'node:test';

import { semanticRecallEmbedder } from '../src/adapters/embedder.js';
import { recallMiddleware } from '../src/ai/middleware.js';
import { FakeMemory } from './support/fake-memory.js';
import { refuses } from './support/refused.js';

const client = new FakeMemory();

describe('options of recallMiddleware', () => {
  refuses(
    (options) => recallMiddleware({ client, ...options }),
    [
      [{ topk: 4 }, 'options.topk'],
      [{ failOpen: true }, 'options.failOpen'],
      [{ topK: 0 }, 'topK'],
      [{ messageRange: { around: 1 } }, 'messageRange.around'],
      [{ ranking: { recency: 1 } }, 'ranking.recency'],
      [{ ranking: { mode: 'best' } }, 'ranking.mode'],
      [{ scope: 'all' }, 'scope'],
      [{ roles: ['person'] }, 'roles[0]'],
      [{ resourceId: 7 }, 'resourceId'],
      [{ threadId: 7 }, 'threadId'],
      [{ author: 7 }, 'author'],
      [{ metadata: [] }, 'metadata'],
      [{ filter: 'project' }, 'filter'],
      [{ contextFormat: 'none' }, 'contextFormat'],
      [{ placement: 'user' }, 'placement'],
      [{ readOnly: 1 }, 'readOnly'],
      [{ wait: 'never' }, 'wait'],
      [{ timeoutMs: 0 }, 'timeoutMs'],
      [{ retryQueueMessagesMax: -1 }, 'retryQueueMessagesMax'],
      [{ retryQueueMessagesMax: 100_001 }, 'retryQueueMessagesMax'],
      [{ resolve: 'me' }, 'resolve'],
      [{ onError: {} }, 'onError'],
      [{ logger: {} }, 'logger.warn'],
      [{ address: '127.0.0.1:1' }, 'address'],
      [{ token: 'secret' }, 'token'],
      [{ tls: true }, 'tls'],
    ],
  );
});

describe('options of semanticRecallEmbedder', () => {
  refuses(
    (options) => semanticRecallEmbedder(options),
    [
      [{ model: 'small' }, 'options.model'],
      [{ role: 'document' }, 'role'],
      [{ specificationVersion: 'v1' }, 'specificationVersion'],
      [{ modelId: 7 }, 'modelId'],
      [{ timeoutMs: 0 }, 'timeoutMs'],
      [{ address: 'nowhere' }, 'address'],
      [{ client: {}, address: '127.0.0.1:1' }, 'address'],
      [{ client: {}, token: 'secret' }, 'token'],
      [{ client: {}, tls: false }, 'tls'],
      [{ address: 'recall.example:7650', token: 'secret' }, 'token'],
      [{ tls: { certFile: 'nowhere.pem' } }, 'tls.certFile'],
    ],
  );
});
