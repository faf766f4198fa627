"""Named collections of vectors in a file of their own (`collections.db`), searched exactly."""
