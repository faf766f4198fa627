/** Named collections of the caller's own vectors: values, and the calls on them. */
import { create } from '@bufbuild/protobuf';
import * as check from './arguments.js';
import type { Calls } from './calls.js';
import { InvalidArgumentError } from './errors.js';
import * as v1 from './v1/index.js';
import type { CallOptions, JsonObject } from './values.js';

/** How vectors are compared; a higher score is nearer in every metric. */
export type Metric = 'cosine' | 'euclidean' | 'dot_product';

/** What a collection is. */
export interface Collection {
  /** Its name. */
  name: string;
  /** Numbers in each vector. */
  dimensions: number;
  /** How they are compared. */
  metric: Metric;
  /** How many vectors it holds. */
  vectors: number;
}

/** One vector with what belongs to it. */
export interface VectorEntry {
  /** Unique within its collection. */
  id: string;
  /** As many finite numbers as the collection has dimensions; kept as float32. */
  values: readonly number[];
  /** Fields for `filter`, returned with the vector. */
  metadata?: JsonObject | undefined;
}

/** Which vectors of a collection: these, or all that match. */
export type VectorSelection =
  { ids: readonly string[]; filter?: undefined } | { filter: JsonObject; ids?: undefined };

/** What a new collection is. */
export interface CollectionOptions {
  /** Numbers in each vector, 1 to 8,192. */
  dimensions: number;
  /** Default "cosine". */
  metric?: Metric | undefined;
}

/** Options of `upsert`. */
export interface UpsertOptions {
  /** Removed in the same transaction, before the entries are added: those that match. */
  deleteFilter?: JsonObject | undefined;
}

/** What to look for. */
export interface VectorQuery {
  /** What to compare with. Default: nothing; the first `topK` that match by id, with score 0. */
  values?: readonly number[] | undefined;
  /** 1 to 10,000. Default 10. */
  topK?: number | undefined;
  /** Condition on the metadata, in the Mongo style. Required without `values`. */
  filter?: JsonObject | undefined;
  /** Return the vectors too. Default false. */
  includeValues?: boolean | undefined;
  /** Least score (inclusive). Default: none. */
  scoreMin?: number | undefined;
}

/** What to change of vectors: one of both at least. */
export interface VectorChange {
  /** The new vector. Default: as it was. */
  values?: readonly number[] | undefined;
  /** Fields to set; others stay as they were. */
  metadata?: JsonObject | undefined;
}

/** One vector of an answer. */
export interface VectorMatch {
  /** Its id. */
  id: string;
  /** See {@link Metric}. */
  score: number;
  /** As given. */
  metadata: JsonObject;
  /** As given, where asked for; else empty. */
  values: number[];
}

/** The answer of `query`. */
export interface VectorQueryResult {
  /** The best first; of equal scores the lower id. */
  matches: VectorMatch[];
  /** Matches left out to keep the answer below the server's limit: the last ones. */
  dropped: number;
}

/** What an `upsert` changed. */
export interface UpsertResult {
  /** Vectors that were not there before. */
  added: number;
  /** Vectors that replaced one of the same id. */
  replaced: number;
  /** Vectors removed by `deleteFilter`. */
  deleted: number;
}

const METRICS: Readonly<Record<Metric, v1.Metric>> = {
  cosine: v1.Metric.COSINE,
  euclidean: v1.Metric.EUCLIDEAN,
  dot_product: v1.Metric.DOT_PRODUCT,
};
const METRIC_NAMES: Readonly<Record<number, Metric>> = {
  [v1.Metric.EUCLIDEAN]: 'euclidean',
  [v1.Metric.DOT_PRODUCT]: 'dot_product',
};

const CALL: Readonly<Record<keyof CallOptions, true>> = { timeoutMs: true, signal: true };
const COLLECTION: Readonly<Record<keyof (CollectionOptions & CallOptions), true>> = {
  ...CALL,
  dimensions: true,
  metric: true,
};
const UPSERT: Readonly<Record<keyof (UpsertOptions & CallOptions), true>> = {
  ...CALL,
  deleteFilter: true,
};
const QUERY: Readonly<Record<keyof (VectorQuery & CallOptions), true>> = {
  ...CALL,
  values: true,
  topK: true,
  filter: true,
  includeValues: true,
  scoreMin: true,
};
const ENTRY: Readonly<Record<keyof VectorEntry, true>> = { id: true, values: true, metadata: true };
const SELECTION: Readonly<Record<'ids' | 'filter', true>> = { ids: true, filter: true };
const CHANGE: Readonly<Record<keyof VectorChange, true>> = { values: true, metadata: true };

