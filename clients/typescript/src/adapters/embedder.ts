/**
 * An AI SDK embedding model over the sidecar: for `embed()` and `embedMany()`, and for Mastra's own
 * memory. It needs neither of them at run time.
 *
 * One vector for questions and for what is to be found: this seam carries no role, so that a model
 * whose prompts differ by role (E5, say) loses a little. The client's own `recall` loses nothing.
 */
import * as check from '../arguments.js';
import type { EmbedRole, Embedding, RecallClient, TlsOptions } from '../index.js';
import { FailedPreconditionError, InvalidArgumentError } from '../index.js';
import { ownedClient } from './owned-client.js';

/** Versions of the AI SDK's embedding model specification that this model can state. */
export type EmbeddingSpecification = 'v2' | 'v3' | 'v4';

/** Options of {@link semanticRecallEmbedder}. */
export interface SemanticRecallEmbedderOptions<V extends EmbeddingSpecification = 'v3'> {
  /** The client to use. It stays yours: close it yourself. */
  client?: Pick<RecallClient, 'embed'> | undefined;
  /** Without a client: where the sidecar is. Default: as `RecallClient`. */
  address?: string | undefined;
  /** Without a client: sent with every call, where the sidecar wants it. Default: as there. */
  token?: string | undefined;
  /** Without a client: how the connection is encrypted. Default: as there, no TLS. */
  tls?: TlsOptions | boolean | undefined;
  /** What texts are embedded as. Default "passage". */
  role?: EmbedRole | undefined;
  /**
   * Which specification the model states. Default "v3": AI SDK 6 and 7, and Mastra. "v2" for AI SDK
   * 5, "v4" for AI SDK 7 alone. They differ in nothing else here.
   */
  specificationVersion?: V | undefined;
  /**
   * Name of the model. Default "sidecar". Mastra's processor makes the name of its index from it
   * where it is used without `Memory`: give each model of the sidecar another.
   */
  modelId?: string | undefined;
  /** Milliseconds a call may take. Default: the client's. */
  timeoutMs?: number | undefined;
}

/** What is embedded in one call. */
export interface EmbedCall {
  /** 1 to 256 texts, none of them blank. None at all gives no vectors. */
  values: string[];
  /** Stops the waiting. */
  abortSignal?: AbortSignal | undefined;
  /** Asked for by AI SDK 7; refused where the server's model has another number. */
  dimensions?: number | undefined;
}

/** What comes back. */
export interface EmbedAnswer {
  /** Unit vectors, in the order of the values. */
  embeddings: number[][];
  /** Tokens as embedded, special tokens included. */
  usage: { tokens: number };
  /** Texts that were longer than the model's window, and cut. */
  warnings: { type: 'other'; message: string }[];
  /** Which vectors these are: model, revision, dimensions, arithmetic. */
  providerMetadata: { semanticrecall: { indexIdentity: string } };
}

/** An embedding model as AI SDK 5 to 7 and Mastra take it. */
export interface SemanticRecallEmbedder<V extends EmbeddingSpecification = 'v3'> {
  /** See {@link SemanticRecallEmbedderOptions}. */
  readonly specificationVersion: V;
  /** "semanticrecall". */
  readonly provider: string;
  /** See {@link SemanticRecallEmbedderOptions}. */
  readonly modelId: string;
  /** 256. */
  readonly maxEmbeddingsPerCall: number;
  /** True. */
  readonly supportsParallelCalls: boolean;
  /**
   * Embeds texts.
   *
   * @throws InvalidArgumentError - a text is blank, too long, or there are too many.
   * @throws FailedPreconditionError - the sidecar has another model than at the first call: its
   *   vectors do not go together with those that were made before. Make a new embedder, and embed
   *   anew what is stored.
   */
  doEmbed(call: EmbedCall): Promise<EmbedAnswer>;
  /** Closes the connection, unless the client was given. */
  readonly close: () => Promise<void>;
}

const KNOWN: Readonly<Record<keyof SemanticRecallEmbedderOptions, true>> = {
  client: true,
  address: true,
  token: true,
  tls: true,
  role: true,
  specificationVersion: true,
  modelId: true,
  timeoutMs: true,
};
const ROLES: Readonly<Record<EmbedRole, EmbedRole>> = { query: 'query', passage: 'passage' };
const SPECIFICATIONS: Readonly<Record<EmbeddingSpecification, EmbeddingSpecification>> = {
  v2: 'v2',
  v3: 'v3',
  v4: 'v4',
};

