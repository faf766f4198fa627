/** How long the event loop stood still: other callers of the same process waited so long. */

// Node.js has it from 22.19 on; the types in use are older.
declare global {
  // eslint-disable-next-line @typescript-eslint/no-namespace
  namespace NodeJS {
    interface Process {
      threadCpuUsage(): { user: number; system: number };
    }
  }
}

const TICK_MS = 1;
const MS_US = 1_000;

/** What was seen between `start` and `stop`, at the worst. */
export interface LoopTimes {
  /** How late a timer was, for whatever reason: on a busy machine also for want of a core. */
  lateMs: number;
  /** Of that, at most, what this thread has computed meanwhile. */
  heldMs: number;
}

/** A timer that looks how late it is. */
export class LoopWatch {
  readonly #timer: NodeJS.Timeout;
  #worst: LoopTimes = { lateMs: 0, heldMs: 0 };
  #wallMs: number;
  #cpuMs: number;

  private constructor() {
    this.#wallMs = performance.now();
    this.#cpuMs = threadMs();
    this.#timer = setInterval(() => {
      this.#look();
    }, TICK_MS);
  }

  static start(): LoopWatch {
    return new LoopWatch();
  }

  /** A loop that was held to the very end is late now. */
  stop(): LoopTimes {
    clearInterval(this.#timer);
    this.#look();
    return this.#worst;
  }

  #look(): void {
    const [wallMs, cpuMs] = [performance.now(), threadMs()];
    const lateMs = Math.max(0, wallMs - this.#wallMs - TICK_MS);
    const heldMs = Math.min(lateMs, cpuMs - this.#cpuMs);
    this.#worst = {
      lateMs: Math.max(this.#worst.lateMs, lateMs),
      heldMs: Math.max(this.#worst.heldMs, heldMs),
    };
    this.#wallMs = wallMs;
    this.#cpuMs = cpuMs;
  }
}

function threadMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / MS_US;
}
