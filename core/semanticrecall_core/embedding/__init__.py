"""Texts to unit vectors: provisioning, tokenizer, chunking, cache, single-flight, ONNX."""
