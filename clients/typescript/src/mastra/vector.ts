/**
 * A Mastra vector store over the sidecar, for those who keep Mastra's own processor and memory.
 *
 * Indexes are named collections of one resource of the sidecar (`resourceId`, by default "mastra"):
 * Mastra tells users apart by its filters. Search is exact; every change is on disk when its call
 * returns. This is the one module here that needs `@mastra/core` at run time.
 */
import { MastraVector } from '@mastra/core/vector';
import type {
  CreateIndexParams,
  DeleteIndexParams,
  DeleteVectorParams,
  DeleteVectorsParams,
  DescribeIndexParams,
  IndexStats,
  QueryResult,
  QueryVectorParams,
  UpdateVectorParams,
  UpsertVectorParams,
} from '@mastra/core/vector';
import type { OperatorValueMap, VectorFilter } from '@mastra/core/vector/filter';

import * as check from '../arguments.js';
import { RecallClient } from '../client.js';
import { FailedPreconditionError, InvalidArgumentError, NotFoundError } from '../errors.js';
import type { CallOptions, JsonObject, TlsOptions } from '../values.js';
import type { Metric, VectorCalls, VectorSelection } from '../vectors.js';
import { batchesOf, entriesOf, isOfMessage } from './vector-batches.js';
import { vectorError } from './vector-errors.js';
import type { VectorOperation } from './vector-errors.js';
import { filterToJson, metadataToJson } from './vector-filters.js';
import type { MoreOperators } from './vector-filters.js';

/** Mastra's filter language, with `$size` and `$contains`. */
export type SemanticRecallVectorFilter = VectorFilter<
  keyof (OperatorValueMap & MoreOperators),
  OperatorValueMap & MoreOperators
>;

/** Options of a {@link SemanticRecallVector}. All are optional. */
export interface SemanticRecallVectorOptions {
  /** Name of the store within Mastra. Default "semanticrecall". */
  id?: string | undefined;
  /** A client to share; it stays yours. Default: one of its own, closed by `close`. */
  client?: Pick<RecallClient, 'vectors'> | undefined;
  /** Without a client: "HOST:PORT" or "unix:/path". Default: as `RecallClient`. */
  address?: string | undefined;
  /** Without a client: as `RecallClient`. */
  token?: string | undefined;
  /** Without a client: as `RecallClient`. */
  tls?: TlsOptions | boolean | undefined;
  /** The resource of the sidecar that the indexes belong to. Default "mastra". */
  resourceId?: string | undefined;
  /** Milliseconds a call to the sidecar may take. Default: the client's. */
  timeoutMs?: number | undefined;
  /**
   * What `Memory` deletes of a thread or of messages is deleted from every index of this store.
   * `Memory` itself only looks at indexes whose names begin with `memory_messages`: vectors in an
   * index of another name, with the whole text of each message, would stay. For this an empty index
   * `memory_messages_elsewhere` is made beside the first such index. Default true.
   */
  deletesReachEveryIndex?: boolean | undefined;
  /**
   * The `indexName` of the `semanticRecall` options of `Memory`, where they have one: agents then
   * use that index, but `recall`, `saveMessages`, `updateMessages` and `cloneThread` of `Memory` use
   * `memory_messages*`. With this option these are one and the same index, so that an edit replaces
   * what agents find, and a thread that moves stays findable. Default: they are two.
   */
  memoryIndexName?: string | undefined;
}

/** What `query` takes beside Mastra's own. */
export interface SemanticRecallQueryParams extends QueryVectorParams<SemanticRecallVectorFilter> {
  /** Least score, inclusive. Default: none. */
  minScore?: number;
}

/** What `createIndex` takes beside Mastra's own: accepted, and without effect. */
export interface SemanticRecallIndexParams extends CreateIndexParams {
  /** Search is exact: there is no index to tune. */
  indexConfig?: unknown;
  /** Every key of the metadata is searched alike. */
  metadataIndexes?: readonly string[];
}

const KNOWN: Readonly<Record<keyof SemanticRecallVectorOptions, true>> = {
  id: true,
  client: true,
  address: true,
  token: true,
  tls: true,
  resourceId: true,
  timeoutMs: true,
  deletesReachEveryIndex: true,
  memoryIndexName: true,
};

/** What an index was made with. */
interface Made {
  readonly dimensions: number;
  readonly metric: Metric;
}

type MastraMetric = NonNullable<CreateIndexParams['metric']>;

