"""The `starling` command, also `python -m starling_serve`.

Starling's packages have plain names, `app` above all, as many people's own have. Python takes the first on its path, so
this module, whose name is nobody else's, looks which ones these are before anything of ours is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run the command. Another package in our place is one line and exit status 2; a Ctrl-C is exit status 130."""
    before = signal.getsignal(signal.SIGINT)
    if before == signal.default_int_handler:  # native code that an import runs may lose the exception that it raises
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    for name in ("app", "planner", "loadtest"):
        if problem := shadowed(Path(__file__).resolve().parent / name):
            print(f"starling: {problem}", file=sys.stderr)
            sys.exit(2)
    from app.cli.commands import main as command

    signal.signal(signal.SIGINT, before)
    command()


def shadowed(ours: Path) -> str:
    """What to say where the package of that name is not the folder `ours`; "" where it is."""
    spec = find_spec(ours.name)
    if spec is None:
        return f"expected Starling's package {ours.name} at {ours}, found none: install starling-serve again"
    found = Path(spec.origin or next(iter(spec.submodule_search_locations or ["a namespace"])))
    place = found.parent if found.name == "__init__.py" else found
    if place.resolve() == ours:
        return ""
    return (
        f"{place} shadows Starling's own package {ours.name}, {ours}: rename yours, or take its folder off PYTHONPATH "
        "and start elsewhere"
    )


if __name__ == "__main__":
    main()
