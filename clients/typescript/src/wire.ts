/** Enums, times and messages to the wire and back. */
import { create } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { TimestampSchema } from '@bufbuild/protobuf/wkt';
import * as check from './arguments.js';
import { InvalidArgumentError } from './errors.js';
import type { Message } from './results.js';
import * as v1 from './v1/index.js';
import type { EmbedRole, MessageInput, MessageVectors } from './values.js';
import type * as values from './values.js';

/** Roles by name. */
export const ROLES: Readonly<Record<values.Role, v1.Role>> = {
  user: v1.Role.USER,
  assistant: v1.Role.ASSISTANT,
  system: v1.Role.SYSTEM,
  tool: v1.Role.TOOL,
};
/** Scopes by name. */
export const SCOPES: Readonly<Record<values.Scope, v1.Scope>> = {
  resource: v1.Scope.RESOURCE,
  thread: v1.Scope.THREAD,
};
/** Modes by name. */
export const MODES: Readonly<Record<values.Mode, v1.Mode>> = {
  dense: v1.Mode.DENSE,
  lexical: v1.Mode.LEXICAL,
  hybrid: v1.Mode.HYBRID,
};
/** Formats of the context by name. */
export const CONTEXT_FORMATS: Readonly<Record<values.ContextFormat, v1.ContextFormat>> = {
  default: v1.ContextFormat.CONTEXT_DEFAULT,
  mastra: v1.ContextFormat.CONTEXT_MASTRA,
  none: v1.ContextFormat.CONTEXT_NONE,
};
/** What an index call waits for, by name. */
export const WAITS: Readonly<Record<values.Wait, v1.Wait>> = {
  searchable: v1.Wait.SEARCHABLE,
  durable: v1.Wait.DURABLE,
};
/** What a text is embedded as, by name. */
export const EMBED_ROLES: Readonly<Record<EmbedRole, v1.EmbedRole>> = {
  query: v1.EmbedRole.QUERY,
  passage: v1.EmbedRole.PASSAGE,
};

const ROLE_NAMES: Readonly<Record<number, values.Role>> = {
  [v1.Role.USER]: 'user',
  [v1.Role.ASSISTANT]: 'assistant',
  [v1.Role.SYSTEM]: 'system',
};

const NANOS_PER_SECOND = 1_000_000_000n;
const NANOS_PER_MILLISECOND = 1_000_000n;
/** What a Timestamp of protobuf may be: years 1 to 9999. */
const SECONDS_LEAST = -62_135_596_800n;
const SECONDS_MOST = 253_402_300_799n;

/** A moment on the wire, in nanoseconds since 1970. */
export function timestampOfNs(ns: bigint, field: string): Timestamp {
  let seconds = ns / NANOS_PER_SECOND;
  let nanos = ns % NANOS_PER_SECOND;
  if (nanos < 0n) {
    seconds -= 1n;
    nanos += NANOS_PER_SECOND;
  }
  if (seconds < SECONDS_LEAST || seconds > SECONDS_MOST) {
    throw InvalidArgumentError.of(field, 'must be within the years 1 to 9999');
  }
  return create(TimestampSchema, { seconds, nanos: Number(nanos) });
}

/** A moment on the wire. */
export function timestamp(value: unknown, field: string): Timestamp {
  const ms = check.moment(value, field).getTime();
  return timestampOfNs(BigInt(Math.trunc(ms)) * NANOS_PER_MILLISECOND, field);
}

/** Nanoseconds since 1970; 0 where there is no time. */
export function nsOf(stamp: Timestamp | undefined): bigint {
  return stamp === undefined ? 0n : stamp.seconds * NANOS_PER_SECOND + BigInt(stamp.nanos);
}

/** A moment, cut to the millisecond that it lies in. */
export function dateOf(stamp: Timestamp | undefined): Date {
  if (stamp === undefined) return new Date(0);
  return new Date(Number(stamp.seconds) * 1000 + Math.floor(stamp.nanos / 1_000_000));
}

const MESSAGE_FIELDS: Readonly<Record<keyof MessageInput, true>> = {
  id: true,
  threadId: true,
  resourceId: true,
  role: true,
  author: true,
  text: true,
  createTime: true,
  createTimeNs: true,
  metadata: true,
  payload: true,
  payloadType: true,
  groupId: true,
};

/** A message as it is sent. */
export function messageToWire(given: unknown, field: string): v1.Message {
  check.fields(given, field);
  const message = check.options<MessageInput>(given, MESSAGE_FIELDS, field);
  const role = check.member(ROLES, message['role'], `${field}.role`);
  const wire = create(v1.MessageSchema, { role });
  wire.id = optionalText(message, 'id', field) ?? crypto.randomUUID();
  wire.threadId = optionalText(message, 'threadId', field) ?? '';
  wire.resourceId = optionalText(message, 'resourceId', field) ?? '';
  wire.author = optionalText(message, 'author', field) ?? '';
  wire.text = optionalText(message, 'text', field) ?? '';
  wire.payloadType = optionalText(message, 'payloadType', field) ?? '';
  wire.groupId = optionalText(message, 'groupId', field) ?? '';
  if (message['createTimeNs'] !== undefined) {
    const path = `${field}.createTimeNs`;
    wire.createTime = timestampOfNs(check.nanoseconds(message['createTimeNs'], path), path);
  } else if (message['createTime'] !== undefined) {
    wire.createTime = timestamp(message['createTime'], `${field}.createTime`);
  }
  if (message['metadata'] !== undefined) {
    wire.metadata = check.json(message['metadata'], `${field}.metadata`);
  }
  if (message['payload'] !== undefined) {
    wire.payload = check.octets(message['payload'], `${field}.payload`);
  }
  return wire;
}

function optionalText(message: check.Fields, name: string, field: string): string | undefined {
  const value = message[name];
  return value === undefined ? undefined : check.text(value, `${field}.${name}`);
}

/** A message as it was received. */
export function messageOfWire(wire: v1.Message): Message {
  return {
    id: wire.id,
    threadId: wire.threadId,
    resourceId: wire.resourceId,
    role: ROLE_NAMES[wire.role] ?? 'tool',
    author: wire.author,
    text: wire.text,
    createTime: dateOf(wire.createTime),
    createTimeNs: nsOf(wire.createTime),
    metadata: wire.metadata ?? {},
    payload: wire.payload,
    payloadType: wire.payloadType,
    groupId: wire.groupId,
  };
}

const VECTORS_FIELDS: Readonly<Record<keyof MessageVectors, true>> = {
  messageId: true,
  indexIdentity: true,
  data: true,
};

/** A message's vectors as they are sent. */
export function vectorsToWire(given: unknown, field: string): v1.MessageVectors {
  check.fields(given, field);
  const vectors = check.options<MessageVectors>(given, VECTORS_FIELDS, field);
  return create(v1.MessageVectorsSchema, {
    messageId: check.text(vectors['messageId'], `${field}.messageId`),
    indexIdentity: check.text(vectors['indexIdentity'], `${field}.indexIdentity`),
    data: check.octets(vectors['data'], `${field}.data`),
  });
}

/** A message's vectors as they were received. */
export function vectorsOfWire(wire: v1.MessageVectors): MessageVectors {
  return { messageId: wire.messageId, indexIdentity: wire.indexIdentity, data: wire.data };
}
