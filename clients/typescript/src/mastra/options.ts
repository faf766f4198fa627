/** What a {@link SemanticRecall} processor is told: the original's options, and ours. */
import type { MemoryStorage } from '@mastra/core/storage';

import { isRecord } from '../adapters/json.js';
import * as check from '../arguments.js';
import type { RecallClient } from '../client.js';
import { InvalidArgumentError } from '../errors.js';
import * as recallFields from '../recall-fields.js';
import type { FollowableStore } from './following.js';
import type { JsonObject, MessageRange, Ranking, Scope, TlsOptions } from '../values.js';

/** Where lines of log go. Mastra's loggers fit (`IMastraLogger`); so does `console`. */
export interface RecallLogger {
  /** Something was lost or left undone. */
  error(message: string, ...fields: unknown[]): void;
  /** Something is not as it was given, e.g. a text that was cut. Default: `error`. */
  warn?(message: string, ...fields: unknown[]): void;
  /** What is only good to know. Default: not told. */
  debug?(message: string, ...fields: unknown[]): void;
}

/** Options of {@link SemanticRecall}. All may be left out; then the sidecar is the default one. */
export interface SemanticRecallOptions {
  /**
   * A Mastra store, or its memory domain (`await store.getStore('memory')`). Nothing is read from
   * it in a turn; what is deleted, edited, cloned, moved or given other metadata through it
   * reaches the sidecar, as with `follow`.
   */
  storage?: MemoryStorage | FollowableStore | undefined;
  /** Accepted and not needed: the sidecar has the vectors. */
  vector?: unknown;
  /** Accepted and not needed: the sidecar has the model. */
  embedder?: unknown;
  /** Accepted and not needed: there is one index, and it always belongs to the model. */
  indexName?: string | undefined;
  /** Accepted and not needed: the sidecar embeds. */
  embedderOptions?: unknown;
  /** How many messages to find, 1 to 1,000; those already in the prompt do not count. Default 4. */
  topK?: number | undefined;
  /** Neighbours of each hit, 0 to 50; one number: so many before and after. Default 1 and 1. */
  messageRange?: number | MessageRange | undefined;
  /** Default "resource": all threads of the resource. "thread": only the current one. */
  scope?: Scope | undefined;
  /** Least cosine of a hit, inclusive, -1 to 1. Default: none. */
  threshold?: number | undefined;
  /** Where lines of log go. Default: Mastra's logger once registered, else process warnings. */
  logger?: RecallLogger | undefined;

  /** A client to share. Default: one in the process for each `address`, `token` and `tls`. */
  client?: RecallClient | undefined;
  /** "HOST:PORT" or "unix:/path". Default: SEMANTICRECALL_ADDRESS, else "127.0.0.1:7650". */
  address?: string | undefined;
  /** Sent with every call where the sidecar wants one. Default: SEMANTICRECALL_TOKEN. */
  token?: string | undefined;
  /** Default false: no TLS. */
  tls?: TlsOptions | boolean | undefined;
  /**
   * Condition on the metadata of threads, in the Mongo style: `{ projectId: 'A' }`. It holds
   * together with `semanticRecall.filter` of the request, where there is one. Default: none.
   */
  filter?: JsonObject | undefined;
  /** Most tokens of recalled messages, and of the text of other threads. Default: no budget. */
  maxTokens?: number | undefined;
  /** How hits are ranked. Default: by meaning and words. `{ mode: 'dense' }` as the original. */
  ranking?: Ranking | undefined;
  /**
   * How messages of other threads are written. "default": dated, escaped, fenced. "mastra": byte
   * for byte as the original (unescaped, UTC, English), and without marks of gaps.
   */
  contextFormat?: 'default' | 'mastra' | undefined;
  /** IANA name of the zone of dates, e.g. "Europe/Berlin". Default "UTC". */
  timeZone?: string | undefined;
  /** True: nothing is indexed after a turn. Default false; the request's holds as well. */
  readOnly?: boolean | undefined;
  /**
   * Where messages of other threads go. "system" (default): a system message, as the original.
   * "beforeLastUser": a message right before the last one of the user, so that a provider's cache
   * of the prompt's beginning stays good.
   */
  placement?: 'system' | 'beforeLastUser' | undefined;
  /** Milliseconds that a recall, and the indexing of a turn, may take. Default 3,000. */
  timeoutMs?: number | undefined;
  /** "durable" (default): a turn ends when its messages are on disk. "searchable": with vectors. */
  wait?: 'durable' | 'searchable' | undefined;
  /**
   * A turn that failed or was aborted. "skip" (default): it is not indexed. "mark": it is, with the
   * metadata `turn_failed: true` and `finish_reason`.
   */
  failedTurns?: 'skip' | 'mark' | undefined;
  /** Messages kept for later while the sidecar is away, 0 to 100,000. Default 1,000. */
  retryQueueMessagesMax?: number | undefined;
  /** Whether the memory of the agent that runs is followed; see `follow`. Default true. */
  followAgentMemory?: boolean | undefined;
}

