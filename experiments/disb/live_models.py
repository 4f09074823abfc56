"""Five models of a CPU whose latencies alone are in the proportions of REEF's, all in stages: a repository of them.

    resnet152    an encoder of 6 layers of width 384     densenet201  a convolutional network of 32 channels
    vgg19        a multilayer perceptron                 inceptionv3  a convolutional network of 48 channels
    distilbert   an encoder of 4 layers of width 256

Batches have one row, as in the paper. The encoders are the zoo's, cut within and after their layers; the others are
built as stages. Weights come from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from app.models.stages.staged import Staged

MODELS = "experiments.disb.live_models"
TOKENS = 16  # of an encoder's request
PIXELS = 48  # of an image's side
WIDTH = 1024  # of the perceptron

#: By DISB's name of the model: the one that takes its place.
PLACES = {
    "resnet152": "encoder6",
    "densenet201": "cnn32",
    "vgg19": "mlp",
    "inceptionv3": "cnn48",
    "distilbert": "encoder4",
}

_VECTORS = """\
[[inputs]]
name = "x"
datatype = "FP32"
shape = [{width}]
"""
_IMAGES = """\
[[inputs]]
name = "images"
datatype = "FP32"
shape = [3, {pixels}, {pixels}]
"""
_TOKENS = """\
[[inputs]]
name = "input_ids"
datatype = "INT64"
shape = [{tokens}]
minimum = 0
maximum = 30521

[[inputs]]
name = "attention_mask"
datatype = "INT64"
shape = [{tokens}]
minimum = 0
maximum = 1
"""
_TOML = """\
source = "{source}"
kwargs = {{ {kwargs} }}
{cuts}
{inputs}
[[outputs]]
name = "y"
datatype = "FP32"
shape = [{outputs}]

[batching]
max_batch = 1
"""


def mlp(layers: int, stages: int) -> nn.Module:
    """[n, WIDTH] -> [n, WIDTH], so many dense layers."""
    return _staged(lambda: [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers)], stages)


def cnn(channels: int, layers: int, stages: int) -> nn.Module:
    """[n, 3, PIXELS, PIXELS] -> [n, 10], so many convolutions that keep the pixels."""

    def build() -> list[nn.Module]:
        widths = (3, *[channels] * layers)
        found: list[nn.Module] = [
            nn.Sequential(nn.Conv2d(one, other, 3, padding=1), nn.ReLU()) for one, other in pairwise(widths)
        ]
        found[-1] = nn.Sequential(found[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
        return found

    return _staged(build, stages)


def _staged(build: Callable[[], list[nn.Module]], stages: int) -> Staged:
    """The layers in so many stages. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = build()
    ends = [round(len(layers) * number / stages) for number in range(stages + 1)]
    return Staged([nn.Sequential(*layers[one:other]) for one, other in pairwise(ends)])


def _cuts(layers: int, within: bool) -> str:
    """After each layer but the last, and `within` after the attention of each."""
    names = []
    for layer in range(layers):
        names += [f"bert.encoder.layer.{layer}.attention"] * within
        names += [f"bert.encoder.layer.{layer}"] * (layer < layers - 1)
    return f"cuts = {names}\n"


def write_models(folder: Path, small: bool = False) -> None:
    """Write the repository. `small`: models that take next to no time, to try a run."""
    images, tokens = _IMAGES.format(pixels=PIXELS), _TOKENS.format(tokens=TOKENS)

    def write(name: str, source: str, kwargs: dict[str, int], inputs: str, outputs: int, cuts: str = "") -> None:
        told = ", ".join(f"{key} = {value}" for key, value in kwargs.items())
        text = _TOML.format(source=source, kwargs=told, cuts=cuts, inputs=inputs, outputs=outputs)
        (folder / name).mkdir(parents=True)
        (folder / name / "model.toml").write_text(text, encoding="utf-8")

    def encoder(name: str, width: int, layers: int, within: bool) -> None:
        kwargs = {"hidden": width, "layers": layers, "heads": width // 32, "intermediate": 4 * width}
        write(name, "app.models.zoo.encoder.model:build", kwargs, tokens, width, _cuts(layers, within))

    if small:
        for name in PLACES.values():
            vectors = _VECTORS.format(width=WIDTH)
            write(name, f"{MODELS}:mlp", {"layers": 2, "stages": 2}, vectors, WIDTH)
        return
    encoder("encoder6", 384, 6, within=True)
    encoder("encoder4", 256, 4, within=False)
    write("mlp", f"{MODELS}:mlp", {"layers": 16, "stages": 4}, _VECTORS.format(width=WIDTH), WIDTH)
    write("cnn32", f"{MODELS}:cnn", {"channels": 32, "layers": 7, "stages": 3}, images, 10)
    write("cnn48", f"{MODELS}:cnn", {"channels": 48, "layers": 8, "stages": 7}, images, 10)
