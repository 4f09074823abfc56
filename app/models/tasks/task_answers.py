"""Postprocessing: makes the outputs that clients get (labels, tokens with offsets, vectors) from a model's own.

`task_model` puts a module behind a front: a reader, which is preprocessing, and such answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from app.contract import Answers, Array, Checks, Front, Model, ModelInfo, TensorSpec
from app.models.tasks import task_specs

Outputs = tuple[list[Array], list[int] | None]


def task_model(info: ModelInfo, module: nn.Module, front: Front, outputs: tuple[TensorSpec, ...]) -> Model:
    """`outputs`: the module's own. The front's example is made up, unless [warmup] gives real rows."""
    front.example = front.reader.example()
    info = replace(info, inputs=front.reader.inputs, outputs=outputs)
    checks = Checks(front.reader.samples())
    return Model(info, module.eval(), present=front.answers.present, checks=checks, front=front)


def padded(rows: Sequence[Any], fill: Any, dtype: Any = object) -> Array:
    """Values [rows, longest, ...] of rows of different lengths; `fill` behind the end of shorter ones."""
    longest: Array = np.full((len(rows), max(map(len, rows)), *np.shape(rows[0])[1:]), fill, dtype)
    for row, values in zip(longest, rows, strict=True):
        row[: len(values)] = values
    return longest


def best_first(name: str, texts: Array, scores: Array) -> dict[str, Any]:
    """The best text (null if its score is NaN) and its score, and all of them under `top`, the best first."""
    top = [{name: text.decode(), "score": score} for text, score in zip(texts, scores, strict=True)]
    best = None if np.isnan(scores[0]) else top[0][name]
    return {**top[0], name: best, "top": top}


class Labels(Answers):
    """Scores [rows, labels] to the `top` labels of each row and their scores, the highest first."""

    def __init__(self, labels: Sequence[str], top: int) -> None:
        self._labels = np.array([label.encode() for label in labels], object)
        self._top = min(top, len(labels))
        super().__init__(task_specs.labels_and_scores(self._top))

    def answer(self, outputs: Sequence[Array], note: Any) -> Outputs:
        (scores,) = outputs
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self._top]
        return [self._labels[best], np.take_along_axis(scores, best, axis=1)], None

    def present(self, outputs: Mapping[str, Array]) -> Any:
        return best_first("label", outputs["labels"], outputs["scores"])


class Masks(Answers):
    """Ids and scores [rows, tokens, top] to the texts and scores of each mask. `decode`: a list of ids to text."""

    quick = False

    def __init__(self, decode: Callable[[list[int]], str], top: int) -> None:
        super().__init__(task_specs.masks(top))
        self._decode = decode
        self._top = top

    def answer(self, outputs: Sequence[Array], note: Sequence[Array]) -> Outputs:
        ids, scores = outputs
        texts = [
            [[self._decode([one]).encode() for one in each] for each in row[places].tolist()]
            for row, places in zip(ids, note, strict=True)
        ]
        best = [row[places] for row, places in zip(scores, note, strict=True)]
        return [padded(texts, b""), padded(best, 0, np.float32)], [len(places) for places in note]

    def present(self, outputs: Mapping[str, Array]) -> Any:
        each = zip(outputs["tokens"], outputs["scores"], strict=True)
        return {"masks": [best_first("token", tokens, scores) for tokens, scores in each]}


def _sigmoid(values: Array) -> Array:
    found: Array = np.exp(-np.logaddexp(0, -values))  # stable for large negative values
    return found


#: From a raw score to a score, by the name of torch's module.
RANKINGS: dict[str, Callable[[Array], Array]] = {"Sigmoid": _sigmoid, "Identity": np.array, "Tanh": np.tanh}


class Ranks(Answers):
    """Raw scores [rows, 1] to a score of each row; `activation`: a name of RANKINGS."""

    def __init__(self, activation: str) -> None:
        super().__init__(task_specs.RANKS)
        self._function = RANKINGS[activation]

    def answer(self, outputs: Sequence[Array], note: Any) -> Outputs:
        raw = outputs[0][:, 0]
        return [self._function(raw), raw], None