/** What a recall asks for, with every default filled in. */
export interface RecallSettings {
  readonly topK: number;
  readonly messageRange: { readonly before: number; readonly after: number };
  readonly scope: Scope;
  readonly threshold: number | undefined;
}

/** The options, checked, with every default filled in. */
export interface ResolvedOptions extends RecallSettings {
  /** Names of settings that were given, which those of a request do not change. */
  readonly given: ReadonlySet<string>;
  readonly filter: JsonObject | undefined;
  readonly maxTokens: number | undefined;
  readonly ranking: Ranking | undefined;
  readonly contextFormat: 'default' | 'mastra';
  readonly timeZone: string;
  readonly readOnly: boolean;
  readonly placement: 'system' | 'beforeLastUser';
  readonly timeoutMs: number;
  readonly wait: 'durable' | 'searchable';
  readonly failedTurns: 'skip' | 'mark';
  readonly retryQueueMessagesMax: number;
  readonly followAgentMemory: boolean;
}

const NOT_NEEDED = ['vector', 'embedder', 'indexName', 'embedderOptions'] as const;

const KNOWN: Readonly<Record<keyof SemanticRecallOptions, true>> = {
  storage: true,
  vector: true,
  embedder: true,
  indexName: true,
  embedderOptions: true,
  topK: true,
  messageRange: true,
  scope: true,
  threshold: true,
  logger: true,
  client: true,
  address: true,
  token: true,
  tls: true,
  filter: true,
  maxTokens: true,
  ranking: true,
  contextFormat: true,
  timeZone: true,
  readOnly: true,
  placement: true,
  timeoutMs: true,
  wait: true,
  failedTurns: true,
  retryQueueMessagesMax: true,
  followAgentMemory: true,
};

const SCOPES = { resource: 'resource', thread: 'thread' } as const;
const FORMATS = { default: 'default', mastra: 'mastra' } as const;
const PLACEMENTS = { system: 'system', beforeLastUser: 'beforeLastUser' } as const;
const WAITS = { durable: 'durable', searchable: 'searchable' } as const;
const FAILED_TURNS = { skip: 'skip', mark: 'mark' } as const;

const DEFAULT_TIMEOUT_MS = 3_000;
const DEFAULT_QUEUE_MESSAGES_MAX = 1_000;
/** Least and most of each, inclusive. */
const RANKING_LIMITS = [
  ['recencyWeight', 0, 1],
  ['recencyHalfLifeMs', 1, 36_500 * 86_400_000],
  ['diversity', 0, 1],
  ['nearDuplicateCosine', Number.EPSILON, 1],
] as const;

/** The given options that nothing is done with, by name. */
export function optionsNotNeeded(options: SemanticRecallOptions): string[] {
  return NOT_NEEDED.filter((name) => options[name] !== undefined);
}

/**
 * Checks every option and fills in defaults.
 *
 * @throws InvalidArgumentError naming the option at fault and what is allowed.
 */
