"""Reads damaged copies of a directory, one after another, in a process of its own.

    python -m support.damage_worker BASE

BASE holds `sound` (the directory), `world.json` and `mutations.json`: a list of [file, kind, ...]
with kind "flip" (offset, bit), "zero" (offset, length), "truncate" (length), "replace" (path) or
"remove". One line of JSON is printed for each, before it a line with its number, so that whoever
started this knows which one it died of.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
from pathlib import Path

from support.damage_world import World, copy_of, read_all

Mutation = list[object]


def mutate(home: Path, mutation: Mutation) -> None:
    """Damage one file."""
    name, kind, *values = mutation
    path = home / str(name)
    match kind, values:
        case "flip", [int(offset), int(bit)]:
            with path.open("r+b") as file:
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ (1 << bit)]))
        case "zero", [int(offset), int(length)]:
            with path.open("r+b") as file:
                file.seek(offset)
                file.write(bytes(min(length, path.stat().st_size - offset)))
        case "truncate", [int(length)]:
            with path.open("r+b") as file:
                file.truncate(length)
        case "replace", [str(other)]:
            shutil.copy(other, path)
        case "remove", []:
            path.unlink()
        case _:
            raise ValueError(f"no such mutation: {mutation}")


def main(base: Path) -> None:
    """Everything in BASE."""
    world = World.of_json((base / "world.json").read_text())
    mutations: list[Mutation] = json.loads((base / "mutations.json").read_text())
    for number, mutation in enumerate(mutations):
        print(number, flush=True)
        home = copy_of(base / "sound", base / "mutant")
        try:
            mutate(home, mutation)
            reading = read_all(home, world, thorough=mutation[0] != "MARK")
            said = {
                "refused": reading.refused,
                "reports": sorted(reading.reports),
                "findings": sorted(reading.findings),
                "differences": sorted(reading.differences),
            }
        except Exception:
            said = {"crash": traceback.format_exc()}
        print(json.dumps(said), flush=True)
        shutil.rmtree(home)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
