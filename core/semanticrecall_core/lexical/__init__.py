"""BM25 inside one partition. Not in this version: MODE_LEXICAL answers UNIMPLEMENTED."""
