/** Prompts, answers and streams as the AI SDK gives them to a middleware. */
import type { StreamPart } from '../../src/ai/answer.js';
import type { MemoryFailure } from '../../src/ai/failures.js';
import { recallMiddleware } from '../../src/ai/middleware.js';
import type { ModelCall } from '../../src/ai/options.js';
import type { PromptMessage } from '../../src/ai/prompt.js';
import type { FakeMemory } from './fake-memory.js';

// SHA-256 of the JSON text ["t1",role] and the message's text, in base64url: by Python's hashlib.
export const IDS = {
  fact: 'ai-zKo3umwU5Lb4tbAE7P4rUpnFqZMKTSrO-FYZsrfo_gk',
  noted: 'ai-ZHejCHNcwDRCPm_9Bh8OU1zg3zJGQx-kObkPdksEYe8',
  question: 'ai-l9KHEes3i4r5b5dGXL6BLCP5QLw-oo1MCG0n8PeIQ1k',
};
export const FACT = 'Rex is allergic to chicken';
export const QUESTION = 'What can Rex not eat?';
const OWNER = { resourceId: 'u1', threadId: 't1' };
export const MARK = { semanticrecall: { recalled: true } };

export function says(role: 'user' | 'assistant', ...texts: string[]): PromptMessage {
  return { role, content: texts.map((text) => ({ type: 'text', text })) };
}

export function asks(...before: PromptMessage[]): ModelCall {
  return { prompt: [...before, says('user', QUESTION)] };
}

export function quiet(memory: FakeMemory, options: object = {}) {
  const failures: MemoryFailure[] = [];
  const lines: string[] = [];
  const middleware = recallMiddleware({
    client: memory,
    logger: { warn: (message) => lines.push(message) },
    onError: (failure) => failures.push(failure),
    ...OWNER,
    ...options,
  });
  return { middleware, failures, lines };
}

export function generated(text: string, finishReason: string | { unified: string } = 'stop') {
  return () => Promise.resolve({ content: [{ type: 'text', text }], finishReason });
}

/** A stream of parts that counts how many of them were asked for. */
export function sourceOf(parts: readonly StreamPart[], end?: Error) {
  let asked = 0;
  let cancelled: unknown;
  const stream = new ReadableStream<StreamPart>(
    {
      pull(controller) {
        const part = parts[asked];
        asked += 1;
        if (part !== undefined) controller.enqueue(part);
        else if (end === undefined) controller.close();
        else controller.error(end);
      },
      cancel(reason) {
        cancelled = reason;
      },
    },
    { highWaterMark: 0 },
  );
  return { stream, asked: () => asked, cancelled: () => cancelled };
}

export const DELTAS: readonly StreamPart[] = [
  { type: 'stream-start' },
  { type: 'text-start', id: '0' },
  { type: 'text-delta', id: '0', delta: 'Rex must not ' },
  { type: 'text-delta', id: '0', delta: 'eat chicken.' },
  { type: 'text-end', id: '0' },
  { type: 'finish', finishReason: { unified: 'stop' } },
];

export async function readAll(stream: ReadableStream<StreamPart>): Promise<StreamPart[]> {
  const parts: StreamPart[] = [];
  for await (const part of stream) parts.push(part);
  return parts;
}
