/** Our processor over a sidecar process. */
import { cp, rm } from 'node:fs/promises';
import path from 'node:path';
import { RecallClient } from '../../clients/typescript/dist/index.js';
import { SemanticRecall } from '../../clients/typescript/dist/mastra/index.js';
import { startSidecar } from './processes.ts';
import type { Filling, System } from './systems.ts';

const CALL_MS_MAX = 60_000;
const READY_MS_MAX = 2_000;

/** A sidecar over a copy of the filled directory, and the processor with a client of it. */
export async function openOurs(
  directory: string,
  filling: Filling,
  mode: 'hybrid' | 'dense',
): Promise<System> {
  const name = `${filling.layout}-${filling.size}`;
  const filled = filling.corpus.sidecarStores[name];
  if (filled === undefined) throw new Error(`there is no store ${name}`);
  const dataDir = path.join(directory, name);
  await cp(filled, dataDir, { recursive: true });
  const sidecar = await startSidecar(directory, dataDir, isServing);
  const client = new RecallClient({ address: sidecar.address, timeoutMs: CALL_MS_MAX });
  let failures = 0;
  const logger = {
    error: (message: string, ...fields: unknown[]) => {
      failures += 1;
      process.stderr.write(`${message} ${JSON.stringify(fields)}\n`);
    },
  };
  return {
    name: 'SemanticRecall',
    hooks: new SemanticRecall({ client, logger, ranking: { mode }, timeoutMs: CALL_MS_MAX }),
    failures: () => failures,
    // Another answer than the processor asks for: only the vector is found again.
    embed: async (resourceId, question) => {
      await client.recall(resourceId, question, { topK: 1, messageRange: 0 });
    },
    forgetVectors: () => undefined,
    close: async () => {
      await client.close();
      await sidecar.stop();
      await rm(dataDir, { recursive: true });
    },
  };
}

/** Vectors of the sidecar's model for texts, through `Embed`. */
export async function embedWithSidecar(
  directory: string,
  texts: readonly string[],
): Promise<number[][]> {
  const sidecar = await startSidecar(directory, path.join(directory, 'embedding'), isServing);
  const client = new RecallClient(sidecar.address);
  try {
    const answer = await client.embed(texts, { role: 'query' });
    return answer.embeddings.map(({ values }) => Array.from(values));
  } finally {
    await client.close();
    await sidecar.stop();
  }
}

async function isServing(address: string): Promise<void> {
  const client = new RecallClient({ address, timeoutMs: READY_MS_MAX });
  try {
    await client.embed(['ready?']);
  } finally {
    await client.close();
  }
}
