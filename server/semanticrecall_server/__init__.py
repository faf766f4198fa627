"""The sidecar: gRPC service, settings, security and life cycle around the engine."""
