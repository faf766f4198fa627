/** Mastra: `SemanticRecall` over a sidecar, with only the import changed. */
export { semanticRecallEmbedder } from '../adapters/embedder.js';
export type {
  EmbedAnswer,
  EmbedCall,
  EmbeddingSpecification,
  SemanticRecallEmbedder,
  SemanticRecallEmbedderOptions,
} from '../adapters/embedder.js';
export type { FollowableMemory, FollowableStore } from './following.js';
export type { RecallLogger, SemanticRecallOptions } from './options.js';
export type { InputArgs, OutputArgs } from './processor.js';
export { SemanticRecall } from './processor.js';
export type { RecallStats } from './reporter.js';
export { SemanticRecallVector } from './vector.js';
export type {
  SemanticRecallIndexParams,
  SemanticRecallQueryParams,
  SemanticRecallVectorFilter,
  SemanticRecallVectorOptions,
} from './vector.js';
