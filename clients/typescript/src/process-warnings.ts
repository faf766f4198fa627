/** Where warnings go that nobody gave a logger for: where Node writes its own. */
import type { Logger } from './values.js';

/** Each text is written once, with the error that it was first said for. */
export class ProcessWarnings implements Logger {
  readonly #said = new Set<string>();

  warn(message: string, fields?: object): void {
    if (this.#said.has(message)) return;
    this.#said.add(message);
    const type = 'SemanticRecallWarning';
    const detail: unknown = fields !== undefined && 'error' in fields ? fields.error : undefined;
    process.emitWarning(message, typeof detail === 'string' ? { type, detail } : { type });
  }
}
