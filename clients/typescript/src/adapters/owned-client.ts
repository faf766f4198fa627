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
  /** Without a client: sent with every call, where the sidecar wants it. Default: as there. */
  token?: string | undefined;
  /** Without a client: how the connection is encrypted. Default: as there, no TLS. */
  tls?: TlsOptions | boolean | undefined;
}

/** What describes a client of our own, and so does not go together with one that is given. */
const OF_OWN_CLIENT = ['address', 'token', 'tls'] as const;

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
 * @throws InvalidArgumentError - a client is given and what describes another, or that makes no
 *   sense.
 */
export function ownedClient<C>(connection: Connection<C>): OwnedClient<C> {
  const { client, address, token, tls } = connection;
  if (client !== undefined) {
    for (const name of OF_OWN_CLIENT) {
      if (connection[name] === undefined) continue;
      throw InvalidArgumentError.of(name, 'belongs to the client: give one of them, not both');
    }
    return { client, close: () => Promise.resolve() };
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
