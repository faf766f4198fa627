"""The command `key` of the command line, found through an entry point."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from .argument_parser import ArgumentParser

EXIT_OK = 0

_KEY_BYTES = 32
_EXAMPLES = """\
examples:
  (umask 077; semanticrecall key new > /etc/semanticrecall/key)
      make a key in a file that nobody else can read
  semanticrecall serve --encryption-key-file /etc/semanticrecall/key
      begin a data directory with it
  semanticrecall serve --encryption-key-file /etc/semanticrecall/key.new \\
      --encryption-old-key-file /etc/semanticrecall/key
      change the key; afterwards only the new one opens the directory

Keep the key: without it nobody can read what was stored, and nothing can bring it back.

exit status: 0 done; 2 wrong usage.
"""


def key(arguments: Sequence[str]) -> int:
    """`semanticrecall key`: new."""
    parser = ArgumentParser(
        prog="semanticrecall key",
        description="Make a key for --encryption-key-file. That is all it does: a key is put to "
        "use,\nand changed, by `semanticrecall serve`.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    text = "Print a new key: 64 hexadecimal digits, 256 random bits."
    actions.add_parser("new", help=text, description=text)
    parser.parse_args(arguments)
    sys.stdout.write(f"{secrets.token_hex(_KEY_BYTES)}\n")
    return EXIT_OK