export function resolveOptions(options: SemanticRecallOptions): ResolvedOptions {
  const given = check.options<SemanticRecallOptions>(options, KNOWN);
  oneWayToTheSidecar(options);
  return {
    ...recallSettings(given),
    given: new Set(Object.keys(given).filter((name) => given[name] !== undefined)),
    filter: optional(given['filter'], (v) => check.filter(v, 'filter')),
    maxTokens: optional(given['maxTokens'], (v) => between(v, 'maxTokens', 1, 1_000_000)),
    ranking: optional(given['ranking'], ranking),
    contextFormat: check.member(FORMATS, given['contextFormat'] ?? 'default', 'contextFormat'),
    timeZone: zone(given['timeZone'] ?? 'UTC'),
    readOnly: check.flag(given['readOnly'] ?? false, 'readOnly'),
    placement: check.member(PLACEMENTS, given['placement'] ?? 'system', 'placement'),
    timeoutMs: between(given['timeoutMs'] ?? DEFAULT_TIMEOUT_MS, 'timeoutMs', 1, 600_000),
    wait: check.member(WAITS, given['wait'] ?? 'durable', 'wait'),
    failedTurns: check.member(FAILED_TURNS, given['failedTurns'] ?? 'skip', 'failedTurns'),
    retryQueueMessagesMax: between(
      given['retryQueueMessagesMax'] ?? DEFAULT_QUEUE_MESSAGES_MAX,
      'retryQueueMessagesMax',
      0,
      100_000,
    ),
    followAgentMemory: check.flag(given['followAgentMemory'] ?? true, 'followAgentMemory'),
  };
}

/**
 * The settings of a request's `memoryConfig.semanticRecall`, behind those given to the processor.
 *
 * @throws InvalidArgumentError where the request's are not allowed.
 */
export function settingsOfRequest(options: ResolvedOptions, request: unknown): RecallSettings {
  const { topK, messageRange, scope, threshold } = options;
  if (!isRecord(request)) return { topK, messageRange, scope, threshold };
  const wanted: Record<string, unknown> = {};
  for (const name of ['topK', 'messageRange', 'scope', 'threshold'] as const) {
    wanted[name] = options.given.has(name) ? options[name] : request[name];
  }
  return recallSettings(wanted);
}

/**
 * The processor's filter and the request's, both of which must hold.
 *
 * @throws InvalidArgumentError where the request's is no JSON object.
 */
export function filterOfRequest(
  options: ResolvedOptions,
  request: unknown,
): JsonObject | undefined {
  const wanted = isRecord(request) ? request['filter'] : undefined;
  if (wanted === undefined || wanted === null) return options.filter;
  const filter = check.filter(wanted, 'semanticRecall.filter');
  return options.filter === undefined ? filter : { $and: [options.filter, filter] };
}

function recallSettings(given: check.Fields): RecallSettings {
  return {
    topK: between(given['topK'] ?? 4, 'topK', 1, 1_000),
    messageRange: range(given['messageRange'] ?? 1),
    scope: check.member(SCOPES, given['scope'] ?? 'resource', 'scope'),
    threshold: optional(given['threshold'], (v) => real(v, 'threshold', -1, 1)),
  };
}

function range(value: unknown): { before: number; after: number } {
  const given = recallFields.messageRange(value);
  for (const side of ['before', 'after'] as const) {
    const field = typeof value === 'number' ? 'messageRange' : `messageRange.${side}`;
    between(given[side], field, 0, 50);
  }
  return given;
}

function ranking(value: unknown): Ranking {
  const given = recallFields.ranking(value);
  for (const [name, least, most] of RANKING_LIMITS) {
    if (given[name] !== undefined) real(given[name], `ranking.${name}`, least, most);
  }
  return given;
}

function oneWayToTheSidecar(options: SemanticRecallOptions): void {
  if (options.client === undefined) return;
  for (const name of ['address', 'token', 'tls'] as const) {
    if (options[name] !== undefined) {
      throw InvalidArgumentError.of(name, 'belongs to the client: give one of them, not both');
    }
  }
}

function between(value: unknown, field: string, least: number, most: number): number {
  const given = check.whole(value, field, least);
  if (given > most) throw InvalidArgumentError.of(field, `must be at most ${most}`);
  return given;
}

function real(value: unknown, field: string, least: number, most: number): number {
  const given = check.number(value, field);
  if (given >= least && given <= most) return given;
  const from = least === Number.EPSILON ? 'above 0 and' : `from ${least} and`;
  throw InvalidArgumentError.of(field, `must be ${from} at most ${most}`);
}

function zone(value: unknown): string {
  const name = check.text(value, 'timeZone');
  try {
    new Intl.DateTimeFormat('en', { timeZone: name });
    return name;
  } catch {
    // Node knows no such zone.
    throw InvalidArgumentError.of('timeZone', 'must be an IANA name, e.g. "Europe/Berlin"');
  }
}

function optional<T>(value: unknown, read: (value: unknown) => T): T | undefined {
  return value === undefined ? undefined : read(value);
}
