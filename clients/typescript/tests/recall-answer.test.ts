/** An answer is read as protobuf-es reads it, whatever is in it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { DescField, DescMessage, MessageInitShape } from '@bufbuild/protobuf';
import { ScalarType, create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { BinaryWriter, WireType } from '@bufbuild/protobuf/wire';
import fc from 'fast-check';
import { decodeRecall } from '../src/recall-answer.js';
import { RecallResponseSchema, RecalledMessageSchema } from '../src/v1/index.js';

const RUNS = { numRuns: 300 };
const text = fc.oneof(fc.string({ unit: 'binary' }), fc.string({ minLength: 30, maxLength: 200 }));
const scalars: Partial<Record<ScalarType, fc.Arbitrary<unknown>>> = {
  [ScalarType.STRING]: text,
  [ScalarType.BOOL]: fc.boolean(),
  [ScalarType.INT32]: fc.integer(),
  [ScalarType.UINT32]: fc.nat({ max: 2 ** 32 - 1 }),
  [ScalarType.INT64]: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  [ScalarType.UINT64]: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  [ScalarType.FLOAT]: fc.float(),
  [ScalarType.BYTES]: fc.uint8Array({ maxLength: 40 }),
};

/** Messages of a schema in which any field may be there or not. */
function messages<D extends DescMessage>(schema: D): fc.Arbitrary<MessageInitShape<D>> {
  const { fields } = schema;
  const values = Object.fromEntries(fields.map((field) => [field.localName, valueOf(field)]));
  return fc.record(values, { requiredKeys: [] }) as fc.Arbitrary<MessageInitShape<D>>;
}

function valueOf(field: DescField): fc.Arbitrary<unknown> {
  const { fieldKind } = field;
  if (fieldKind === 'map') throw new Error(`${field.name}: no message of a recall has a map`);
  if (field.message !== undefined) {
    const isJson = field.message.typeName === 'google.protobuf.Struct';
    const one = isJson ? fc.dictionary(text, text, { maxKeys: 3 }) : messages(field.message);
    return fieldKind === 'list' ? fc.array(one, { maxLength: 3 }) : one;
  }
  // Also numbers of an enum that this version does not know.
  const one = field.enum === undefined ? scalars[field.scalar] : fc.nat({ max: 20 });
  assert.ok(one, `values of ${field.name} are made here`);
  return fieldKind === 'list' ? fc.array(one, { maxLength: 3 }) : one;
}

test('an answer is read as protobuf-es reads it', () => {
  fc.assert(
    fc.property(messages(RecallResponseSchema), (init) => {
      const bytes = toBinary(RecallResponseSchema, create(RecallResponseSchema, init));
      assert.deepEqual(decodeRecall(bytes), fromBinary(RecallResponseSchema, bytes));
    }),
    RUNS,
  );
});

test('fields that this version does not know are kept as protobuf-es keeps them', () => {
  const unknown = [{ no: 900, wireType: 0, data: Uint8Array.of(7) }];
  const answer = create(RecallResponseSchema, {
    messages: [{ message: { id: 'm1', createTime: { seconds: 5n } } }],
    info: { timings: { totalUs: 3 } },
  });
  const [found] = answer.messages;
  assert.ok(found?.message?.createTime && answer.info?.timings);
  const parts = [answer, found, found.message, found.message.createTime, answer.info];
  for (const part of [...parts, answer.info.timings]) part.$unknown = unknown;
  const bytes = toBinary(RecallResponseSchema, answer);
  const read = decodeRecall(bytes);
  assert.deepEqual(read.messages[0]?.message?.$unknown, unknown);
  assert.deepEqual(read, fromBinary(RecallResponseSchema, bytes));
});

test('a part of an answer that comes twice is put together', () => {
  const twice = fc.tuple(messages(RecallResponseSchema), messages(RecalledMessageSchema));
  fc.assert(
    fc.property(twice, twice, ([answer, found], [laterAnswer, laterFound]) => {
      const bytes = Buffer.concat([
        toBinary(RecallResponseSchema, create(RecallResponseSchema, answer)),
        toBinary(RecallResponseSchema, create(RecallResponseSchema, laterAnswer)),
        asField(
          RecallResponseSchema.field.messages.number,
          toBinary(RecalledMessageSchema, create(RecalledMessageSchema, found)),
          toBinary(RecalledMessageSchema, create(RecalledMessageSchema, laterFound)),
        ),
      ]);
      assert.deepEqual(decodeRecall(bytes), fromBinary(RecallResponseSchema, bytes));
    }),
    RUNS,
  );
});

test('a tag that is none is refused', () => {
  for (const bytes of [
    // No wire type 6.
    [0x0e, 0],
    [0x12, 4, 0x0a, 2, 0x0e, 0],
    // Field 1, with a bit more than tags have.
    [0x8a, 0x80, 0x80, 0x80, 0x10, 0],
    [0x02, 0],
  ]) {
    const answer = Uint8Array.from(bytes);
    assert.throws(() => fromLibrary(answer), /illegal tag/, `${String(bytes)}: by protobuf-es`);
    assert.throws(() => decodeRecall(answer), /illegal tag/, String(bytes));
  }
});

test('a tag that is longer than it need be is read', () => {
  const bytes = Uint8Array.of(0x8a, 0x80, 0x00, 1, 0x61);
  assert.equal(decodeRecall(bytes).requestId, 'a');
  assert.deepEqual(decodeRecall(bytes), fromLibrary(bytes));
});

test('what is cut off is refused where protobuf-es refuses it', () => {
  const cut = messages(RecallResponseSchema).chain((init) => {
    const bytes = toBinary(RecallResponseSchema, create(RecallResponseSchema, init));
    return fc.nat({ max: bytes.length }).map((length) => bytes.subarray(0, length));
  });
  fc.assert(
    fc.property(cut, (bytes) => {
      assert.deepEqual(outcomeOf(decodeRecall, bytes), outcomeOf(fromLibrary, bytes));
    }),
    RUNS,
  );
});

test('a text that is no UTF-8 is refused', () => {
  const bytes = Uint8Array.of(0x1a, 2, 0xc3, 0x28);
  assert.throws(() => fromLibrary(bytes), TypeError);
  assert.throws(() => decodeRecall(bytes), TypeError);
});

/** A message of these parts, as the field of another. */
function asField(number: number, ...parts: readonly Uint8Array[]): Uint8Array {
  const writer = new BinaryWriter().tag(number, WireType.LengthDelimited);
  return writer.bytes(Buffer.concat(parts)).finish();
}

function fromLibrary(bytes: Uint8Array): unknown {
  return fromBinary(RecallResponseSchema, bytes);
}

function outcomeOf(read: (bytes: Uint8Array) => unknown, bytes: Uint8Array): unknown {
  try {
    return read(bytes);
  } catch (error) {
    return (error as Error).name;
  }
}
