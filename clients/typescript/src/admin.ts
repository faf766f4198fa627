/** Calls that care for a store, and what they return. */
import { create } from '@bufbuild/protobuf';
import * as answers from './answers.js';
import * as check from './arguments.js';
import type { Calls } from './calls.js';
import { compact, map } from './calls.js';
import type { ExportedMessage } from './results.js';
import * as v1 from './v1/index.js';
import type { CallOptions } from './values.js';
import { dateOf } from './wire.js';

/** The embedding cache of the server; counters are since its start. */
export interface CacheStats {
  entries: number;
  bytes: number;
  hits: number;
  misses: number;
  evictions: number;
  /** Hits among look-ups, 0 to 1. */
  hitRatio: number;
  diskEntries: number;
  diskBytes: number;
  diskHits: number;
  diskEvictions: number;
  diskDamaged: number;
}

/** Images of partitions, from which a start reads them quicker. */
export interface ImageStats {
  files: number;
  bytes: number;
  /** Resources that have one. */
  partitions: number;
  /** Vectors in them. */
  rows: number;
  /** Found damaged since the start, and not used. */
  damaged: number;
  /** That could not be written, read or removed since the start. */
  failures: number;
}

/** Counts of the store, or of one resource (then only the first four and the identities). */
export interface Stats {
  messages: number;
  vectors: number;
  /** Messages that wait to be embedded. */
  pending: number;
  threads: number;
  resources: number;
  /** The database with its log. */
  diskBytes: number;
  /** Memory of the server's process. */
  residentBytes: number;
  /** Resources whose vectors are in memory. */
  partitionsLoaded: number;
  cache: CacheStats | undefined;
  /** Which vectors: model, revision, dimensions, arithmetic. */
  indexIdentity: string;
  /** Where the model runs: "cpu" or "cuda". */
  device: string;
  serverVersion: string;
  uptimeSeconds: number;
  snapshots: ImageStats | undefined;
  /** Resources whose words are in memory. */
  lexicalPartitionsLoaded: number;
  lexicalBytes: number;
  /** Of the next model's vectors; "" without one. */
  nextIndexIdentity: string;
  nextEmbedded: number;
  /** Messages that the retention has removed since the start. */
  expired: number;
  /** What was forgotten has not left all files yet. */
  purgePending: boolean;
  /** What was found damaged since the start. */
  damaged: number;
  /** The files are encrypted. */
  encrypted: boolean;
}

/** A saved store. */
export interface Snapshot {
  /** Made by the server; "" where only images of partitions were written. */
  name: string;
  createTime: Date;
  bytes: number;
  messages: number;
  vectors: number;
  /** It holds all changes of the store up to this one, and none after. */
  revision: bigint;
  /** SHA-256 of its data, in hexadecimal digits. */
  digest: string;
  indexIdentity: string;
  serverVersion: string;
  /** Format of the record in it. */
  format: number;
  encrypted: boolean;
  /** Messages forgotten since and still in its files; a restore leaves them out. */
  forgotten: number;
}

/** The snapshots of the server's folder. */
export interface SnapshotList {
  /** Newest first. */
  snapshots: Snapshot[];
  /** What else lies there and may hold messages of the store. */
  leftOut: string[];
}

/** What a restored store holds. */
export interface RestoreResult {
  messages: number;
  vectors: number;
  /** Messages left out: forgotten after the snapshot was made. */
  forgotten: number;
  /** No file FORGOTTEN lay beside it: what was forgotten may have come back. */
  withoutLedger: boolean;
}

/** What a purge did. */
export interface PurgeResult {
  /** Everything forgotten up to this revision of the store has left the files. */
  revision: bigint;
  snapshotsRewritten: string[];
  /** What may hold it still; where there is any, the purge was not complete. */
  snapshotsHolding: string[];
}

/** What `verify` tells: findings and progress, then one summary. */
export type VerifyEvent =
  | {
      type: 'finding';
      /** Stable word in UPPER_SNAKE_CASE, e.g. "VECTOR_MISSING". */
      kind: string;
      resourceId: string;
      messageId: string;
      /** Without message text. */
      detail: string;
      repaired: boolean;
    }
  | { type: 'progress'; stage: string; done: number; /** 0: not known. */ total: number }
  | {
      type: 'summary';
      messages: number;
      vectors: number;
      /** 0 where all agrees. */
      findings: number;
      repaired: number;
      analyses: number;
      images: number;
      snapshots: number;
      selfTestRecalls: number;
      selfTestFailures: number;
      /** Messages that the repair has removed: nothing on record gives them back. */
      lost: number;
    };

/** How far `reembed` has come. */
export interface ReembedProgress {
  done: number;
  total: number;
  fromIndexIdentity: string;
  toIndexIdentity: string;
  /** The next model serves now; only of the last one. */
  complete: boolean;
}

