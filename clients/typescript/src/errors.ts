/**
 * The error table: what a call can throw, and the one place where it is made.
 *
 * The transport's own errors never leave this package. Every error tells what is wrong and how to
 * mend it (`message`), a stable `reason`, whether the same request can succeed later (`retryable`),
 * and when (`retryAfterMs`). None holds text of a message, a query or a token.
 */
import type { ErrorDetail } from './v1/index.js';

/** Names of the status codes, as gRPC has them. */
export type StatusCode =
  | 'CANCELLED'
  | 'UNKNOWN'
  | 'INVALID_ARGUMENT'
  | 'DEADLINE_EXCEEDED'
  | 'NOT_FOUND'
  | 'ALREADY_EXISTS'
  | 'PERMISSION_DENIED'
  | 'RESOURCE_EXHAUSTED'
  | 'FAILED_PRECONDITION'
  | 'ABORTED'
  | 'OUT_OF_RANGE'
  | 'UNIMPLEMENTED'
  | 'INTERNAL'
  | 'UNAVAILABLE'
  | 'DATA_LOSS'
  | 'UNAUTHENTICATED';

/** One field at fault. */
export interface FieldViolation {
  /** Its path, e.g. `messages[2].text`. */
  readonly field: string;
  /** What is wrong with its value, and what is allowed. */
  readonly description: string;
}

/** What an error carries beside its message. All are optional. */
export interface ErrorFields {
  /** Stable word in UPPER_SNAKE_CASE. Default: the code. */
  reason?: string;
  /** The fields at fault. */
  fieldViolations?: readonly FieldViolation[];
  /** Whether the same request can succeed later. Default false. */
  retryable?: boolean;
  /** How long to wait before that, in milliseconds. Default 0: no advice. */
  retryAfterMs?: number;
  /** What led to it. */
  cause?: unknown;
}

/** Base of all errors of this package. */
export class SemanticRecallError extends Error {
  /** Name of the gRPC status code. */
  readonly code: StatusCode;
  /** Stable word in UPPER_SNAKE_CASE, e.g. "FIELD_INVALID", "QUEUE_FULL", "UNREACHABLE". */
  readonly reason: string;
  /** The fields at fault; of an {@link InvalidArgumentError} only. */
  readonly fieldViolations: readonly FieldViolation[];
  /** Whether the same request can succeed later. */
  readonly retryable: boolean;
  /** How long to wait before that, in milliseconds; 0 is no advice. */
  readonly retryAfterMs: number;

  constructor(code: StatusCode, message: string, fields: ErrorFields = {}) {
    super(message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.name = new.target.name;
    this.code = code;
    this.reason = fields.reason ?? code;
    this.fieldViolations = fields.fieldViolations ?? [];
    this.retryable = fields.retryable ?? false;
    this.retryAfterMs = fields.retryAfterMs ?? 0;
  }
}

/** An argument breaks its documented limit. `fieldViolations` names every one at fault. */
export class InvalidArgumentError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('INVALID_ARGUMENT', message, { reason: 'FIELD_INVALID', ...fields });
  }

  /** One field at fault. */
  static of(field: string, description: string): InvalidArgumentError {
    const fieldViolations = [{ field, description }];
    return new InvalidArgumentError(`${field}: ${description}`, { fieldViolations });
  }
}

/** Something is not there for this resource; what is another's looks the same. */
export class NotFoundError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('NOT_FOUND', message, fields);
  }
}

/** An id is taken at the place it would move to. */
export class AlreadyExistsError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('ALREADY_EXISTS', message, fields);
  }
}

/**
 * The store or the model is not in the state the call needs: a vector of another model, a read
 * token of another store, a restore into a store that holds messages ("STORE_NOT_EMPTY").
 */
export class FailedPreconditionError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('FAILED_PRECONDITION', message, fields);
  }
}

/** Stored data is damaged beyond mending, a snapshot say. Nothing of it was taken. */
export class DataLossError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('DATA_LOSS', message, fields);
  }
}

/** The server wants a token and got none, or a wrong one. */
export class UnauthenticatedError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('UNAUTHENTICATED', message, fields);
  }
}

/** The token is known but may not do this. */
export class PermissionDeniedError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('PERMISSION_DENIED', message, fields);
  }
}

/** This server does not have that part of the contract. */
export class UnimplementedError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('UNIMPLEMENTED', message, fields);
  }
}

/** A queue, a limit or the disk is full; nothing was done. `retryAfterMs` says when to return. */
export class ResourceExhaustedError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('RESOURCE_EXHAUSTED', message, fields);
  }
}

/** The call's timeout passed before the answer was there. */
export class DeadlineExceededError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('DEADLINE_EXCEEDED', message, fields);
  }
}

/**
 * The call was cancelled by closing the client, or by the server. `reason` is "CLIENT_CLOSED" where
 * the client was closed. A call whose own `signal` aborts rejects with `signal.reason` instead.
 */
export class CancelledError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('CANCELLED', message, fields);
  }
}

