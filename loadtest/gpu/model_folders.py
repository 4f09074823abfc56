"""Model folders that `starling` serves: a model.toml and the network's code beside it."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from app.contract import Model, ModelSource
from app.models.loaders import load

from .data import NETWORKS

HERE = Path(__file__).parent
_VOCABULARY = 30_000  # upper bound of drawn ids; BERT's has 30,522


_TOML = """\
source = "model.py:{build}"

[kwargs]
{kwargs}
tiny = {tiny}

[[inputs]]
name = "{input}"
datatype = "{datatype}"
shape = {shape}
{range}

[[outputs]]
name = "output"
datatype = "FP32"
shape = [{width}]

[batching]
max_batch = {max_batch}
"""


def write(name: str, repository: Path, *, tiny: bool = False, max_batch: int = 32) -> Path:
    """Write the model into a repository folder; returns its own folder. Raises KeyError for unknown names."""
    network = NETWORKS[name]
    folder = repository / name
    folder.mkdir(parents=True)
    shutil.copyfile(HERE / "networks.py", folder / "model.py")
    text = _TOML.format(
        build=network.build, kwargs=network.kwargs, tiny=str(tiny).lower(), shape=list(network.row(tiny)),
        input="images" if network.images else "input_ids", datatype="UINT8" if network.images else "INT64",
        range="" if network.images else f"minimum = 0\nmaximum = {_VOCABULARY - 1}",
        width=network.tiny_width if tiny else network.width, max_batch=max_batch,
    )  # fmt: skip
    (folder / "model.toml").write_text(text, encoding="utf-8")
    return folder


@lru_cache(maxsize=2)
def loaded(folder: Path) -> Model:
    """The loaded model, which must stay on the CPU: `read` copies it, faster than drawing weights again."""
    return load(ModelSource(folder.name, 1, folder))


def read(folder: Path, max_batch: int) -> Model:
    """A copy of the model, on the CPU, with this largest batch; the caller owns its weights."""
    model = loaded(folder)
    batching = replace(model.info.batching, max_batch=max_batch)
    return replace(model, call=copy.deepcopy(model.call), info=replace(model.info, batching=batching))


def rows_of(model: Model, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Random rows, one tensor [count, ...] per input. Random, because constants may compute faster than real inputs."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for spec in model.info.inputs:
        shape = (count, *spec.bounds)
        if spec.datatype == "UINT8":
            found.append(torch.randint(0, 256, shape, generator=random, dtype=torch.uint8))
        else:
            found.append(torch.randint(1, _VOCABULARY, shape, generator=random, dtype=torch.int64))
    return found
