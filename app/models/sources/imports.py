"""Why a user's package was not found: it is not on the path, or it is called `app`, as Starling's own is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

#: Our package, and its name.
OURS = Path(__file__).resolve().parents[2]
_NAME = "app"


def not_imported(error: BaseException, source: str, folder: Path) -> str:
    """What to add to the message of an error that a model's source raised; "" where an import is not to blame."""
    if not isinstance(error, ImportError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    if package == _NAME:
        return shadowed(error.name, folder)
    if isinstance(error, ModuleNotFoundError) and package == source.partition(":")[0].partition(".")[0]:
        return "; install the package where the server runs, or put the folder that holds it on PYTHONPATH"
    return ""


def shadowed(module: str, folder: Path) -> str:
    """The same for a `module` that was found in our package and has not what was looked for."""
    if module.partition(".")[0] != _NAME:
        return ""
    theirs = next((path for path in _candidates(folder) if path.resolve() != OURS and _is_package(path)), None)
    which = str(theirs) if theirs is not None else "any other of that name"
    return f"; app is Starling's own package, {OURS}, which shadows {which}: rename yours"


def _candidates(folder: Path) -> Iterator[Path]:
    """Where a package of that name may lie: beside the model, above it, in the working folder, on the path."""
    above = [place for place in folder.resolve().parents if place != place.parent]
    for place in (folder, *above, Path.cwd(), *map(Path, sys.path)):
        yield from (place / "app.py", place / "app")


def _is_package(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and any(path.glob("*.py")))
