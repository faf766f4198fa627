import type { MastraModelConfig } from '@mastra/core/llm';

/** What the scripted model answers to one call. */
export type Reply =
  | {
      readonly text: string;
      readonly toolCall?: ScriptedToolCall;
      /** Default: that of a reply that is whole. */
      readonly finishReason?: 'error';
    }
  | { readonly failure: string };

/** A tool call of the scripted model. */
export interface ScriptedToolCall {
  readonly toolName: string;
  readonly input: Readonly<Record<string, unknown>>;
}

type LanguageModel = Extract<MastraModelConfig, { specificationVersion: 'v2' }>;
type CallOptions = Parameters<LanguageModel['doStream']>[0];
type Prompt = CallOptions['prompt'];
type PartsOf<Stream> = Stream extends ReadableStream<infer Part> ? Part : never;
type StreamPart = PartsOf<Awaited<ReturnType<LanguageModel['doStream']>>['stream']>;
type ToolCall = Extract<StreamPart, { type: 'tool-call' }>;
type Generated = Extract<Awaited<ReturnType<LanguageModel['doGenerate']>>, { content: unknown[] }>;
type Content = Generated['content'][number];

const USAGE = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };

function finishReasonOf(reply: Exclude<Reply, { failure: string }>): Generated['finishReason'] {
  return reply.finishReason ?? (reply.toolCall === undefined ? 'stop' : 'tool-calls');
}

function streamOf(parts: readonly StreamPart[]): ReadableStream<StreamPart> {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) {
        controller.enqueue(part);
      }
      controller.close();
    },
  });
}

function toolCallOf(toolCall: ScriptedToolCall, call: number): ToolCall {
  return {
    type: 'tool-call',
    toolCallId: `call-${call}`,
    toolName: toolCall.toolName,
    input: JSON.stringify(toolCall.input),
  };
}

function partsOf(reply: Exclude<Reply, { failure: string }>, call: number): StreamPart[] {
  const parts: StreamPart[] = [{ type: 'stream-start', warnings: [] }];
  if (reply.text !== '') {
    const id = `text-${call}`;
    parts.push({ type: 'text-start', id });
    parts.push({ type: 'text-delta', id, delta: reply.text });
    parts.push({ type: 'text-end', id });
  }
  if (reply.toolCall !== undefined) {
    parts.push(toolCallOf(reply.toolCall, call));
  }
  parts.push({ type: 'finish', finishReason: finishReasonOf(reply), usage: USAGE });
  return parts;
}

function contentOf(reply: Exclude<Reply, { failure: string }>, call: number): Content[] {
  const content: Content[] = [];
  if (reply.text !== '') {
    content.push({ type: 'text', text: reply.text });
  }
  if (reply.toolCall !== undefined) {
    content.push(toolCallOf(reply.toolCall, call));
  }
  return content;
}

/**
 * A language model that answers from a script and keeps every prompt it was given. Where the script
 * has ended, it says `All right.`
 */
export class ScriptedModel {
  /** What is handed to an agent as its model. */
  readonly model: LanguageModel;
  /** The prompts of all calls so far. */
  readonly prompts: Prompt[] = [];
  /** Called with each model call, before it is answered. */
  onCall: (() => void) | undefined;
  private readonly script: Reply[] = [];

  constructor() {
    this.model = {
      specificationVersion: 'v2',
      provider: 'scripted',
      modelId: 'scripted',
      supportedUrls: {},
      doStream: async (options: CallOptions) => {
        await Promise.resolve();
        const reply = this.next(options);
        return { stream: streamOf(partsOf(reply, this.prompts.length)) };
      },
      doGenerate: async (options: CallOptions) => {
        await Promise.resolve();
        const reply = this.next(options);
        return {
          content: contentOf(reply, this.prompts.length),
          finishReason: finishReasonOf(reply),
          usage: USAGE,
          warnings: [],
        };
      },
    };
  }

  /** Adds what the next calls are answered with, one reply a call. */
  willAnswer(...replies: readonly Reply[]): void {
    this.script.push(...replies);
  }

  private next(options: CallOptions): Exclude<Reply, { failure: string }> {
    this.prompts.push(options.prompt);
    this.onCall?.();
    const reply = this.script.shift() ?? { text: 'All right.' };
    if ('failure' in reply) {
      throw new Error(reply.failure);
    }
    return reply;
  }
}
