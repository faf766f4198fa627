/** The sidecar's own int8 model in this process: what Mastra's processor embeds with here. */
import { Tokenizer } from '@huggingface/tokenizers';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { InferenceSession, Tensor } from 'onnxruntime-node';

const WINDOW_TOKENS = 256;

/**
 * An embedding model as Mastra takes it, with one thread, and settings of the runtime as the
 * sidecar's. One text runs at a time: `onnxruntime-node` computes on the calling thread.
 */
export class MiniLm {
  readonly specificationVersion = 'v2' as const;
  readonly provider = 'onnx';
  readonly modelId = 'all-MiniLM-L6-v2';
  readonly maxEmbeddingsPerCall = 1;
  readonly supportsParallelCalls = true;
  /** Of each text embedded since it was last emptied. */
  readonly embedMs: number[] = [];
  readonly #session: InferenceSession;
  readonly #tokenizer: Tokenizer;

  private constructor(session: InferenceSession, tokenizer: Tokenizer) {
    this.#session = session;
    this.#tokenizer = tokenizer;
  }

  /** Opens what `semanticrecall model install` made. */
  static async open(directory: string): Promise<MiniLm> {
    const session = await InferenceSession.create(path.join(directory, 'int8.onnx'), {
      executionProviders: ['cpu'],
      intraOpNumThreads: 1,
      interOpNumThreads: 1,
      executionMode: 'sequential',
      graphOptimizationLevel: 'all',
      logSeverityLevel: 4,
      enableCpuMemArena: false,
      enableMemPattern: false,
    });
    const file = await readFile(path.join(directory, 'tokenizer.json'), 'utf8');
    return new MiniLm(session, new Tokenizer(JSON.parse(file), {}));
  }

  async doEmbed({ values }: { values: string[] }): Promise<{ embeddings: number[][] }> {
    const embeddings: number[][] = [];
    for (const value of values) embeddings.push(await this.#timed(value));
    return { embeddings };
  }

  async #timed(text: string): Promise<number[]> {
    const started = performance.now();
    const vector = await this.#embed(text);
    this.embedMs.push(performance.now() - started);
    return vector;
  }

  async #embed(text: string): Promise<number[]> {
    const { ids } = this.#tokenizer.encode(text);
    if (ids.length > WINDOW_TOKENS) throw new Error('a text is longer than the window');
    const input = new Tensor('int64', BigInt64Array.from(ids, BigInt), [1, ids.length]);
    const outputs = await this.#session.run({ [this.#session.inputNames[0] ?? '']: input });
    const pooled = outputs[this.#session.outputNames[0] ?? '']?.data;
    if (!(pooled instanceof Float32Array)) throw new Error('the model gave no vector');
    const length = Math.hypot(...pooled);
    return Array.from(pooled, (value) => value / length);
  }
}

/** Cosine of two unit vectors. */
export function cosine(left: readonly number[], right: readonly number[]): number {
  return left.reduce((sum, value, number) => sum + value * (right[number] ?? 0), 0);
}
