/** Semantic recall over conversation history: the client of the SemanticRecall sidecar. */
export * from './admin.js';
export { RecallClient } from './client.js';
export { RecallSession } from './session.js';
export {
  AlreadyExistsError,
  CancelledError,
  DataLossError,
  DeadlineExceededError,
  FailedPreconditionError,
  InternalError,
  InvalidArgumentError,
  NotFoundError,
  PermissionDeniedError,
  ResourceExhaustedError,
  SemanticRecallError,
  UnauthenticatedError,
  UnavailableError,
  UnimplementedError,
} from './errors.js';
export type { ErrorFields, FieldViolation, StatusCode } from './errors.js';
export * from './results.js';
export * from './values.js';
export * from './vectors.js';
