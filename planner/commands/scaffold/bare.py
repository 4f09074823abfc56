"""`starling serve` for models without a model.toml: it writes the one that `starling new` would write.

The file is in a temporary folder, and refers to the model's files where they are.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import ConfigError
from app.models.description.config import FILE_NAME, INSTEAD
from app.models.model_files import ask
from app.models.repository import SETS, name_of
from app.models.sources.hubs import ADAPTER
from app.models.sources.opening import MODEL_FILES
from planner.commands.scaffold.draft import source_in, write_likeliest
from planner.commands.scaffold.new_task import CONFIG, names_task, write_task

_log = logging.getLogger("starling.models")


@contextmanager
def with_model_toml(models: str, named: Sequence[str]) -> Iterator[dict[str, object]]:
    """Changes of the settings `models` and `model`: for each model without a model.toml, the folder of a written one.

    Raises ConfigError if no model.toml could be found that works.
    """
    pairs = [text.partition("=")[::2] for text in named]
    found = models not in SETS and _is_bare(models)
    several = any(_is_bare(place) for _, place in pairs)
    if not (found or several):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="starling-") as scratch:
        changed: dict[str, object] = {}
        if found:
            changed["models"] = _folder_for(name_of(Path(models)), models, Path(scratch, "models"))
        if several:
            folders = (
                (name, _folder_for(name, place, Path(scratch)) if _is_bare(place) else place) for name, place in pairs
            )
            changed["model"] = tuple(f"{name}={folder}" for name, folder in folders)
        yield changed


def _is_bare(place: str) -> bool:
    """Whether this is a model's file, or the folder of a model without a model.toml."""
    try:
        return ask(_looks_bare, Path(place))
    except ConfigError:
        return False  # Repository says what is wrong


def _looks_bare(path: Path) -> bool:
    if not path.is_dir():
        return path.is_file()
    if any(True for pattern in ("", "*/", "*/*/") for _ in path.glob(f"{pattern}{FILE_NAME}")):
        return False
    return any(child.suffix in MODEL_FILES or child.name in (CONFIG, ADAPTER, "model.py") for child in path.glob("*"))


def _folder_for(name: str, place: str, parent: Path) -> str:
    folder, path = parent / name, Path(place).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if names_task(path, MODEL_FILES):
            write_task(folder, path, "")
        elif path.is_file() and path.suffix not in MODEL_FILES:
            wanted = f"expected its folder, or a model's file, one of *{', *'.join(MODEL_FILES)}"
            raise ConfigError(INSTEAD.get(path.suffix, wanted))
        else:
            source = path / source_in(path) if path.is_dir() else path
            write_likeliest(folder, source.as_posix(), [])
    except (ConfigError, UnicodeEncodeError) as error:  # model.toml is UTF-8, which a path need not be
        by_hand = f"starling new NAME --from {shlex.quote(place)} takes --input and --task"
        raise ConfigError(f"models: {place}: {error}; {by_hand}, and makes a folder to serve") from None
    for file in path.glob("*") if path.is_dir() else (path,):
        (folder / file.name).symlink_to(file)  # for --watch; model.toml names them where they are
    text = (folder / FILE_NAME).read_text(encoding="utf-8")
    _log.info("%s has no %s, and is served by this one:\n%s", place, FILE_NAME, text, extra={"lines": True})
    return str(folder)
