/** A model of the AI SDK that says what it is told to, and keeps the prompts it was given. */
import { MockLanguageModelV4 } from 'ai/test';

type Generated = Awaited<ReturnType<MockLanguageModelV4['doGenerate']>>;
type Streamed = Awaited<ReturnType<MockLanguageModelV4['doStream']>>;
type Call = MockLanguageModelV4['doGenerateCalls'][number];
type StreamPart = Streamed['stream'] extends ReadableStream<infer Part> ? Part : never;
type Content = Generated['content'][number];

/** What the model does when it is called. */
export type Reply =
  | { readonly text?: string; readonly call?: { toolName: string; input: object } }
  | { readonly failure: Error };

const USAGE: Generated['usage'] = {
  inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 1, text: 1, reasoning: 0 },
};

/** A model that gives these replies, one a call, streamed word by word or in one piece. */
export function scriptedModel(...replies: readonly Reply[]): MockLanguageModelV4 {
  let calls = 0;
  const next = (): readonly Content[] => {
    const reply = replies[calls];
    calls += 1;
    if (reply === undefined) throw new Error(`the model was called ${calls} times`);
    if ('failure' in reply) throw reply.failure;
    return contentOf(reply, calls);
  };
  return new MockLanguageModelV4({
    doGenerate: () => {
      try {
        const content = [...next()];
        return Promise.resolve({
          content,
          finishReason: reasonOf(content),
          usage: USAGE,
          warnings: [],
        });
      } catch (error) {
        return Promise.reject(error instanceof Error ? error : new Error(String(error)));
      }
    },
    doStream: () => Promise.resolve({ stream: streamOf(next()) }),
  });
}

/** The texts of a prompt, one entry a message, as "role: text". */
export function saidTo(call: Call | undefined): string[] {
  return (call?.prompt ?? []).map(({ role, content }) => {
    if (typeof content === 'string') return `${role}: ${content}`;
    const texts = content.map((part) => (part.type === 'text' ? part.text : `[${part.type}]`));
    return `${role}: ${texts.join('|')}`;
  });
}

function contentOf(reply: Exclude<Reply, { failure: Error }>, call: number): Content[] {
  const content: Content[] = [];
  if (reply.text !== undefined) content.push({ type: 'text', text: reply.text });
  if (reply.call !== undefined) {
    const { toolName, input } = reply.call;
    content.push({
      type: 'tool-call',
      toolCallId: `call-${call}`,
      toolName,
      input: JSON.stringify(input),
    });
  }
  return content;
}

function reasonOf(content: readonly Content[]): Generated['finishReason'] {
  const unified = content.some(({ type }) => type === 'tool-call') ? 'tool-calls' : 'stop';
  return { unified, raw: undefined };
}

function streamOf(content: readonly Content[]): ReadableStream<StreamPart> {
  const parts: StreamPart[] = [{ type: 'stream-start', warnings: [] }];
  for (const [index, block] of content.entries()) {
    if (block.type === 'tool-call') parts.push(block);
    if (block.type !== 'text') continue;
    const id = String(index);
    parts.push({ type: 'text-start', id });
    for (const delta of block.text.split(/(?<= )/u)) parts.push({ type: 'text-delta', id, delta });
    parts.push({ type: 'text-end', id });
  }
  parts.push({ type: 'finish', finishReason: reasonOf(content), usage: USAGE });
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
}
