/** What of an error may stand in a log: never text of a message. */
import { SemanticRecallError } from '../errors.js';

/** What a line of log carries beside its sentence: ids, counts, codes. */
export type ReportFields = Readonly<Record<string, string | number | boolean | undefined>>;

/** What of an error may stand in a log. */
export function errorFields(error: unknown): ReportFields {
  if (error instanceof SemanticRecallError) {
    const { code, reason, retryable } = error;
    return { code, reason, retryable, error: error.message };
  }
  // A foreign error's message may hold anything: its name says enough.
  return { error: error instanceof Error ? error.name : typeof error };
}
