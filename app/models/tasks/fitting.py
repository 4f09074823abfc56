"""Which task a folder of transformers is made for, by the files beside its weights. Nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from app.errors import ConfigError
from app.models.description.tables import TaskName
from app.models.tasks.opening import CLASSES, TOKENIZER_FILES

CONFIG = "config.json"


def fitting_task(folder: Path) -> str:
    """The task whose head the architectures of config.json have; with no head but a tokenizer, feature-extraction.

    Raises ConfigError, one line that asks for `--task`, where no task fits.
    """
    try:
        config: Any = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / CONFIG}: expected readable JSON: {error}") from None
    named = config.get("architectures") if isinstance(config, dict) else None
    made = [str(each) for each in named] if isinstance(named, list) else []
    for task, (_, marker) in CLASSES.items():
        if any(marker in each for each in made):
            return task
    if _gives_vectors(folder, config, made):
        return "feature-extraction"
    told = f"the architectures {', '.join(made)}" if made else "no architectures"
    raise ConfigError(f"{folder / CONFIG}: has {told}, which say no task: give --task {'|'.join(get_args(TaskName))}")


def _gives_vectors(folder: Path, config: Any, made: list[str]) -> bool:
    """Whether it is an encoder of texts, or sentence-transformers says so, whatever head the weights once had."""
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        return False
    if (folder / "modules.json").is_file():
        return True
    return bool(made) and all(each.endswith("Model") for each in made) and not config.get("is_encoder_decoder")
