"""Checksummed copies of derived data. Not in this version: start reads the record."""
