/** What processors of one process share for each sidecar: client, what waits, what is followed. */
import { ownedClient } from '../adapters/owned-client.js';
import { type MemoryWriter, writerOf } from '../adapters/writer.js';
import type { RecallClient } from '../client.js';
import { clientClosed } from '../errors.js';
import { type SidecarCalls, StorageFollower } from './follower.js';
import type { ResolvedOptions, SemanticRecallOptions } from './options.js';

/** One sidecar, as the processors of a process see it. */
export interface SidecarLink {
  /** Recalls; not any more once it was given up. */
  readonly client: Pick<SidecarCalls, 'recall'>;
  readonly writer: MemoryWriter;
  readonly follower: StorageFollower;
  /** Gives it up. The last of those who share a client of ours closes it. */
  release(): Promise<void>;
}

/**
 * A client that can be closed and is made anew by the next call: what waits outlives the processor
 * that is closed after each request, and so do deletions of the stores that it has followed.
 */
class ReopenedClient implements SidecarCalls {
  readonly isClosed = false;
  readonly #make: () => RecallClient;
  #client: RecallClient | undefined;
  users = 0;

  constructor(make: () => RecallClient) {
    this.#make = make;
    this.#client = make();
  }

  recall: SidecarCalls['recall'] = async (...args) => await this.#open().recall(...args);
  index: SidecarCalls['index'] = async (...args) => this.#open().index(...args);
  forgetMessages: SidecarCalls['forgetMessages'] = async (...args) =>
    this.#open().forgetMessages(...args);
  forgetThread: SidecarCalls['forgetThread'] = async (...args) =>
    this.#open().forgetThread(...args);
  transferThread: SidecarCalls['transferThread'] = async (...args) =>
    this.#open().transferThread(...args);
  listMessages: SidecarCalls['listMessages'] = (...args) => this.#open().listMessages(...args);

  async close(): Promise<void> {
    const client = this.#client;
    this.#client = undefined;
    await client?.close();
  }

  #open(): RecallClient {
    this.#client ??= this.#make();
    return this.#client;
  }
}

// A client that was given, or one of ours, has one follower.
const followers = new WeakMap<SidecarCalls, StorageFollower>();
const shared = new Map<string, ReopenedClient>();

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
  const known = shared.get(key) ?? new ReopenedClient(() => clientOf(options));
  known.users += 1;
  shared.set(key, known);
  let isReleased = false;
  const release = async (): Promise<void> => {
    if (isReleased) return;
    isReleased = true;
    known.users -= 1;
    if (known.users === 0) await known.close();
  };
  const recall: SidecarCalls['recall'] = async (...args) => {
    if (isReleased) throw clientClosed();
    return await known.recall(...args);
  };
  return { ...linkTo(known, resolved, release), client: { recall } };
}

function linkTo(
  client: SidecarCalls,
  resolved: ResolvedOptions,
  release: () => Promise<void>,
): SidecarLink {
  const writer = writerOf(client, resolved.retryQueueMessagesMax);
  const follower = followers.get(client) ?? new StorageFollower(client, writer);
  followers.set(client, follower);
  return { client, writer, follower, release };
}

function clientOf({ address, token, tls }: SemanticRecallOptions): RecallClient {
  return ownedClient<RecallClient>({ address, token, tls }).client;
}
