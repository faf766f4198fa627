"""Generated code of package semanticrecall.v1. Do not edit; run `make proto`."""
