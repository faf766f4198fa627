"""`python -m semanticrecall_server`: serve."""

import sys

from .main import serve_command

if __name__ == "__main__":
    sys.exit(serve_command(sys.argv[1:]))
