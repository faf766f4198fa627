"""Values, ports and errors of the engine. Imports the standard library only.

Import from the modules: `types.values`, `types.filters`, `types.ports`, `types.errors`.
"""
