/** What the middleware reads of a model's answer: its text, and whether it came to its end. */
import { TEXT_BYTES_MAX } from '../adapters/text.js';
import { joinedText, type JoinedText, textOfPart } from './prompt.js';

/** Why an answer ended: a word in AI SDK 5, the word and the provider's own since. */
export type FinishReason = string | { readonly unified: string };

/** One part of a streamed answer. Only what is read here; all else passes through. */
export interface StreamPart {
  /** "text-delta", "finish" and "error" are looked at. */
  readonly type: string;
  /** Which block of text a delta belongs to. */
  readonly id?: unknown;
  /** The piece of text. */
  readonly delta?: unknown;
  /** Why the answer ended. */
  readonly finishReason?: unknown;
}

/** What a model's answer says: its text, one block a line. */
export interface Said extends JoinedText {
  /** It came to its end: no error, and not broken off. */
  readonly finished: boolean;
}

/** What an answer that came in one piece says. */
export function saidIn(
  content: readonly { readonly type: string; readonly text?: unknown }[],
  finishReason: FinishReason,
): Said {
  return { ...joinedText(content.flatMap(textOfPart)), finished: !isError(finishReason) };
}

/**
 * The same stream, part by part and as fast as it is read; `ended` hears once what it said, before
 * it closes. Errors and cancelling pass through.
 */
export function heardStream<P extends StreamPart>(
  source: ReadableStream<P>,
  ended: (said: Said) => Promise<void>,
): ReadableStream<P> {
  const reader = source.getReader();
  const listener = new Listener();
  let told: Promise<void> | undefined;
  const tell = (said: Said): Promise<void> => (told ??= ended(said));

  async function read(): ReturnType<typeof reader.read> {
    try {
      return await reader.read();
    } catch (error) {
      await tell(BROKEN);
      throw error;
    }
  }

  return new ReadableStream<P>(
    {
      async pull(controller) {
        const { done, value } = await read();
        if (done) {
          await tell(listener.said());
          controller.close();
        } else {
          listener.hear(value);
          controller.enqueue(value);
        }
      },
      async cancel(reason) {
        try {
          await reader.cancel(reason);
        } finally {
          await tell(listener.said());
        }
      },
    },
    // Nothing is read before it is asked for.
    { highWaterMark: 0 },
  );
}

const BROKEN: Said = { text: '', cut: false, finished: false };

/** Adds up what a stream says; holds little more text than is indexed. */
class Listener {
  private readonly blocks = new Map<unknown, string>();
  private units = 0;
  private finish: unknown;
  private failed = false;

  hear(part: StreamPart): void {
    if (part.type === 'text-delta' && typeof part.delta === 'string') {
      if (this.units > TEXT_BYTES_MAX) return;
      this.units += part.delta.length;
      this.blocks.set(part.id, (this.blocks.get(part.id) ?? '') + part.delta);
    } else if (part.type === 'finish') {
      this.finish = part.finishReason;
    } else if (part.type === 'error') {
      this.failed = true;
    }
  }

  said(): Said {
    const finished = this.finish !== undefined && !this.failed && !isError(this.finish);
    return { ...joinedText([...this.blocks.values()]), finished };
  }
}

function isError(finishReason: unknown): boolean {
  if (typeof finishReason !== 'object' || finishReason === null) return finishReason === 'error';
  return 'unified' in finishReason && finishReason.unified === 'error';
}
