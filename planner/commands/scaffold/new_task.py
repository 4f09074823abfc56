"""Writes the model.toml of a model that transformers saved, with its task. Its weights stay where they are.

The task is found in the files beside the weights; nothing is loaded.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.errors import ConfigError
from app.models.description.config import FILE_NAME
from app.models.sources.hubs import ADAPTER, refuse_adapter
from app.models.tasks.sentence_files import SENTENCE_CONFIG
from app.models.tasks.task_opening import TOKENIZER_FILES
from app.models.tasks.task_specs import TASKS

HUB = "hf:"
CONFIG = "config.json"
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")


def names_task(origin: str | Path, suffixes: tuple[str, ...]) -> bool:
    """Whether this is a folder that transformers saved, without a model of another kind in it.

    Beside its weights other files are none: a training leaves its optimizer.pt.
    """
    if isinstance(origin, str) or not any((origin / name).is_file() for name in (CONFIG, ADAPTER)):
        return False
    others = () if any(True for pattern in _WEIGHTS for _ in origin.glob(pattern)) else suffixes
    return not any(path.suffix in others or path.name in (FILE_NAME, "model.py") for path in origin.iterdir())


def write_task(target: Path, origin: str | Path, task: str) -> None:
    """Write model.toml. `origin`: a folder, or hf:NAME. `task`: "" to find it.

    Raises ConfigError if the task cannot be found.
    """
    if isinstance(origin, str) and not origin.startswith(HUB):
        raise ConfigError(f"task: expected --from a folder of transformers or {HUB}NAME beside it, got {origin!r}")
    if isinstance(origin, str):
        source, pairs = origin, False
    else:
        task = task or fitting_task(origin)
        pairs = task == "text-classification" and _reads_pairs(origin)
        # as given: a relative path is still valid after both folders are moved together, an absolute one if neither is
        place = origin if origin.is_absolute() else Path(os.path.relpath(origin, target))
        if not is_same(target / place, origin):  # links are in the way
            place = origin.absolute()
        source = f"{HUB}{place.as_posix()}"
    text = f"source = {json.dumps(source)}\ntask = {json.dumps(task)}\n"
    text += "\n[task_options]\npairs = true\n" if pairs else ""
    (target / FILE_NAME).write_text(text, encoding="utf-8")


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one place; False if that cannot be told."""
    with suppress(OSError, ValueError):
        return os.path.samefile(one, other)
    return False


def fitting_task(folder: Path) -> str:
    """The task of the head that config.json names; feature-extraction if it names none and there is a tokenizer.

    A folder of sentence-transformers is for vectors, or for ranking if it is a cross-encoder of one score. Raises
    ConfigError that asks for `--task` if no task fits.
    """
    refuse_adapter(folder)
    config = _config(folder)
    named = config.get("architectures") if isinstance(config, dict) else None
    made = [str(each) for each in named] if isinstance(named, list) else []
    crosses = _is_cross_encoder(folder, config)
    if crosses or not (folder / "modules.json").is_file():
        for task, one in TASKS.items():
            if one.head and any(marker in each for each in made for marker in one.architectures):
                ranks = task == "text-classification" and crosses and len(_labels(config)) == 1
                return "rerank" if ranks else task
    if _gives_vectors(folder, config, made):
        return "feature-extraction"
    found = f"the architectures {', '.join(made)}, which fit" if made else "no architectures, so that it fits"
    raise ConfigError(
        f"{folder / CONFIG}: has {found} no task that is served; if the weights are made for one, "
        f"give --task {'|'.join(TASKS)}"
    )


def _config(folder: Path, name: str = CONFIG) -> Any:
    """Raises ConfigError."""
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / name}: expected readable JSON: {error}") from None


def _is_cross_encoder(folder: Path, config: Any) -> bool:
    """Whether sentence-transformers saved it as a cross-encoder."""
    if (folder / SENTENCE_CONFIG).is_file() and _config(folder, SENTENCE_CONFIG).get("model_type") == "CrossEncoder":
        return True
    return "sentence_transformers" in config or "sbert_ce_default_activation_function" in config


def _labels(config: Any) -> list[str]:
    labels = config.get("id2label")
    return [str(label) for label in labels.values()] if isinstance(labels, dict) else []


def _reads_pairs(folder: Path) -> bool:
    """Whether a classifier reads two texts: a cross-encoder, or a model of entailment."""
    config = _config(folder)
    entails = any(label.lower().startswith("entail") for label in _labels(config))
    return entails or _is_cross_encoder(folder, config)


def _gives_vectors(folder: Path, config: Any, made: list[str]) -> bool:
    """Whether it is an encoder of texts, or a folder of sentence-transformers, whatever head the weights had."""
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        return False
    if (folder / "modules.json").is_file():
        return True
    return bool(made) and all(each.endswith("Model") for each in made) and not config.get("is_encoder_decoder")
