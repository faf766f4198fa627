/** What goes over the wire comes back as it went: JSON, times, messages. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fromBinary, toBinary } from '@bufbuild/protobuf';
import fc from 'fast-check';
import type { JsonObject, JsonValue } from '../src/index.js';
import { MessageSchema } from '../src/v1/index.js';
import { dateOf, messageOfWire, messageToWire, timestampOfNs } from '../src/wire.js';

const text = fc.string({ unit: 'binary' });
const number = fc.double({ noNaN: true, noDefaultInfinity: true });
const { json } = fc.letrec<{ json: JsonValue }>((tie) => ({
  json: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.constant(null),
    fc.boolean(),
    number,
    text,
    fc.array(tie('json'), { maxLength: 4 }),
    fc.dictionary(text, tie('json'), { maxKeys: 4, noNullPrototype: true }),
  ),
}));
const jsonObject: fc.Arbitrary<JsonObject> = fc.dictionary(text, json, {
  maxKeys: 4,
  noNullPrototype: true,
});

const overTheWire = (message: object) =>
  messageOfWire(
    fromBinary(MessageSchema, toBinary(MessageSchema, messageToWire(message, 'message'))),
  );

test('every message comes back as it was sent', () => {
  const message = fc.record(
    {
      id: text.filter((id) => id !== ''),
      threadId: text,
      resourceId: text,
      role: fc.constantFrom('user', 'assistant', 'system', 'tool'),
      author: text,
      text,
      createTimeNs: fc.bigInt(-62_135_596_800n * 10n ** 9n, 253_402_300_799n * 10n ** 9n),
      metadata: jsonObject,
      payload: fc.uint8Array(),
      payloadType: text,
      groupId: text,
    },
    { noNullPrototype: true },
  );
  fc.assert(
    fc.property(message, (sent) => {
      const { createTime, ...received } = overTheWire(sent);
      assert.deepStrictEqual(received, sent);
      // The millisecond that the moment lies in, also before 1970.
      const ms = sent.createTimeNs - (((sent.createTimeNs % 1_000_000n) + 1_000_000n) % 1_000_000n);
      assert.equal(BigInt(createTime.getTime()) * 1_000_000n, ms);
    }),
    { numRuns: 300 },
  );
});

test('a Date comes back as it was sent', () => {
  fc.assert(
    fc.property(
      fc.date({ min: new Date(-62e12), max: new Date(253e12), noInvalidDate: true }),
      (date) => {
        const { createTime, createTimeNs } = overTheWire({ role: 'user', createTime: date });
        assert.deepEqual(createTime, date);
        assert.equal(createTimeNs, BigInt(date.getTime()) * 1_000_000n);
      },
    ),
  );
});

test('a moment before 1970 is in seconds below and nanoseconds above zero', () => {
  const stamp = timestampOfNs(-1n, 'time');
  assert.deepEqual([stamp.seconds, stamp.nanos], [-1n, 999_999_999]);
  assert.equal(dateOf(stamp).getTime(), -1);
});

test('keys of an object that mean something to JavaScript are only keys', () => {
  const metadata = JSON.parse('{"__proto__": {"polluted": true}, "constructor": 1}') as JsonObject;
  const received = overTheWire({ role: 'user', metadata });
  assert.deepEqual(Object.keys(received.metadata).sort(), ['__proto__', 'constructor']);
  assert.equal(Object.hasOwn(Object.prototype, 'polluted'), false);
  assert.equal(({} as Record<string, unknown>)['polluted'], undefined);
});

test('a message without an id gets one of its own', () => {
  const ids = Array.from({ length: 100 }, () => overTheWire({ role: 'user' }).id);
  assert.equal(new Set(ids).size, 100);
  assert.match(ids[0] ?? '', /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-/);
});
