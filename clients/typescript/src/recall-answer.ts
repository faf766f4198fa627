/**
 * The answer of a recall, from its bytes. An agent waits for it in every turn.
 *
 * Fields that nearly all answers have are spelled out here, which takes half of the time of
 * protobuf-es; everything else is left to that. Both give the same, as a test sees to. Fields go by
 * their numbers in recall.proto and types.proto.
 */
import type { DescMessage, MessageShape } from '@bufbuild/protobuf';
import { mergeFromBinary } from '@bufbuild/protobuf';
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { TimestampSchema } from '@bufbuild/protobuf/wkt';
import * as v1 from './v1/index.js';

const NO_BYTES = new Uint8Array(0);
/** Of the tag of a field that is read here; there are others that mean the same. */
const TAG_BYTES_MAX = 2;
const WIRE_TYPE_MAX: number = WireType.Bit32;
/** Names of the fields of `RecallTimings`, each at its number. */
const TIMINGS = [
  undefined,
  'totalUs',
  'queueUs',
  'embedUs',
  'searchUs',
  'fetchUs',
  'renderUs',
  'lexicalUs',
] as const;

/** What `fromBinary` makes of the bytes of an answer. */
export function decodeRecall(bytes: Uint8Array): v1.RecallResponse {
  const made: v1.RecallResponse = {
    $typeName: 'semanticrecall.v1.RecallResponse',
    requestId: '',
    messages: [],
    contextText: '',
    excluded: [],
  };
  const reader = new BinaryReader(bytes);
  while (reader.pos < reader.len) {
    const start = reader.pos;
    switch (fieldOf(reader)) {
      case 1:
        made.requestId = reader.string(true);
        break;
      case 2:
        made.messages.push(recalledMessage(reader));
        break;
      case 3:
        made.contextText = reader.string(true);
        break;
      case 4:
        made.info = recallInfo(reader, made.info);
        break;
      default:
        other(reader, start, v1.RecallResponseSchema, made);
    }
  }
  return made;
}

function recalledMessage(reader: BinaryReader): v1.RecalledMessage {
  const made: v1.RecalledMessage = {
    $typeName: 'semanticrecall.v1.RecalledMessage',
    hit: false,
    rank: 0,
    groupState: v1.GroupState.UNSPECIFIED,
    lexicalOnly: false,
    textCut: false,
  };
  const end = endOf(reader);
  while (reader.pos < end) {
    const start = reader.pos;
    switch (fieldOf(reader)) {
      case 1:
        made.message = message(reader, made.message);
        break;
      case 2:
        made.hit = reader.bool();
        break;
      case 3:
        made.score = reader.float();
        break;
      case 4:
        made.rank = reader.uint32();
        break;
      case 7:
        made.relevance = reader.float();
        break;
      default:
        other(reader, start, v1.RecalledMessageSchema, made);
    }
  }
  return made;
}

// What a message holds may come in parts: later ones are added to what is there.

function message(reader: BinaryReader, made = blankMessage()): v1.Message {
  const end = endOf(reader);
  while (reader.pos < end) {
    const start = reader.pos;
    switch (fieldOf(reader)) {
      case 1:
        made.id = reader.string(true);
        break;
      case 2:
        made.threadId = reader.string(true);
        break;
      case 3:
        made.resourceId = reader.string(true);
        break;
      case 4:
        made.role = enumOf(reader);
        break;
      case 6:
        made.text = reader.string(true);
        break;
      case 7:
        made.createTime = timestamp(reader, made.createTime);
        break;
      case 9:
        made.payload = reader.bytes();
        break;
      case 10:
        made.payloadType = reader.string(true);
        break;
      default:
        other(reader, start, v1.MessageSchema, made);
    }
  }
  return made;
}

function blankMessage(): v1.Message {
  return {
    $typeName: 'semanticrecall.v1.Message',
    id: '',
    threadId: '',
    resourceId: '',
    role: v1.Role.UNSPECIFIED,
    author: '',
    text: '',
    payload: NO_BYTES,
    payloadType: '',
    groupId: '',
  };
}

