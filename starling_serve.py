"""The `starling` command, also `python -m starling_serve`.

Starling's package is called `app`, and so are many people's own. Python takes the first on its path, so this module,
whose name is nobody else's, looks which one that is before anything of ours is imported.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Run the command. Another package in our place is one line and exit status 2."""
    problem = shadowed(Path(__file__).resolve().parent / "app")
    if problem:
        print(f"starling: {problem}", file=sys.stderr)
        sys.exit(2)
    from app.cli.commands import main as command

    command()


def shadowed(ours: Path) -> str:
    """What to say where `app` is not the package in the folder `ours`; "" where it is."""
    spec = find_spec("app")
    if spec is None:
        return f"expected Starling's package app at {ours}, found none: install starling-serve again"
    found = Path(spec.origin or next(iter(spec.submodule_search_locations or ["a namespace"])))
    place = found.parent if found.name == "__init__.py" else found
    if place.resolve() == ours:
        return ""
    return (
        f"{place} shadows Starling's own package app, {ours}: rename yours, or take its folder off PYTHONPATH "
        "and start elsewhere"
    )


if __name__ == "__main__":
    main()
