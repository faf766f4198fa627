/** Mastra's messages and ours, in both directions. No sidecar. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';

import type { MastraDBMessage } from '@mastra/core/agent/message-list';

import { cutToBytes } from '../src/adapters/text.js';
import type { Message } from '../src/index.js';
import { MASTRA_MESSAGE_TYPE, toIndexable, toMastra } from '../src/mastra/messages.js';
import { threadMetadata } from '../src/mastra/turn.js';
import { said } from './support/mastra.js';

/** The message as the sidecar gives it back. */
function recalled(message: MastraDBMessage, fields: Partial<Message> = {}): Message {
  const indexable = toIndexable(message);
  assert.ok(indexable !== undefined);
  const { input } = indexable;
  return {
    id: input.id,
    threadId: 'thread-1',
    resourceId: 'user-1',
    role: input.role,
    author: '',
    text: input.text ?? '',
    createTime: input.createTime ?? new Date(0),
    createTimeNs: 0n,
    metadata: {},
    payload: input.payload ?? new Uint8Array(),
    payloadType: input.payloadType ?? '',
    groupId: '',
    ...fields,
  };
}

function toolCall(toolName: string, state: 'partial-call' | 'call' | 'result') {
  return {
    type: 'tool-invocation' as const,
    toolInvocation: { state, toolCallId: `${toolName}-1`, toolName, args: { a: 1 }, result: 2 },
  } as MastraDBMessage['content']['parts'][number];
}

describe('what is indexed', () => {
  test('the text of all parts; tool calls are in the payload only', () => {
    const message = said('assistant', ['First.', 'Then.'], { id: 'm' });
    message.content.parts.splice(1, 0, toolCall('lookup', 'result'));
    const { input } = toIndexable(message) ?? {};
    assert.equal(input?.text, 'First.\nThen.');
    assert.equal(input.payloadType, MASTRA_MESSAGE_TYPE);
    assert.equal(Buffer.from(input.payload ?? []).toString(), JSON.stringify(message));
  });

  test('a message of tool calls alone has no text, and comes back whole', () => {
    const message = said('assistant', [], { id: 'm', threadId: 'thread-1', resourceId: 'user-1' });
    message.content.parts.push(toolCall('lookup', 'result'));
    const found = recalled(message);
    assert.equal(found.text, '');
    assert.deepEqual(toMastra(found), message);
  });

  test('half tool calls and working memory are left out of text and payload', () => {
    const open = 'Done. <working_memory>SSN 078-05-1120';
    const message = said('assistant', [open], { id: 'm' });
    message.content.parts.push(
      toolCall('updateWorkingMemory', 'result'),
      toolCall('lookup', 'partial-call'),
      toolCall('lookup', 'call'),
    );
    const { input } = toIndexable(message) ?? {};
    const payload: unknown = JSON.parse(Buffer.from(input?.payload ?? []).toString());
    assert.equal(input?.text, 'Done.');
    assert.deepEqual(payload, {
      ...message,
      createdAt: message.createdAt.toISOString(),
      content: {
        format: 2,
        parts: [{ type: 'text', text: 'Done.' }, toolCall('lookup', 'call')],
        content: 'Done.',
      },
    });
    assert.equal(message.content.content, open, 'the message itself is not touched');
  });

  test('system messages, foreign signals and what nothing is left of: never', () => {
    const transient = said('signal', 'typing');
    transient.content.metadata = { signal: { type: 'user', transient: true } };
    const reminder = said('signal', 'remember the style guide');
    reminder.content.metadata = { signal: { type: 'system-reminder' } };
    const nothing = said('assistant', []);
    nothing.content.parts.push(toolCall('updateWorkingMemory', 'result'));
    for (const message of [said('system', 'be brief'), transient, reminder, nothing]) {
      assert.equal(toIndexable(message), undefined);
    }
  });

  test('half a pair of surrogates does not keep a message out', () => {
    assert.equal(toIndexable(said('user', 'a\ud800b'))?.input.text, 'a\ufffdb');
  });

  test('what JSON cannot hold is told', () => {
    const message = said('assistant', 'Done.');
    message.content.metadata = { large: 1n };
    const indexable = toIndexable(message);
    assert.equal(indexable?.payloadLeftOut, true);
    assert.equal(indexable.input.text, 'Done.');
  });
});

describe('what comes back', () => {
  test('is where it is now, not where it was', () => {
    const message = said('user', 'one', { id: 'm', threadId: 'old', resourceId: 'old' });
    const found = toMastra(recalled(message));
    assert.deepEqual(found, { ...message, threadId: 'thread-1', resourceId: 'user-1' });
  });

  test('a payload that is not what its type says: the text', () => {
    const message = said('user', 'one', { id: 'm' });
    const wrong = ['{', '[]', '{}', JSON.stringify({ ...message, id: 'other' })];
    for (const payload of wrong) {
      const found = toMastra(recalled(message, { payload: Buffer.from(payload) }));
      assert.deepEqual(found?.content, {
        format: 2,
        parts: [{ type: 'text', text: 'one' }],
        content: 'one',
      });
    }
  });

  test("another client's tool text has no place in such a list", () => {
    const message = recalled(said('user', 'x'), { role: 'tool', payload: new Uint8Array() });
    assert.equal(toMastra(message), undefined);
  });
});

test('text is cut between characters, at most so many bytes', () => {
  assert.equal(cutToBytes('abc', 3), 'abc');
  assert.equal(cutToBytes('abcd', 3), 'abc');
  assert.equal(cutToBytes('aé', 2), 'a');
  assert.equal(cutToBytes('é€😀', 9), 'é€😀');
  assert.equal(cutToBytes('é€😀', 8), 'é€');
});

test("a thread's metadata: without what Mastra keeps there, within the limits", () => {
  assert.deepEqual(threadMetadata(undefined), {});
  const given = {
    projectId: 'A',
    at: new Date(0),
    none: undefined,
    mastra: {},
    workingMemory: 'x',
  };
  assert.deepEqual(threadMetadata(given), { projectId: 'A', at: '1970-01-01T00:00:00.000Z' });
  assert.equal(threadMetadata({ a: 'x'.repeat(65_536) }), undefined);
  const nested = (levels: number): unknown => (levels === 0 ? 1 : { a: nested(levels - 1) });
  assert.deepEqual(threadMetadata(nested(16)), nested(16));
  assert.equal(threadMetadata(nested(17)), undefined);
  assert.equal(threadMetadata({ a: 1n }), undefined);
});
