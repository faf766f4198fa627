"""How fast, how good, at what size. Every figure is a ratio against a baseline of the same run."""