/** Values of one call, at most: the server's limit of `Embed`. */
const VALUES_MAX = 256;

/**
 * An embedding model that asks the sidecar.
 *
 * ```ts
 * const embedder = semanticRecallEmbedder({ address: '127.0.0.1:7650' });
 * const { embedding } = await embed({ model: embedder, value: 'Rex is allergic to chicken' });
 * ```
 *
 * @throws InvalidArgumentError - an option is unknown, or not what it may be.
 */
export function semanticRecallEmbedder(
  options?: SemanticRecallEmbedderOptions,
): SemanticRecallEmbedder;
/** The same, under the specification that `specificationVersion` names. */
export function semanticRecallEmbedder<V extends EmbeddingSpecification>(
  options: SemanticRecallEmbedderOptions<V> & { specificationVersion: V },
): SemanticRecallEmbedder<V>;
export function semanticRecallEmbedder(
  options: SemanticRecallEmbedderOptions<EmbeddingSpecification> = {},
): SemanticRecallEmbedder<EmbeddingSpecification> {
  checkOptions(options);
  const { client, close } = ownedClient(options);
  let identity: string | undefined;

  async function doEmbed(call: EmbedCall): Promise<EmbedAnswer> {
    const { values, abortSignal, dimensions } = call;
    refuseBlank(values);
    if (values.length === 0) return answer([], identity ?? '');
    const result = await client.embed(values, {
      role: options.role,
      signal: abortSignal,
      timeoutMs: options.timeoutMs,
    });
    identity ??= result.indexIdentity;
    refuseOther(identity, result.indexIdentity);
    refuseDimensions(dimensions, result.dimensions);
    return answer(result.embeddings, identity);
  }

  return {
    specificationVersion: options.specificationVersion ?? 'v3',
    provider: 'semanticrecall',
    modelId: options.modelId ?? 'sidecar',
    maxEmbeddingsPerCall: VALUES_MAX,
    supportsParallelCalls: true,
    doEmbed,
    close,
  };
}

function checkOptions(options: unknown): void {
  const given = check.options<SemanticRecallEmbedderOptions>(options, KNOWN);
  const { role, specificationVersion, modelId, timeoutMs } = given;
  if (role !== undefined) check.member(ROLES, role, 'role');
  if (specificationVersion !== undefined) {
    check.member(SPECIFICATIONS, specificationVersion, 'specificationVersion');
  }
  if (modelId !== undefined) check.text(modelId, 'modelId');
  if (timeoutMs !== undefined) check.milliseconds(timeoutMs, 'timeoutMs');
}

function answer(embeddings: readonly Embedding[], indexIdentity: string): EmbedAnswer {
  const warnings = embeddings.flatMap(({ truncated }, index) =>
    truncated
      ? [
          {
            type: 'other' as const,
            message: `values[${index}] is longer than the model's window and was cut`,
          },
        ]
      : [],
  );
  return {
    embeddings: embeddings.map(({ values }) => values),
    usage: { tokens: embeddings.reduce((sum, { tokens }) => sum + tokens, 0) },
    warnings,
    providerMetadata: { semanticrecall: { indexIdentity } },
  };
}

function refuseBlank(values: readonly string[]): void {
  const blank = values.findIndex((value) => value.trim() === '');
  if (blank !== -1) {
    const description = 'is empty or only white space, which has no vector; leave it out';
    throw InvalidArgumentError.of(`values[${blank}]`, description);
  }
}

function refuseOther(known: string, now: string): void {
  if (known === now) return;
  throw new FailedPreconditionError(
    `the sidecar's model was ${known} and is ${now} now: their vectors do not go together; ` +
      'embed anew what is stored, with a new embedder',
    { reason: 'MODEL_CHANGED' },
  );
}

function refuseDimensions(asked: number | undefined, has: number): void {
  if (asked === undefined || asked === has) return;
  throw InvalidArgumentError.of('dimensions', `the sidecar's model has ${has}, not ${asked}`);
}
