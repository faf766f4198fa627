/** Work that arrives in bursts, spread over the event loop. */

/**
 * Takes one step in each turn of the event loop. A burst of answers, each with what its caller does
 * next, would else hold up all others of the process: timers, other connections.
 */
export class OneATurn {
  readonly #later: (() => void)[] = [];
  #isTaken = false;

  /** Takes a step at once where it is the first of this turn, else after those that wait. */
  take(step: () => void): void {
    if (this.#isTaken) {
      this.#later.push(step);
      return;
    }
    this.#isTaken = true;
    setImmediate(this.#next);
    step();
  }

  readonly #next = (): void => {
    const step = this.#later.shift();
    if (step === undefined) {
      this.#isTaken = false;
      return;
    }
    setImmediate(this.#next);
    step();
  };
}
