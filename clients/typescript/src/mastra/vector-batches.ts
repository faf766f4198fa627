/** Many vectors as requests that the sidecar takes: each below its limits of count and bytes. */
import { randomUUID } from 'node:crypto';

import { InvalidArgumentError } from '../errors.js';
import type { JsonObject } from '../values.js';
import type { VectorEntry } from '../vectors.js';
import { metadataToJson } from './vector-filters.js';

/** `--collection-upsert-max` of the sidecar. */
const ENTRIES_MAX = 1_000;
/** Half of `--request-bytes-max`: what is counted below is an estimate. */
const BATCH_BYTES_MAX = 4 * 1024 * 1024;
/** `--metadata-bytes-max` of the sidecar. */
const METADATA_BYTES_MAX = 65_536;
const FLOAT_BYTES = 4;
const ENTRY_BYTES = 600;

/** What an upsert is given. */
interface GivenVectors {
  readonly vectors: readonly (readonly number[])[];
  readonly ids?: readonly string[] | undefined;
  readonly metadata?: readonly unknown[] | undefined;
}

/** The entries of an upsert; ids that are absent are random UUIDs. */
export function entriesOf({ vectors, ids, metadata }: GivenVectors): VectorEntry[] {
  if (vectors.length === 0) throw InvalidArgumentError.of('vectors', 'must not be empty');
  sameLength('ids', ids, vectors.length);
  // An empty list of metadata is how some callers say that there is none.
  const fields = metadata !== undefined && metadata.length > 0 ? metadata : undefined;
  sameLength('metadata', fields, vectors.length);
  return vectors.map((values, at) => ({
    id: ids?.[at] ?? randomUUID(),
    values,
    metadata: fitting(metadataToJson(fields?.[at], `metadata[${at}]`)),
  }));
}

function sameLength(field: string, list: readonly unknown[] | undefined, length: number): void {
  if (list !== undefined && list.length !== length) {
    throw InvalidArgumentError.of(
      field,
      `must have as many entries as there are vectors (${length}); has ${list.length}`,
    );
  }
}

/** Whether these are the metadata of a message in Mastra's memory. */
export function isOfMessage(metadata: JsonObject | undefined): boolean {
  return typeof metadata?.['message_id'] === 'string';
}

/**
 * Metadata that the sidecar takes. Mastra's memory keeps the whole text of a message a second time,
 * under `content`, and finds messages without it: where it makes the metadata too long it is cut,
 * so that a long message is found like any other. All other metadata stay as they are.
 */
function fitting(metadata: JsonObject): JsonObject {
  const { content } = metadata;
  if (!isOfMessage(metadata) || typeof content !== 'string') return metadata;
  const tooMany = bytesOf(metadata) - METADATA_BYTES_MAX;
  if (tooMany <= 0) return metadata;
  const cut = { ...metadata, content: '', content_truncated: true };
  const room = METADATA_BYTES_MAX - bytesOf(cut);
  return room < 0 ? metadata : { ...cut, content: beginning(content, room) };
}

/** As much of a text's beginning as takes so many bytes as a JSON string, without its quotes. */
function beginning(text: string, room: number): string {
  let from = 0;
  let to = Math.min(text.length, room);
  while (from < to) {
    const middle = Math.ceil((from + to) / 2);
    if (bytesOf(text.slice(0, middle)) - 2 <= room) from = middle;
    else to = middle - 1;
  }
  // Not between the halves of a character.
  return text.slice(0, from).replace(/[\uD800-\uDBFF]$/, '');
}

function bytesOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value));
}

/** Entries in requests of at most 1,000 entries and about 4 MiB, in their order. */
export function* batchesOf(entries: readonly VectorEntry[]): Generator<VectorEntry[]> {
  let batch: VectorEntry[] = [];
  let bytes = 0;
  for (const entry of entries) {
    const size = ENTRY_BYTES + FLOAT_BYTES * entry.values.length + 2 * bytesOf(entry.metadata);
    if (batch.length > 0 && (batch.length === ENTRIES_MAX || bytes + size > BATCH_BYTES_MAX)) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(entry);
    bytes += size;
  }
  if (batch.length > 0) yield batch;
}
