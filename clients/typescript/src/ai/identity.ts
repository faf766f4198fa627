/** Whose turn a model call is. A mistake here never falls back to somebody else's memory. */
import { InvalidArgumentError, type JsonObject } from '../index.js';
import { isJsonObject } from '../adapters/json.js';
import type { ModelCall, RecallMiddlewareOptions, TurnIdentity } from './options.js';
import { ownOptions, PROVIDER_KEY } from './prompt.js';

/**
 * The identity of a call: see `RecallMiddlewareOptions.resolve`.
 *
 * @throws InvalidArgumentError - the call names a resource, a thread or an author that is no text,
 *   or fields that are no JSON object.
 */
export async function identityOf(
  call: ModelCall,
  options: RecallMiddlewareOptions,
): Promise<TurnIdentity> {
  if (options.resolve !== undefined) {
    const { filter, ...identity } = await options.resolve(call);
    return { ...identity, filter: both(options.filter, filter) };
  }
  const named = ownOptions(call.providerOptions);
  const resourceId = textOf(named, 'resourceId');
  return {
    resourceId: resourceId ?? options.resourceId,
    // The thread of the options is not a thread of the resource that the call names.
    threadId: textOf(named, 'threadId') ?? (resourceId ? undefined : options.threadId),
    author: textOf(named, 'author') ?? (resourceId ? undefined : options.author),
    metadata: objectOf(named, 'metadata') ?? options.metadata,
    filter: both(options.filter, objectOf(named, 'filter')),
  };
}

function both(one: JsonObject | undefined, other: JsonObject | undefined): JsonObject | undefined {
  return one !== undefined && other !== undefined ? { $and: [one, other] } : (one ?? other);
}

function textOf(named: Readonly<Record<string, unknown>>, key: string): string | undefined {
  const value = named[key];
  if (value === undefined || (typeof value === 'string' && value !== '')) return value;
  const field = `providerOptions.${PROVIDER_KEY}.${key}`;
  throw InvalidArgumentError.of(field, 'must be a text that is not empty');
}

function objectOf(named: Readonly<Record<string, unknown>>, key: string): JsonObject | undefined {
  const value = named[key];
  if (value === undefined || isJsonObject(value)) return value;
  throw InvalidArgumentError.of(`providerOptions.${PROVIDER_KEY}.${key}`, 'must be a JSON object');
}