const METRICS: Readonly<Record<MastraMetric, Metric>> = {
  cosine: 'cosine',
  euclidean: 'euclidean',
  dotproduct: 'dot_product',
};
const MASTRA_METRICS: Readonly<Record<Metric, MastraMetric>> = {
  cosine: 'cosine',
  euclidean: 'euclidean',
  dot_product: 'dotproduct',
};
/** How names of indexes begin that `Memory` keeps messages in. */
const OF_MESSAGES = 'memory_messages';
/** How names begin that `Memory` keeps observations in; it deletes from them by itself. */
const OF_OBSERVATIONS = 'memory_observations';
const ELSEWHERE = `${OF_MESSAGES}_elsewhere`;
const TOP_K_DEFAULT = 10;
const SELECTED_IDS_MAX = 10_000;

/**
 * Mastra's vector store interface over the sidecar.
 *
 * ```ts
 * const memory = new Memory({ storage, vector: new SemanticRecallVector(), embedder });
 * ```
 *
 * Every method throws a `MastraError`; its `cause` is the client's own error.
 */
export class SemanticRecallVector extends MastraVector<SemanticRecallVectorFilter> {
  readonly #vectors: VectorCalls;
  readonly #resourceId: string;
  readonly #options: CallOptions;
  readonly #owned: RecallClient | undefined;
  readonly #deletesReachEveryIndex: boolean;
  readonly #memoryIndexName: string | undefined;
  /** Indexes that this object made or found: `createIndex` is called twice a turn. */
  readonly #made = new Map<string, Made>();
  #reached: Promise<void> | undefined;

  /** @throws InvalidArgumentError an option is unknown, or not what it may be. */
  constructor(options: SemanticRecallVectorOptions = {}) {
    checkOptions(options);
    super({ id: options.id ?? 'semanticrecall' });
    const { client, address, token, tls } = options;
    if (client !== undefined && [address, token, tls].some((one) => one !== undefined)) {
      throw InvalidArgumentError.of('client', 'has its own address, token and tls; leave them out');
    }
    if (client === undefined) {
      this.#owned = new RecallClient({ address, token, tls });
      this.#vectors = this.#owned.vectors;
    } else {
      this.#owned = undefined;
      this.#vectors = client.vectors;
    }
    this.#resourceId = options.resourceId ?? 'mastra';
    this.#options = { timeoutMs: options.timeoutMs };
    this.#deletesReachEveryIndex = options.deletesReachEveryIndex ?? true;
    this.#memoryIndexName = options.memoryIndexName;
  }

  /** Closes the connection, unless the client was given. */
  async close(): Promise<void> {
    await this.#owned?.close();
  }

