/** What the request of a turn says about memory: whose, where, and under which options. */
import type { RequestContext } from '@mastra/core/request-context';

import { depth, isRecord } from '../adapters/json.js';
import * as check from '../arguments.js';
import type { JsonObject } from '../values.js';

/** Where Mastra puts it, in the request's context. */
const CONTEXT_KEY = 'MastraMemory';

/** Metadata of a thread that Mastra keeps for itself: text, and changed with every turn. */
const MASTRAS_OWN: ReadonlySet<string> = new Set(['mastra', 'workingMemory']);
const METADATA_BYTES_MAX = 65_536;
const METADATA_LEVELS_MAX = 16;

/** The memory of one turn. */
export interface TurnMemory {
  readonly threadId: string;
  readonly resourceId: string | undefined;
  /** The thread's own metadata as it was given; see {@link threadMetadata}. */
  readonly metadata: unknown;
  /** The request wants nothing to be stored. */
  readonly readOnly: boolean;
  /** `memoryConfig.semanticRecall` of the request. */
  readonly semanticRecall: unknown;
}

/** The turn's memory; `undefined` where it has none; "malformed" where it cannot be read. */
export function turnMemory(
  context: Pick<RequestContext, 'get'> | undefined,
): TurnMemory | undefined | 'malformed' {
  const value: unknown = context?.get(CONTEXT_KEY);
  if (value === undefined || value === null || value === false || value === '') return undefined;
  if (!isRecord(value)) return 'malformed';
  const { thread, resourceId, memoryConfig } = value;
  if (thread === undefined) return undefined;
  if (!isRecord(thread) || typeof thread['id'] !== 'string') return 'malformed';
  if (resourceId !== undefined && typeof resourceId !== 'string') return 'malformed';
  if (thread['id'] === '') return undefined;
  return {
    threadId: thread['id'],
    resourceId: resourceId === '' ? undefined : resourceId,
    metadata: thread['metadata'],
    readOnly: isRecord(memoryConfig) && memoryConfig['readOnly'] === true,
    semanticRecall: isRecord(memoryConfig) ? memoryConfig['semanticRecall'] : undefined,
  };
}

/**
 * A thread's metadata for the sidecar, without what Mastra keeps there for itself (`mastra`,
 * `workingMemory`); `undefined` where it is above the sidecar's limits (64 KiB of JSON, 16 levels).
 */
export function threadMetadata(metadata: unknown): JsonObject | undefined {
  if (!isRecord(metadata)) return {};
  const own = Object.entries(metadata).filter(([name]) => !MASTRAS_OWN.has(name));
  if (own.length === 0) return {};
  try {
    const json = JSON.stringify(Object.fromEntries(own));
    if (Buffer.byteLength(json) > METADATA_BYTES_MAX) return undefined;
    const value = check.json(JSON.parse(json), 'metadata');
    return depth(value) <= METADATA_LEVELS_MAX ? value : undefined;
  } catch {
    // No JSON can be made of it.
    return undefined;
  }
}
