/** Functions of callers, their loggers above all: none of them makes a call fail. */

/** Calls a caller's function. What it throws, or rejects with whatever its type says, ends here. */
export function attempt(callback: () => unknown): void {
  try {
    Promise.resolve(callback()).catch(() => undefined);
  } catch {
    // The call goes on, whatever becomes of this.
  }
}

/** Writes a line, where there is such a level. */
export function tell(logger: object, level: string, message: string, fields?: object): void {
  attempt(() => {
    const write: unknown = Reflect.get(logger, level);
    return typeof write === 'function'
      ? Reflect.apply(write, logger, [message, fields])
      : undefined;
  });
}
