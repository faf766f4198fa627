/** Errors of the vector store as Mastra has them: an id, a category, and the cause. */
import { ErrorCategory, ErrorDomain, MastraError } from '@mastra/core/error';

import { SemanticRecallError } from '../errors.js';

/** What was being done, as the ids of errors name it. */
export type VectorOperation =
  | 'CREATE_INDEX'
  | 'LIST_INDEXES'
  | 'DESCRIBE_INDEX'
  | 'DELETE_INDEX'
  | 'UPSERT'
  | 'QUERY'
  | 'UPDATE_VECTOR'
  | 'DELETE_VECTOR'
  | 'DELETE_VECTORS';

/** What the caller can mend, by the code of the sidecar's error. */
const MISTAKES: ReadonlySet<string> = new Set([
  'INVALID_ARGUMENT',
  'NOT_FOUND',
  'FAILED_PRECONDITION',
  'UNAUTHENTICATED',
]);

/**
 * A failed call as a MastraError; `cause` is the client's own error. Its id ends in INVALID_ARGS
 * where an argument is at fault, else in FAILED; `details.reason` is the sidecar's reason.
 */
export function vectorError(
  operation: VectorOperation,
  indexName: string | undefined,
  error: unknown,
): MastraError {
  if (error instanceof MastraError) return error;
  const known = error instanceof SemanticRecallError ? error : undefined;
  const status = known?.code === 'INVALID_ARGUMENT' ? 'INVALID_ARGS' : 'FAILED';
  const id = `MASTRA_VECTOR_SEMANTICRECALL_${operation}_${status}` as const;
  return new MastraError(
    {
      id,
      domain: ErrorDomain.MASTRA_VECTOR,
      category:
        known !== undefined && MISTAKES.has(known.code)
          ? ErrorCategory.USER
          : ErrorCategory.THIRD_PARTY,
      details: {
        ...(indexName === undefined ? {} : { indexName }),
        ...(known === undefined ? {} : { reason: known.reason, retryable: known.retryable }),
      },
    },
    error,
  );
}
