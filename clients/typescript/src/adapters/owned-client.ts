/** Adapters take a client, or an address: then they make a client, and close what they made. */
import { InvalidArgumentError, RecallClient } from '../index.js';
import type { TlsOptions } from '../index.js';
import { CONNECT_TIMEOUT_MS } from './limits.js';

/** Which connection an adapter uses. */
interface Connection<C> {
  /** The client to use. It stays yours: close it yourself. */
  client?: C | undefined;
  /** Without a client: where the sidecar is. Default: as `RecallClient`. */
  address?: string | undefined;
  /** Without a client. Default: as `RecallClient`. */
  token?: string | undefined;
  /** Without a client. Default: as `RecallClient`. */
  tls?: TlsOptions | boolean | undefined;
}

/** The client that an adapter uses, and what ends it. */
interface OwnedClient<C> {
  /** The given client, or a new one. */
  readonly client: C | RecallClient;
  /** Closes the new one; does nothing to a given one. */
  readonly close: () => Promise<void>;
}

/**
 * The given client, or a new one that throws on an outage, so that the adapter hears of it.
 *
 * @throws InvalidArgumentError - both are given, or the address makes no sense.
 */
export function ownedClient<C>({ client, address, token, tls }: Connection<C>): OwnedClient<C> {
  if (client !== undefined) {
    if (address === undefined) return { client, close: () => Promise.resolve() };
    throw InvalidArgumentError.of(
      'address',
      'it belongs to the client; give one of them, not both',
    );
  }
  const made = new RecallClient({
    address,
    token,
    tls,
    connectTimeoutMs: CONNECT_TIMEOUT_MS,
    // The adapter decides what a failure means, and tells it: once.
    failOpen: false,
    logger: { warn: () => undefined },
  });
  return { client: made, close: () => made.close() };
}