const CALL: Readonly<Record<keyof CallOptions, true>> = { timeoutMs: true, signal: true };
const STATS: Readonly<Record<keyof (ResourceOption & CallOptions), true>> = {
  ...CALL,
  resourceId: true,
};
const VERIFY: Readonly<Record<keyof (VerifyOptions & CallOptions), true>> = {
  ...STATS,
  repair: true,
};
const SNAPSHOT: Readonly<Record<keyof (SnapshotOptions & CallOptions), true>> = {
  ...CALL,
  partitionsOnly: true,
};
const EXPORT: Readonly<Record<keyof (ExportOptions & CallOptions), true>> = {
  ...CALL,
  withVectors: true,
};

/** Of one resource, or of the whole store. */
export interface ResourceOption {
  /** Default: the whole store. */
  resourceId?: string | undefined;
}

/** Options of `verify`. */
export interface VerifyOptions extends ResourceOption {
  /** Mend what is derived; messages that cannot be read are removed and told as lost. */
  repair?: boolean | undefined;
}

/** Options of `createSnapshot`. */
export interface SnapshotOptions {
  /** Only images of partitions: nothing that could be restored. Default false. */
  partitionsOnly?: boolean | undefined;
}

/** Options of `export`. */
export interface ExportOptions {
  /** With the vectors of the messages that have some. Default false. */
  withVectors?: boolean | undefined;
}

/** State and care of one sidecar's store. Where tokens are configured these calls need one. */
export class AdminCalls {
  readonly #calls: Calls;

  constructor(calls: Calls) {
    this.#calls = calls;
  }