function timestamp(reader: BinaryReader, made = blankTime()): Timestamp {
  const end = endOf(reader);
  while (reader.pos < end) {
    const start = reader.pos;
    switch (fieldOf(reader)) {
      case 1:
        made.seconds = BigInt(reader.int64());
        break;
      case 2:
        made.nanos = reader.int32();
        break;
      default:
        other(reader, start, TimestampSchema, made);
    }
  }
  return made;
}

function blankTime(): Timestamp {
  return { $typeName: 'google.protobuf.Timestamp', seconds: 0n, nanos: 0 };
}

function recallInfo(reader: BinaryReader, made = blankInfo()): v1.RecallInfo {
  const end = endOf(reader);
  while (reader.pos < end) {
    const start = reader.pos;
    switch (fieldOf(reader)) {
      case 1:
        made.scopeUsed = enumOf(reader);
        break;
      case 2:
        made.modeUsed = enumOf(reader);
        break;
      case 3:
        made.bestScore = reader.float();
        break;
      case 6:
        made.queryTokens = reader.uint32();
        break;
      case 7:
        made.cacheHit = reader.bool();
        break;
      case 8:
        made.timings = recallTimings(reader, made.timings);
        break;
      case 9:
        made.candidates = BigInt(reader.uint64());
        break;
      case 10:
        made.searchable = BigInt(reader.uint64());
        break;
      case 12:
        made.exact = reader.bool();
        break;
      case 14:
        made.indexIdentity = reader.string(true);
        break;
      case 17:
        made.answerCacheHit = reader.bool();
        break;
      default:
        other(reader, start, v1.RecallInfoSchema, made);
    }
  }
  return made;
}

function blankInfo(): v1.RecallInfo {
  return {
    $typeName: 'semanticrecall.v1.RecallInfo',
    scopeUsed: v1.Scope.UNSPECIFIED,
    modeUsed: v1.Mode.UNSPECIFIED,
    whyEmpty: v1.WhyEmpty.UNSPECIFIED,
    queryTruncated: false,
    queryTokens: 0,
    cacheHit: false,
    candidates: 0n,
    searchable: 0n,
    pending: 0n,
    exact: false,
    unknownFilterKeys: [],
    indexIdentity: '',
    absentGroupIds: [],
    messagesDropped: 0,
    answerCacheHit: false,
    tokens: 0,
    contextTokens: 0,
    messagesDroppedForTokens: 0,
    contextDidNotFit: false,
  };
}

function recallTimings(reader: BinaryReader, made = blankTimings()): v1.RecallTimings {
  const end = endOf(reader);
  while (reader.pos < end) {
    const start = reader.pos;
    const name = TIMINGS[fieldOf(reader)];
    if (name === undefined) other(reader, start, v1.RecallTimingsSchema, made);
    else made[name] = reader.uint32();
  }
  return made;
}

function blankTimings(): v1.RecallTimings {
  return {
    $typeName: 'semanticrecall.v1.RecallTimings',
    totalUs: 0,
    queueUs: 0,
    embedUs: 0,
    searchUs: 0,
    fetchUs: 0,
    renderUs: 0,
    lexicalUs: 0,
  };
}

/** Where the message ends whose length comes next. */
function endOf(reader: BinaryReader): number {
  const length = reader.uint32();
  return reader.pos + length;
}

/** The number of the field that comes next; 0 where its tag is none of those read here. */
function fieldOf(reader: BinaryReader): number {
  const start = reader.pos;
  const tag = reader.uint32();
  return reader.pos - start > TAG_BYTES_MAX || (tag & 7) > WIRE_TYPE_MAX ? 0 : tag >>> 3;
}

/** Also numbers that this version has no name for. */
// eslint-disable-next-line @typescript-eslint/no-unnecessary-type-parameters -- as its field has it
function enumOf<E extends number>(reader: BinaryReader): E {
  return reader.int32() as E;
}

/** Leaves the field that began at `start` to protobuf-es. */
function other<D extends DescMessage>(
  reader: BinaryReader,
  start: number,
  schema: D,
  made: MessageShape<D>,
): void {
  reader.pos = start;
  const [field, wireType] = reader.tag();
  const { buffer, byteOffset, byteLength } = reader.skip(wireType, field);
  const size = reader.pos - start;
  mergeFromBinary(schema, made, new Uint8Array(buffer, byteOffset + byteLength - size, size));
}
