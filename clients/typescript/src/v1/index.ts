/** Stubs of package semanticrecall.v1, as `protoc-gen-es` writes them: for what the client lacks. */
export * from './admin_pb.js';
export * from './recall_pb.js';
export * from './types_pb.js';
export * from './vectors_pb.js';
