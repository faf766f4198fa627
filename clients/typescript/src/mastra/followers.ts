/** Who follows an object of Mastra: each sidecar once, and where its counts go. */
import type { StorageFollower } from './follower.js';
import type { Reporter } from './reporter.js';

/** Processors that are remembered for one sidecar and one object; the newest stay. */
const REPORTERS_MAX = 100;

/** A sidecar that follows, and whom to tell about it. */
export interface FollowedBy {
  readonly follower: StorageFollower;
  readonly reporter: Reporter;
}

/** The sidecars that follow one store or memory. */
export class Followers {
  readonly #reporters = new Map<StorageFollower, Reporter[]>();

  /** Once more changes nothing. */
  add(follower: StorageFollower, reporter: Reporter): void {
    const open = this.#openReporters(follower);
    if (!open.includes(reporter)) open.push(reporter);
    this.#reporters.set(follower, open.slice(-REPORTERS_MAX));
  }

  /**
   * Those that follow now. One whose client somebody has closed follows no more, once all of its
   * processors are closed or another sidecar follows: nothing can reach it. Until then a deletion
   * is rejected.
   */
  present(): FollowedBy[] {
    const followers = [...this.#reporters.keys()];
    const isAnyAlive = followers.some((follower) => !follower.isOver);
    const present: FollowedBy[] = [];
    for (const follower of followers) {
      const open = this.#openReporters(follower);
      if (follower.isOver && (isAnyAlive || open.length === 0)) {
        this.#reporters.delete(follower);
        continue;
      }
      this.#reporters.set(follower, open);
      present.push({ follower, reporter: open.at(-1) ?? follower.reporter });
    }
    return present;
  }

  /** Does something for each, also when it fails for one; then rejects with the first failure. */
  async each(work: (by: FollowedBy) => Promise<void>): Promise<void> {
    const failures: unknown[] = [];
    for (const by of this.present()) {
      try {
        await work(by);
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  #openReporters(follower: StorageFollower): Reporter[] {
    return (this.#reporters.get(follower) ?? []).filter((reporter) => !reporter.isClosed);
  }
}
