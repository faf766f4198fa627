/** What processors of one process share for each sidecar: client, what waits, what is followed. */
import { RecallClient } from '../client.js';
import { StorageFollower } from './follower.js';
import type { ResolvedOptions, SemanticRecallOptions } from './options.js';
import { MemoryWriter, type SidecarCalls } from './writer.js';

/** One sidecar, as the processors of a process see it. */
export interface SidecarLink {
  readonly client: SidecarCalls;
  readonly writer: MemoryWriter;
  readonly follower: StorageFollower;
  /** Gives it up. The last of those who share a client of ours closes it. */
  release(): Promise<void>;
}

interface Shared {
  readonly client: RecallClient;
  users: number;
}

// A client that was given, or one of ours, has one writer: what waits is sent in order.
const writers = new WeakMap<SidecarCalls, { writer: MemoryWriter; follower: StorageFollower }>();
const shared = new Map<string, Shared>();

/** Milliseconds of a turn that may go by while nothing answers at the address. */
const CONNECT_TIMEOUT_MS = 1_000;

/**
 * The link that options ask for. Agents that make a processor for each request share a client, and
 * what waits for the sidecar.
 *
 * @throws InvalidArgumentError where the address, token or TLS makes no sense.
 */
export function linkOf(options: SemanticRecallOptions, resolved: ResolvedOptions): SidecarLink {
  if (options.client !== undefined) {
    return linkTo(options.client, resolved, () => Promise.resolve());
  }
  const key = JSON.stringify([
    options.address ?? process.env['SEMANTICRECALL_ADDRESS'],
    options.token ?? process.env['SEMANTICRECALL_TOKEN'],
    options.tls,
  ]);
  const known = shared.get(key) ?? { client: clientOf(options), users: 0 };
  known.users += 1;
  shared.set(key, known);
  let isReleased = false;
  return linkTo(known.client, resolved, async () => {
    if (isReleased) return;
    isReleased = true;
    known.users -= 1;
    if (known.users > 0) return;
    if (shared.get(key) === known) shared.delete(key);
    await known.client.close();
  });
}

function linkTo(
  client: SidecarCalls,
  resolved: ResolvedOptions,
  release: () => Promise<void>,
): SidecarLink {
  let parts = writers.get(client);
  if (parts === undefined) {
    const writer = new MemoryWriter(client, resolved.retryQueueMessagesMax);
    parts = { writer, follower: new StorageFollower(client, writer) };
    writers.set(client, parts);
  } else {
    parts.writer.allowPending(resolved.retryQueueMessagesMax);
  }
  return { client, ...parts, release };
}

function clientOf({ address, token, tls }: SemanticRecallOptions): RecallClient {
  return new RecallClient({
    address,
    token,
    tls,
    connectTimeoutMs: CONNECT_TIMEOUT_MS,
    // The processor decides what a failure means, and tells it: once.
    failOpen: false,
    logger: { warn: () => undefined },
  });
}
