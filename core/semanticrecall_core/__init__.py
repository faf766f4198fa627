"""The engine of SemanticRecall. It knows no gRPC and no protobuf."""
