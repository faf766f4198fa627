"""Pure functions over what was found: how it is ordered and written."""