/**
 * The sidecar cannot be reached, is starting or is draining. `reason` is "UNREACHABLE" where nothing
 * answered at the address, and "NO_CONNECTION" where something listens there, but no connection came
 * about (TLS on one side only, say).
 */
export class UnavailableError extends SemanticRecallError {
  constructor(message: string, fields: ErrorFields = {}) {
    super('UNAVAILABLE', message, fields);
  }
}

/** The server failed in a way it did not foresee. */
export class InternalError extends SemanticRecallError {
  /** What to look for in the server's log; "" if it sent none. */
  readonly errorId: string;

  constructor(message: string, fields: ErrorFields = {}, code: StatusCode = 'INTERNAL') {
    super(code, message, fields);
    this.errorId = ERROR_ID.exec(message)?.[1] ?? '';
  }
}

// "internal error; its id in the server's log is 0123456789abcdef"
const ERROR_ID = /\bid\b[^.]*\b([0-9a-f]{16})\b/;

/** Names by number. */
const CODES: Readonly<Record<number, StatusCode>> = {
  1: 'CANCELLED',
  2: 'UNKNOWN',
  3: 'INVALID_ARGUMENT',
  4: 'DEADLINE_EXCEEDED',
  5: 'NOT_FOUND',
  6: 'ALREADY_EXISTS',
  7: 'PERMISSION_DENIED',
  8: 'RESOURCE_EXHAUSTED',
  9: 'FAILED_PRECONDITION',
  10: 'ABORTED',
  11: 'OUT_OF_RANGE',
  12: 'UNIMPLEMENTED',
  13: 'INTERNAL',
  14: 'UNAVAILABLE',
  15: 'DATA_LOSS',
  16: 'UNAUTHENTICATED',
};

type Made = new (message: string, fields?: ErrorFields) => SemanticRecallError;

const CLASSES: Readonly<Partial<Record<StatusCode, Made>>> = {
  CANCELLED: CancelledError,
  INVALID_ARGUMENT: InvalidArgumentError,
  DEADLINE_EXCEEDED: DeadlineExceededError,
  NOT_FOUND: NotFoundError,
  ALREADY_EXISTS: AlreadyExistsError,
  PERMISSION_DENIED: PermissionDeniedError,
  RESOURCE_EXHAUSTED: ResourceExhaustedError,
  FAILED_PRECONDITION: FailedPreconditionError,
  UNIMPLEMENTED: UnimplementedError,
  UNAVAILABLE: UnavailableError,
  DATA_LOSS: DataLossError,
  UNAUTHENTICATED: UnauthenticatedError,
};

/** The error of a status code, by number. */
export function errorOfCode(
  code: number,
  message: string,
  fields: ErrorFields = {},
): SemanticRecallError {
  const name = CODES[code] ?? 'UNKNOWN';
  const Class = CLASSES[name];
  return Class === undefined
    ? new InternalError(message, fields, name)
    : new Class(message, fields);
}

/** The error that an ErrorDetail stands for. */
export function errorOfDetail(detail: ErrorDetail): SemanticRecallError {
  const message =
    CODES[detail.code] === 'UNAUTHENTICATED'
      ? `${detail.message} (option \`token\`, or SEMANTICRECALL_TOKEN)`
      : detail.message;
  return errorOfCode(detail.code, message, {
    ...(detail.reason === '' ? {} : { reason: detail.reason }),
    fieldViolations: detail.fieldViolations.map(({ field, description }) => ({
      field,
      description,
    })),
    retryable: detail.retryable,
    retryAfterMs: Number(detail.retryAfterMs),
  });
}

/** What a caller who fails open goes on after; anything else is a mistake to be mended. */
export function isOutage(error: unknown): error is SemanticRecallError {
  if (error instanceof DataLossError) return true;
  return (
    (error instanceof UnavailableError ||
      error instanceof DeadlineExceededError ||
      error instanceof ResourceExhaustedError) &&
    error.retryable
  );
}

/** What a client throws when nothing answers at its address. */
export function unreachable(address: string): UnavailableError {
  return new UnavailableError(
    `no sidecar answers at ${address}; start one with \`semanticrecall serve\`, ` +
      'or name another address (SEMANTICRECALL_ADDRESS)',
    { reason: 'UNREACHABLE', retryable: true },
  );
}

/** What a client throws when something listens at its address, but is not to be talked to. */
export function noConnection(address: string): UnavailableError {
  return new UnavailableError(
    `something listens at ${address}, but no connection came about: if the sidecar uses TLS, ` +
      'pass tls: { caFile } with the authority of its certificate, and where it wants one of its ' +
      'clients { certFile, keyFile }; if not, pass no tls; or is it another program?',
    { reason: 'NO_CONNECTION', retryable: true },
  );
}

/** What a call throws whose timeout has passed. */
export function tooLate(address: string): DeadlineExceededError {
  return new DeadlineExceededError(
    `no answer from ${address} within the timeout; give the call more time`,
    { retryable: true },
  );
}

/** What a client throws when it is called after `close`. */
export function clientClosed(): CancelledError {
  return new CancelledError('this client is closed; make a new one', { reason: 'CLIENT_CLOSED' });
}