/**
 * The vector store: vectors of the caller's own, of any model, searched by exact comparison. A
 * collection belongs to a resource; nobody else can read, list or change it.
 *
 * Every call throws NotFoundError (reason "COLLECTION_NOT_FOUND") where the resource has no
 * collection of that name.
 */
export class VectorCalls {
  readonly #calls: Calls;

  constructor(calls: Calls) {
    this.#calls = calls;
  }

  /**
   * Makes a collection; one that exists with the same dimensions and metric is left as it is.
   *
   * @throws FailedPreconditionError where it exists with others ("DIMENSIONS_DIFFER",
   *     "METRIC_DIFFERS").
   */
  async createCollection(
    resourceId: string,
    collection: string,
    options: CollectionOptions & CallOptions,
  ): Promise<{ collection: Collection; created: boolean }> {
    const given = check.options(check.fields(options, 'options'), COLLECTION);
    const request = create(v1.CreateCollectionRequestSchema, {
      ...named(resourceId, collection),
      dimensions: check.whole(given['dimensions'], 'dimensions', 1),
      metric: check.member(METRICS, given['metric'] ?? 'cosine', 'metric'),
    });
    const { createCollection } = v1.VectorService.method;
    const answer = await this.#calls.unary(createCollection, request, options);
    return { collection: collectionOf(answer.collection), created: answer.created };
  }

