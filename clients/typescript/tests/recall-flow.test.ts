/** Answers of one stream, handed out one after the other. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { test } from 'node:test';
import { create } from '@bufbuild/protobuf';
import type { RecallDuplex } from '../src/flow.js';
import { RecallFlow } from '../src/flow.js';
import { DeadlineExceededError } from '../src/index.js';
import type { RecallRequest } from '../src/v1/index.js';
import { RecallRequestSchema, RecallResponseSchema } from '../src/v1/index.js';

/** A stream that answers when it is told to. */
class Duplex extends EventEmitter {
  readonly ids: string[] = [];

  write({ requestId }: RecallRequest): void {
    this.ids.push(requestId);
  }

  answerAll(): void {
    for (const requestId of this.ids.splice(0)) {
      this.emit(
        'data',
        create(RecallResponseSchema, { requestId, contextText: `to ${requestId}` }),
      );
    }
  }
}

function flowOver(duplex: Duplex): RecallFlow {
  return new RecallFlow(() => duplex as unknown as RecallDuplex, 'unix:/none', Infinity);
}

test('an answer that arrives in a burst is its own request’s, and in time', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const duplex = new Duplex();
  const flow = flowOver(duplex);
  const asked = [0, 1, 2].map(async () => {
    return (await flow.recall(create(RecallRequestSchema), { timeoutMs: 50 })).contextText;
  });
  duplex.answerAll();
  // The last two are here, and not handed out yet.
  t.mock.timers.tick(50);
  assert.deepEqual(await Promise.all(asked), ['to 0', 'to 1', 'to 2']);
});

test('an answer that has not arrived in time is too late', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const duplex = new Duplex();
  const asked = flowOver(duplex).recall(create(RecallRequestSchema), { timeoutMs: 50 });
  t.mock.timers.tick(50);
  duplex.answerAll();
  await assert.rejects(asked, DeadlineExceededError);
});
