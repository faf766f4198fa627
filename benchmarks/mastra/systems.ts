/** What is compared, as the measurement sees it. */
import type { Corpus, Layout } from './corpus.ts';
import type { Hooks } from './turn.ts';

/** A processor over a filled store. */
export interface System {
  name: string;
  hooks: Hooks;
  /** How many times the processor failed, which no call of it tells. */
  failures(): number;
  /** Lets it embed a question beforehand, so that a recall of it finds the vector. */
  embed(resourceId: string, question: string): Promise<void>;
  /** Forgets every vector that this process has cached. */
  forgetVectors(): void;
  close(): Promise<void>;
}

/** Which store is filled. */
export interface Filling {
  corpus: Corpus;
  layout: Layout;
  /** Messages in it. */
  size: number;
  resourceMessages: number;
}