  /** The collections of a resource, by name. */
  async listCollections(resourceId: string, options?: CallOptions): Promise<Collection[]> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.ListCollectionsRequestSchema, {
      resourceId: check.text(resourceId, 'resourceId'),
    });
    const { listCollections } = v1.VectorService.method;
    const answer = await this.#calls.unary(listCollections, request, options);
    return answer.collections.map(collectionOf);
  }

  /** One collection. */
  async describeCollection(
    resourceId: string,
    collection: string,
    options?: CallOptions,
  ): Promise<Collection> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.DescribeCollectionRequestSchema, named(resourceId, collection));
    const { describeCollection } = v1.VectorService.method;
    const answer = await this.#calls.unary(describeCollection, request, options);
    return collectionOf(answer.collection);
  }

  /** Removes a collection with all its vectors. One that is not there counts as zero. */
  async deleteCollection(
    resourceId: string,
    collection: string,
    options?: CallOptions,
  ): Promise<{ vectors: number; deleted: boolean }> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.DeleteCollectionRequestSchema, named(resourceId, collection));
    const { deleteCollection } = v1.VectorService.method;
    const answer = await this.#calls.unary(deleteCollection, request, options);
    return { vectors: Number(answer.vectors), deleted: answer.deleted };
  }

  /** Adds vectors (1 to 1,000), or replaces those of the same ids; all of them or none. */
  async upsert(
    resourceId: string,
    collection: string,
    entries: readonly VectorEntry[],
    options?: UpsertOptions & CallOptions,
  ): Promise<UpsertResult> {
    const given = check.options(options, UPSERT);
    const request = create(v1.UpsertVectorsRequestSchema, {
      ...named(resourceId, collection),
      entries: check.items(entries, 'entries', 'vectors').map(entryToWire),
    });
    if (given['deleteFilter'] !== undefined) {
      request.deleteFilter = check.filter(given['deleteFilter'], 'deleteFilter');
    }
    const { upsertVectors } = v1.VectorService.method;
    const answer = await this.#calls.unary(upsertVectors, request, options);
    return {
      added: Number(answer.added),
      replaced: Number(answer.replaced),
      deleted: Number(answer.deleted),
    };
  }

  /** The nearest vectors to a vector among those that match a filter; exact. */
  async query(
    resourceId: string,
    collection: string,
    options: VectorQuery & CallOptions,
  ): Promise<VectorQueryResult> {
    const given = check.options(check.fields(options, 'options'), QUERY);
    const request = create(v1.QueryVectorsRequestSchema, {
      ...named(resourceId, collection),
      values: check.numbers(given['values'] ?? [], 'values'),
      includeValues: check.flag(given['includeValues'] ?? false, 'includeValues'),
    });
    if (given['topK'] !== undefined) request.topK = check.whole(given['topK'], 'topK', 1);
    if (given['filter'] !== undefined) request.filter = check.filter(given['filter'], 'filter');
    if (given['scoreMin'] !== undefined) {
      request.scoreMin = check.number(given['scoreMin'], 'scoreMin');
    }
    const { queryVectors } = v1.VectorService.method;
    const answer = await this.#calls.unary(queryVectors, request, options);
    const matches = answer.matches.map(({ id, score, metadata, values }) => ({
      id,
      score,
      metadata: metadata ?? {},
      values,
    }));
    return { matches, dropped: answer.dropped };
  }

  /**
   * Changes the vector or the metadata of the vectors chosen; how many.
   *
   * @throws NotFoundError ("VECTOR_NOT_FOUND") where an id is not there.
   */
  async update(
    resourceId: string,
    collection: string,
    selection: VectorSelection,
    change: VectorChange,
    options?: CallOptions,
  ): Promise<number> {
    check.options<CallOptions>(options, CALL);
    const given = check.options<VectorChange>(check.fields(change, 'change'), CHANGE, 'change');
    const request = create(v1.UpdateVectorsRequestSchema, {
      ...named(resourceId, collection),
      selection: selectionToWire(selection),
      values: check.numbers(given['values'] ?? [], 'change.values'),
    });
    if (given['metadata'] !== undefined) {
      request.metadata = check.json(given['metadata'], 'change.metadata');
    }
    const { updateVectors } = v1.VectorService.method;
    return Number((await this.#calls.unary(updateVectors, request, options)).updated);
  }

  /** Removes the vectors chosen; how many. Unknown ids count as zero. */
  async delete(
    resourceId: string,
    collection: string,
    selection: VectorSelection,
    options?: CallOptions,
  ): Promise<number> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.DeleteVectorsRequestSchema, {
      ...named(resourceId, collection),
      selection: selectionToWire(selection),
    });
    const { deleteVectors } = v1.VectorService.method;
    return Number((await this.#calls.unary(deleteVectors, request, options)).deleted);
  }
}

function named(
  resourceId: unknown,
  collection: unknown,
): { resourceId: string; collection: string } {
  return {
    resourceId: check.text(resourceId, 'resourceId'),
    collection: check.text(collection, 'collection'),
  };
}

function collectionOf(wire: v1.Collection | undefined): Collection {
  return {
    name: wire?.name ?? '',
    dimensions: wire?.dimensions ?? 0,
    metric: METRIC_NAMES[wire?.metric ?? 0] ?? 'cosine',
    vectors: Number(wire?.vectors ?? 0n),
  };
}

function entryToWire(value: unknown, at: number): v1.VectorEntry {
  const field = `entries[${at}]`;
  const given = check.options<VectorEntry>(check.fields(value, field), ENTRY, field);
  const entry = create(v1.VectorEntrySchema, {
    id: check.text(given['id'], `${field}.id`),
    values: check.numbers(given['values'], `${field}.values`),
  });
  if (given['metadata'] !== undefined) {
    entry.metadata = check.json(given['metadata'], `${field}.metadata`);
  }
  return entry;
}

function selectionToWire(value: unknown): v1.VectorSelection {
  const field = 'selection';
  const given = check.options<{ ids: unknown; filter: unknown }>(
    check.fields(value, field),
    SELECTION,
    field,
  );
  if ((given['ids'] === undefined) === (given['filter'] === undefined)) {
    throw InvalidArgumentError.of(field, 'must have one of ids and filter');
  }
  if (given['ids'] !== undefined) {
    const ids = create(v1.VectorIdsSchema, {
      ids: check.texts(given['ids'], 'selection.ids', 'ids'),
    });
    return create(v1.VectorSelectionSchema, { selection: { case: 'ids', value: ids } });
  }
  const filter = check.filter(given['filter'], 'selection.filter');
  return create(v1.VectorSelectionSchema, { selection: { case: 'filter', value: filter } });
}
