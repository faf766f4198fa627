/** How a `WordEmbedder` differs from the default. */
export interface WordEmbedderOptions {
  readonly modelId?: string;
  readonly dimensions?: number;
  /** Texts longer than this many characters are refused, as hosted models do. */
  readonly maxChars?: number;
}

const STOP_WORDS = new Set(
  'a an and are at do for i in is it my of on or our that the this to was what when where which you'.split(
    ' ',
  ),
);

function hashOf(word: string): number {
  let hash = 0x811c9dc5;
  for (const unit of word) {
    hash = Math.imul(hash ^ (unit.codePointAt(0) ?? 0), 0x01000193) >>> 0;
  }
  return (hash ^ (hash >>> 15)) >>> 0;
}

/**
 * An embedding model for Mastra's own processor: texts with the same words are near each other.
 * Deterministic and without network; it counts its calls and can be taken down.
 */
export class WordEmbedder {
  readonly specificationVersion = 'v2';
  readonly provider = 'words';
  readonly modelId: string;
  readonly maxEmbeddingsPerCall = 256;
  readonly supportsParallelCalls = true;
  /** The texts of every call that was answered. */
  readonly calls: string[][] = [];
  /** While true, every call fails. */
  down = false;
  readonly dimensions: number;
  private readonly maxChars: number;

  constructor(options: WordEmbedderOptions = {}) {
    this.modelId = options.modelId ?? 'words';
    this.dimensions = options.dimensions ?? 384;
    this.maxChars = options.maxChars ?? Number.MAX_SAFE_INTEGER;
  }

  /** Unit vectors of the texts. */
  async doEmbed(options: { values: string[] }): Promise<{ embeddings: number[][] }> {
    // Nothing is answered in the same turn of the event loop: no embedder that is a model is.
    await new Promise((resolve) => setImmediate(resolve));
    if (this.down) {
      throw new Error('the embedder is down');
    }
    if (options.values.some((value) => value.length > this.maxChars)) {
      throw new Error(`the embedder takes at most ${this.maxChars} characters`);
    }
    this.calls.push([...options.values]);
    return { embeddings: options.values.map((value) => this.vectorOf(value)) };
  }

  /** How often this text was embedded. */
  timesEmbedded(text: string): number {
    return this.calls.flat().filter((value) => value === text).length;
  }

  private vectorOf(text: string): number[] {
    const vector = new Array<number>(this.dimensions).fill(0);
    // Whatever a text says, it is not at right angles to every other one.
    vector[0] = 0.1;
    for (const word of text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? []) {
      if (!STOP_WORDS.has(word)) {
        const hash = hashOf(word);
        const at = 1 + (hash % (this.dimensions - 1));
        vector[at] = (vector[at] ?? 0) + 1;
      }
    }
    const length = Math.hypot(...vector);
    return vector.map((value) => value / length);
  }
}
