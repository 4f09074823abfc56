"""Five models of a CPU whose latencies alone are in the proportions of REEF's, all in stages: a repository of them.

    resnet152    an encoder of 6 layers of width 384     densenet201  a convolutional network of 32 channels
    vgg19        a multilayer perceptron                 inceptionv3  a convolutional network of 48 channels
    distilbert   an encoder of 4 layers of width 256

Batches have one row, as in the paper. The encoders are the zoo's, cut within and after their layers; the others are
built as stages. Weights come from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from app.models.stages.staged import Staged
from experiments.common.folders import vector, write_model

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


def _cuts(layers: int, within: bool) -> list[str]:
    """After each layer but the last, and `within` after the attention of each."""
    names = []
    for layer in range(layers):
        names += [f"bert.encoder.layer.{layer}.attention"] * within
        names += [f"bert.encoder.layer.{layer}"] * (layer < layers - 1)
    return names


def write_models(folder: Path, small: bool = False) -> None:
    """Write the repository. `small`: models that take next to no time, to try a run."""
    alone = {"max_batch": 1}

    def staged(name: str, kind: str, shape: Sequence[int], outputs: int, **kwargs: int) -> None:
        inputs = [vector("x", *shape)]
        write_model(folder / name, f"{MODELS}:{kind}", inputs, [vector("y", outputs)], batching=alone, kwargs=kwargs)

    def encoder(name: str, width: int, layers: int, within: bool) -> None:
        kwargs = {"hidden": width, "layers": layers, "heads": width // 32, "intermediate": 4 * width}
        ids = vector("input_ids", TOKENS, datatype="INT64", minimum=0, maximum=30521)
        mask = vector("attention_mask", TOKENS, datatype="INT64", minimum=0, maximum=1)
        write_model(
            folder / name, "loadtest.models.encoder.model:build", [ids, mask], [vector("y", width)],
            batching=alone, kwargs=kwargs, cuts=_cuts(layers, within),
        )  # fmt: skip

    if small:
        for name in PLACES.values():
            staged(name, "mlp", [WIDTH], WIDTH, layers=2, stages=2)
        return
    encoder("encoder6", 384, 6, within=True)
    encoder("encoder4", 256, 4, within=False)
    staged("mlp", "mlp", [WIDTH], WIDTH, layers=16, stages=4)
    staged("cnn32", "cnn", [3, PIXELS, PIXELS], 10, channels=32, layers=7, stages=3)
    staged("cnn48", "cnn", [3, PIXELS, PIXELS], 10, channels=48, layers=8, stages=7)