  /**
   * Makes an index, or finds it: from then on known here, so that another call costs nothing.
   *
   * @throws MastraError `VECTOR_VALIDATE_INDEX_DIMENSION_MISMATCH`: it is there with other
   *     dimensions. Another metric is only logged, as by Mastra's own stores.
   */
  override async createIndex(params: SemanticRecallIndexParams): Promise<void> {
    const { indexName, dimension, metric = 'cosine' } = params;
    const name = this.#collection(indexName);
    if (this.#made.get(name)?.dimensions === dimension) return;
    const differs = await this.#call('CREATE_INDEX', indexName, async () => {
      if (!Object.hasOwn(METRICS, metric)) {
        throw InvalidArgumentError.of('metric', 'must be cosine, euclidean or dotproduct');
      }
      const wanted = { dimensions: dimension, metric: METRICS[metric] };
      try {
        await this.#vectors.createCollection(this.#resourceId, name, {
          ...wanted,
          ...this.#options,
        });
      } catch (error) {
        if (error instanceof FailedPreconditionError) return true;
        throw error;
      }
      this.#made.set(name, wanted);
      return false;
    });
    if (differs) {
      await this.validateExistingIndex(indexName, dimension, metric);
      const { dimensions, metric: found } = await this.#describe(name);
      this.#made.set(name, { dimensions, metric: found });
    }
  }

  /** Names of all indexes, sorted. With `memoryIndexName` that index is also `memory_messages`. */
  override async listIndexes(): Promise<string[]> {
    const names = await this.#call('LIST_INDEXES', undefined, () => this.#names());
    const own = this.#memoryIndexName;
    const isAlias = own !== undefined && names.includes(own) && !names.includes(OF_MESSAGES);
    return isAlias ? [...names, OF_MESSAGES] : names;
  }

  /** What an index is and how many vectors it holds. */
  override async describeIndex({ indexName }: DescribeIndexParams): Promise<IndexStats> {
    const { dimensions, metric, vectors } = await this.#call('DESCRIBE_INDEX', indexName, () =>
      this.#describe(this.#collection(indexName)),
    );
    return { dimension: dimensions, count: vectors, metric: MASTRA_METRICS[metric] };
  }

  /** Removes an index with all its vectors; one that is not there is no error. */
  override async deleteIndex({ indexName }: DeleteIndexParams): Promise<void> {
    const name = this.#collection(indexName);
    this.#made.delete(name);
    this.#reached = undefined;
    await this.#call('DELETE_INDEX', indexName, () =>
      this.#vectors.deleteCollection(this.#resourceId, name, this.#options),
    );
  }

  /**
   * Adds vectors, or replaces those of the same ids; returns the ids, random UUIDs where none are
   * given. Up to 1,000 vectors and about 4 MiB are one transaction together with `deleteFilter`.
   * More go in several, in order, the deletion with the first: where one fails those before it stay.
   */
  override async upsert(params: UpsertVectorParams<SemanticRecallVectorFilter>): Promise<string[]> {
    const { indexName, vectors, ids, metadata, sparseVectors, deleteFilter } = params;
    const name = this.#collection(indexName);
    return this.#call('UPSERT', indexName, async () => {
      refuseSparse('sparseVectors', sparseVectors);
      const entries = entriesOf({ vectors, ids, metadata });
      let filter = filterToJson(deleteFilter, 'deleteFilter');
      if (entries.some((entry) => isOfMessage(entry.metadata))) await this.#reach(name);
      for (const batch of batchesOf(entries)) {
        const options = { ...this.#options, deleteFilter: filter };
        await this.#onIndex(name, () =>
          this.#vectors.upsert(this.#resourceId, name, batch, options),
        );
        filter = undefined;
      }
      return entries.map(({ id }) => id);
    });
  }

  /**
   * The nearest vectors among those that match; exact. Without `queryVector` the first `topK` that
   * match by id, with score 0.
   */
  override async query(params: SemanticRecallQueryParams): Promise<QueryResult[]> {
    const { indexName, queryVector, filter, includeVector = false, minScore } = params;
    const { topK = TOP_K_DEFAULT, sparseVector } = params;
    const name = this.#collection(indexName);
    const { matches, dropped } = await this.#call('QUERY', indexName, () => {
      refuseSparse('sparseVector', sparseVector);
      const asked = {
        ...this.#options,
        values: queryVector,
        topK,
        filter: filterToJson(filter),
        includeValues: includeVector,
        scoreMin: minScore,
      };
      return this.#onIndex(name, () => this.#vectors.query(this.#resourceId, name, asked));
    });
    if (dropped > 0) {
      this.logger.warn('The answer would be too large: the last matches were left out', {
        indexName,
        dropped,
      });
    }
    return matches.map(({ id, score, metadata, values }) => ({
      id,
      score,
      metadata,
      ...(includeVector ? { vector: values } : {}),
    }));
  }

  /**
   * Changes the vector or the metadata of one vector, or of all that match. Fields of the metadata
   * that are not given stay as they were.
   *
   * @throws MastraError where the id is not there (`details.reason` is "VECTOR_NOT_FOUND").
   */
  override async updateVector(
    params: UpdateVectorParams<SemanticRecallVectorFilter>,
  ): Promise<void> {
    const { indexName, id, filter, update } = params;
    await this.#call('UPDATE_VECTOR', indexName, () => {
      const selection = selectionOf(id === undefined ? undefined : [id], filter, 'id');
      const { vector, metadata } = update;
      const change = {
        values: vector,
        metadata: metadata === undefined ? undefined : metadataToJson(metadata),
      };
      const name = this.#collection(indexName);
      return this.#vectors.update(this.#resourceId, name, selection, change, this.#options);
    });
  }

  /** Removes one vector; one that is not there is no error. */
  override async deleteVector({ indexName, id }: DeleteVectorParams): Promise<void> {
    const name = this.#collection(indexName);
    await this.#call('DELETE_VECTOR', indexName, () => this.#delete(name, { ids: [id] }));
  }

  /**
   * Removes vectors by id, or all that match. By a filter on `thread_id` or `message_id` alone, in an
   * index of messages, they are removed from every index: see `deletesReachEveryIndex`.
   */
  override async deleteVectors(
    params: DeleteVectorsParams<SemanticRecallVectorFilter>,
  ): Promise<void> {
    const { indexName, ids, filter } = params;
    await this.#call('DELETE_VECTORS', indexName, async () => {
      const selection = selectionOf(ids, filter, 'ids');
      const name = this.#collection(indexName);
      if (selection.filter !== undefined && this.#isOfMemory(indexName, selection.filter)) {
        await this.#deleteEverywhere(name, selection);
      } else {
        await this.#delete(name, selection);
      }
    });
  }

  // ---- names ----

  /** The collection that an index is. */
  #collection(indexName: string): string {
    const own = this.#memoryIndexName;
    return own !== undefined && indexName.startsWith(OF_MESSAGES) && indexName !== ELSEWHERE
      ? own
      : indexName;
  }

  async #names(): Promise<string[]> {
    const found = await this.#vectors.listCollections(this.#resourceId, this.#options);
    return found.map(({ name }) => name);
  }

  #describe(name: string): ReturnType<VectorCalls['describeCollection']> {
    return this.#vectors.describeCollection(this.#resourceId, name, this.#options);
  }

  /** Whether a deletion is one of `Memory`: of a thread or of messages, in an index of messages. */
  #isOfMemory(indexName: string, filter: JsonObject): boolean {
    const [key, ...more] = Object.keys(filter);
    return (
      this.#deletesReachEveryIndex &&
      indexName.startsWith(OF_MESSAGES) &&
      more.length === 0 &&
      (key === 'thread_id' || key === 'message_id')
    );
  }

  /** Sees to it that `Memory` finds an index to delete from, before it is needed in another. */
  async #reach(name: string): Promise<void> {
    if (!this.#deletesReachEveryIndex || name.startsWith(OF_MESSAGES)) return;
    this.#reached ??= this.#makeElsewhere();
    try {
      await this.#reached;
    } catch (error) {
      this.#reached = undefined;
      throw error;
    }
  }

  async #makeElsewhere(): Promise<void> {
    if ((await this.listIndexes()).some((name) => name.startsWith(OF_MESSAGES))) return;
    const options = { dimensions: 1, ...this.#options };
    await this.#vectors.createCollection(this.#resourceId, ELSEWHERE, options);
  }

  // ---- calls ----

  async #call<T>(
    operation: VectorOperation,
    indexName: string | undefined,
    work: () => Promise<T>,
  ): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const told = vectorError(operation, indexName, error);
      this.logger.trackException(told);
      throw told;
    }
  }

  /** Does something with an index; one that was made here, and is gone since, is made again. */
  async #onIndex<T>(name: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      const made = this.#made.get(name);
      if (!(error instanceof NotFoundError) || made === undefined) throw error;
      this.#made.delete(name);
      await this.#vectors.createCollection(this.#resourceId, name, { ...made, ...this.#options });
      this.#made.set(name, made);
      return await work();
    }
  }

  /** Removes vectors from every index but those of observations, and from `name` first. */
  async #deleteEverywhere(name: string, selection: VectorSelection): Promise<void> {
    const failures: unknown[] = [];
    const others = await this.#names();
    for (const one of new Set([name, ...others])) {
      if (one.startsWith(OF_OBSERVATIONS)) continue;
      try {
        await this.#delete(one, selection);
      } catch (error) {
        // One that went meanwhile holds nothing; whatever else fails keeps no other from its turn.
        if (one === name || !(error instanceof NotFoundError)) failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  /** Removes vectors from one index. */
  async #delete(name: string, selection: VectorSelection): Promise<void> {
    const { ids } = selection;
    const parts =
      ids === undefined
        ? [selection]
        : Array.from({ length: Math.ceil(ids.length / SELECTED_IDS_MAX) }, (_, at) => ({
            ids: ids.slice(at * SELECTED_IDS_MAX, (at + 1) * SELECTED_IDS_MAX),
          }));
    for (const part of parts) {
      await this.#vectors.delete(this.#resourceId, name, part, this.#options);
    }
  }
}

