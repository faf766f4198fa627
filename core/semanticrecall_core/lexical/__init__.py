"""The words of messages: how texts become terms, and BM25 inside one partition."""
