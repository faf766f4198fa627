/** Semantic recall for the AI SDK: middleware, a tool, and an embedding model. */
export type { FinishReason, StreamPart } from './answer.js';
export type { MemoryFailure, RecallMiddlewareStats } from './failures.js';
export { recallMiddleware } from './middleware.js';
export type {
  GeneratedAnswer,
  LookingOptions,
  ModelCall,
  RecallAndIndex,
  RecallMiddleware,
  RecallMiddlewareOptions,
  StreamedAnswer,
  TurnIdentity,
} from './options.js';
export type { Placement, PromptMessage, PromptPart, ProviderOptions } from './prompt.js';
export { recallTool } from './tool.js';
export type {
  RecallTool,
  RecallToolInput,
  RecallToolMessage,
  RecallToolOptions,
  RecallToolOutput,
} from './tool.js';
export { semanticRecallEmbedder } from '../adapters/embedder.js';
export type {
  EmbedAnswer,
  EmbedCall,
  EmbeddingSpecification,
  SemanticRecallEmbedder,
  SemanticRecallEmbedderOptions,
} from '../adapters/embedder.js';
