/** Loggers of callers: none of them makes a call fail. */

/** Writes a line, where there is such a level. What the logger throws or rejects with ends here. */
export function tell(logger: object, level: string, message: string, fields?: object): void {
  try {
    const write: unknown = Reflect.get(logger, level);
    if (typeof write !== 'function') return;
    // Some write asynchronously, whatever their types say.
    const told: unknown = Reflect.apply(write, logger, [message, fields]);
    Promise.resolve(told).catch(() => undefined);
  } catch {
    // The call goes on, whatever becomes of the log.
  }
}