/** One of ids and a filter, neither of them empty: both would be everything, or nothing. */
function selectionOf(
  ids: readonly string[] | undefined,
  filter: SemanticRecallVectorFilter,
  field: string,
): VectorSelection {
  const conditions = filterToJson(filter);
  if (ids !== undefined && filter !== undefined && filter !== null) {
    throw InvalidArgumentError.of(field, 'and filter must not both be given');
  }
  if (ids !== undefined) {
    if (ids.length > 0) return { ids };
    throw InvalidArgumentError.of(field, 'must not be empty');
  }
  if (conditions !== undefined) return { filter: conditions };
  throw InvalidArgumentError.of(
    'filter',
    `or ${field} is required, and neither may be empty; to remove everything use deleteIndex`,
  );
}

function checkOptions(options: unknown): void {
  const given = check.options<SemanticRecallVectorOptions>(options, KNOWN);
  for (const name of ['id', 'resourceId', 'memoryIndexName'] as const) {
    if (given[name] !== undefined) check.text(given[name], name);
  }
  const { timeoutMs, deletesReachEveryIndex } = given;
  if (timeoutMs !== undefined) check.milliseconds(timeoutMs, 'timeoutMs');
  if (deletesReachEveryIndex !== undefined) {
    check.flag(deletesReachEveryIndex, 'deletesReachEveryIndex');
  }
}

function refuseSparse(field: string, value: unknown): void {
  if (value !== undefined) {
    throw InvalidArgumentError.of(field, 'is not supported: vectors are dense here');
  }
}