  /** Counts, sizes and identity. */
  async stats(options?: ResourceOption & CallOptions): Promise<Stats> {
    const given = check.options(options, STATS);
    const request = create(v1.GetStatsRequestSchema, {
      resourceId: check.text(given['resourceId'] ?? '', 'resourceId'),
    });
    const { getStats } = v1.AdminService.method;
    return statsOf(await this.#calls.unary(getStats, request, options));
  }

  /** Saves the whole store while calls go on. Give a large one minutes. */
  async createSnapshot(options?: SnapshotOptions & CallOptions): Promise<Snapshot> {
    const given = check.options(options, SNAPSHOT);
    const request = create(v1.CreateSnapshotRequestSchema, {
      partitionsOnly: check.flag(given['partitionsOnly'] ?? false, 'partitionsOnly'),
    });
    const { createSnapshot } = v1.AdminService.method;
    const answer = await this.#calls.long(createSnapshot, request, options);
    return snapshotOf(answer.snapshot ?? create(v1.SnapshotSchema));
  }

  /** The snapshots in the server's folder, newest first. */
  async listSnapshots(options?: CallOptions): Promise<SnapshotList> {
    check.options<CallOptions>(options, CALL);
    const { listSnapshots } = v1.AdminService.method;
    const request = create(v1.ListSnapshotsRequestSchema);
    const answer = await this.#calls.unary(listSnapshots, request, options);
    return { snapshots: answer.snapshots.map(snapshotOf), leftOut: answer.leftOut };
  }

  /** Removes a snapshot. */
  async deleteSnapshot(name: string, options?: CallOptions): Promise<void> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.DeleteSnapshotRequestSchema, { name: check.text(name, 'name') });
    await this.#calls.unary(v1.AdminService.method.deleteSnapshot, request, options);
  }

  /** Fills the server's store, which must be empty, with a snapshot; all or nothing. */
  async restoreSnapshot(name: string, options?: CallOptions): Promise<RestoreResult> {
    check.options<CallOptions>(options, CALL);
    const request = create(v1.RestoreSnapshotRequestSchema, { name: check.text(name, 'name') });
    const { restoreSnapshot } = v1.AdminService.method;
    const answer = await this.#calls.long(restoreSnapshot, request, options);
    return {
      messages: Number(answer.messages),
      vectors: Number(answer.vectors),
      forgotten: Number(answer.forgotten),
      withoutLedger: answer.withoutLedger,
    };
  }

  /** Removes from the files, snapshots included, what was forgotten. */
  async purge(options?: CallOptions): Promise<PurgeResult> {
    check.options<CallOptions>(options, CALL);
    const { purge } = v1.AdminService.method;
    const answer = await this.#calls.long(purge, create(v1.PurgeRequestSchema), options);
    return {
      revision: answer.revision,
      snapshotsRewritten: answer.snapshotsRewritten,
      snapshotsHolding: answer.snapshotsHolding,
    };
  }

  /** Compares everything that is stored: findings and progress, then one summary. */
  verify(options?: VerifyOptions & CallOptions): AsyncIterableIterator<VerifyEvent> {
    const given = check.options(options, VERIFY);
    const request = create(v1.VerifyRequestSchema, {
      resourceId: check.text(given['resourceId'] ?? '', 'resourceId'),
      repair: check.flag(given['repair'] ?? false, 'repair'),
    });
    const { verify } = v1.AdminService.method;
    return compact(map(this.#calls.serverStream(verify, request, options), verifyEventOf));
  }

  /** Makes all vectors anew with the server's next model, then switches to it at once. */
  reembed(options?: CallOptions): AsyncIterableIterator<ReembedProgress> {
    check.options<CallOptions>(options, CALL);
    const { reembed } = v1.AdminService.method;
    const request = create(v1.ReembedRequestSchema);
    return map(this.#calls.serverStream(reembed, request, options), (answer) => ({
      done: Number(answer.done),
      total: Number(answer.total),
      fromIndexIdentity: answer.fromIndexIdentity,
      toIndexIdentity: answer.toIndexIdentity,
      complete: answer.complete,
    }));
  }

  /** Every message of one resource in order. */
  export(
    resourceId: string,
    options?: ExportOptions & CallOptions,
  ): AsyncIterableIterator<ExportedMessage> {
    const given = check.options(options, EXPORT);
    const request = create(v1.ExportRequestSchema, {
      resourceId: check.text(resourceId, 'resourceId'),
      withVectors: check.flag(given['withVectors'] ?? false, 'withVectors'),
    });
    const method = v1.AdminService.method.export;
    return compact(map(this.#calls.serverStream(method, request, options), answers.exported));
  }
}

function statsOf(wire: v1.GetStatsResponse): Stats {
  return {
    messages: Number(wire.messages),
    vectors: Number(wire.vectors),
    pending: Number(wire.pending),
    threads: Number(wire.threads),
    resources: Number(wire.resources),
    diskBytes: Number(wire.diskBytes),
    residentBytes: Number(wire.residentBytes),
    partitionsLoaded: Number(wire.partitionsLoaded),
    cache: wire.cache === undefined ? undefined : cacheOf(wire.cache),
    indexIdentity: wire.indexIdentity,
    device: wire.device,
    serverVersion: wire.serverVersion,
    uptimeSeconds: wire.uptimeSeconds,
    snapshots: wire.snapshots === undefined ? undefined : imagesOf(wire.snapshots),
    lexicalPartitionsLoaded: Number(wire.lexicalPartitionsLoaded),
    lexicalBytes: Number(wire.lexicalBytes),
    nextIndexIdentity: wire.nextIndexIdentity,
    nextEmbedded: Number(wire.nextEmbedded),
    expired: Number(wire.expired),
    purgePending: wire.purgePending,
    damaged: Number(wire.damaged),
    encrypted: wire.encrypted,
  };
}

function cacheOf(wire: v1.CacheStats): CacheStats {
  return {
    entries: Number(wire.entries),
    bytes: Number(wire.bytes),
    hits: Number(wire.hits),
    misses: Number(wire.misses),
    evictions: Number(wire.evictions),
    hitRatio: wire.hitRatio,
    diskEntries: Number(wire.diskEntries),
    diskBytes: Number(wire.diskBytes),
    diskHits: Number(wire.diskHits),
    diskEvictions: Number(wire.diskEvictions),
    diskDamaged: Number(wire.diskDamaged),
  };
}

function imagesOf(wire: v1.SnapshotStats): ImageStats {
  return {
    files: Number(wire.files),
    bytes: Number(wire.bytes),
    partitions: Number(wire.partitions),
    rows: Number(wire.rows),
    damaged: Number(wire.damaged),
    failures: Number(wire.failures),
  };
}

function snapshotOf(wire: v1.Snapshot): Snapshot {
  return {
    name: wire.name,
    createTime: dateOf(wire.createTime),
    bytes: Number(wire.bytes),
    messages: Number(wire.messages),
    vectors: Number(wire.vectors),
    revision: wire.revision,
    digest: wire.digest,
    indexIdentity: wire.indexIdentity,
    serverVersion: wire.serverVersion,
    format: wire.format,
    encrypted: wire.encrypted,
    forgotten: Number(wire.forgotten),
  };
}

function verifyEventOf({ event }: v1.VerifyResponse): VerifyEvent | undefined {
  switch (event.case) {
    case 'finding': {
      const { kind, resourceId, messageId, detail, repaired } = event.value;
      return { type: 'finding', kind, resourceId, messageId, detail, repaired };
    }
    case 'progress': {
      const { stage, done, total } = event.value;
      return { type: 'progress', stage, done: Number(done), total: Number(total) };
    }
    case 'summary':
      return {
        type: 'summary',
        messages: Number(event.value.messages),
        vectors: Number(event.value.vectors),
        findings: Number(event.value.findings),
        repaired: Number(event.value.repaired),
        analyses: Number(event.value.analyses),
        images: Number(event.value.images),
        snapshots: Number(event.value.snapshots),
        selfTestRecalls: Number(event.value.selfTestRecalls),
        selfTestFailures: Number(event.value.selfTestFailures),
        lost: Number(event.value.lost),
      };
    default:
      return undefined;
  }
}
