"""What worlds are of: models in one piece, in stages and recurrent, and what their rows and answers are.

A bad row makes the model raise at one of its steps, when it has written into its arguments: an odd number for want of
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import nn

from app.contract import UNBOUNDED, Model, ModelSource
from app.models import Recurrent
from app.models.loading import load
from app.scheduler.types import Fault
from tests import tiny_decoders

from ..rig import make_model, recurrent, tensor
from .world import Trips, fault_of

Bad = dict[int, int]
LENGTHS = {"max_batch": 4, "length_buckets": (1, 2), "row_check": "refuse"}


def fail(number: int) -> None:
    raise torch.OutOfMemoryError("too heavy") if fault_of(number) is Fault.OOM else ValueError("poisoned")


class Affine(nn.Module):
    """y = 2 x + 1, written into the same memory for each batch of a size on a thread; it writes into its input, too."""

    def __init__(self, bad: Bad) -> None:
        super().__init__()
        self.bad = bad
        self.memory: dict[tuple[int, int], torch.Tensor] = {}  # two workers at once would share it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = map(int, x[:, 0].tolist()) if self.bad else ()  # a graph may not look at values
        answer = x.mul_(2).add_(1)
        for number in numbers:
            if number in self.bad:
                fail(number)
        return self.memory.setdefault((get_ident(), len(x)), torch.empty_like(answer)).copy_(answer)


def plain(bad: Bad | None = None) -> Trips:
    return Trips(
        make_model(Affine(bad or {}), max_batch=4),
        lambda number: np.array([number, number + 0.5], np.float32),
        lambda number: [np.array([2 * number + 1, 2 * number + 2], np.float32)],
        bad=bad or {},
    )


class Masked(nn.Module):
    """The sum of each row's values, of which a mask tells, and its length a hundredfold; the rows themselves. It writes
    into what is made for it."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor, n: torch.Tensor) -> Any:
        return mask.mul_(x).sum(1, keepdim=True) + n.mul_(100)[:, None], x


def of_lengths(bound: int = 4) -> Trips:
    """Rows of one to four numbers, whose mask and lengths are made; padding is not 0."""
    x, n = tensor("x", "FP32", ("n", bound), pad_value=7), tensor("n", "INT32", lengths_of="n")
    outputs = [tensor("y", "FP32", 1), tensor("z", "FP32", ("n", bound))]
    model = make_model(Masked(), [tensor("mask", "FP32", ("n", bound), mask_of="x"), x, n], outputs, **LENGTHS)
    return Trips(
        model,
        lambda number: np.full(number % 4 + 1, number, np.float32),
        lambda number: [np.array([(number + 100) * (number % 4 + 1)], np.float32), np.full(number % 4 + 1, number)],
    )


def staged(bad: Bad | None = None) -> Trips:
    """y = x + 4 in four stages. Most write into their argument; the last compares what came which way."""
    bad = bad or {}

    def add(x: torch.Tensor, stage: int) -> torch.Tensor:
        numbers = [int(value) - stage for value in x[:, 0].tolist()] if bad else ()  # a graph may not look at values
        x.add_(1)
        for number in numbers:
            if bad.get(number) == stage:
                fail(number)
        return x

    def first(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tenfold = x * 10
        return add(x, 0), tenfold

    def second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return add(x, 1), y

    def third(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return add(x.clone(), 2), y

    def fourth(x: torch.Tensor, y: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
        return add(x, 3) + (y - again * 10) + (x - 4 - again)

    return Trips(
        make_model(stages=[first, second, third, fourth], again=[(), (), (), (0,)], max_batch=4),
        lambda number: np.array([number, number + 0.5], np.float32),
        lambda number: [np.array([number + 4, number + 4.5], np.float32)],
        lambda number: 4,
        bad=bad,
    )


def staged_of_lengths(bound: int = 4) -> Trips:
    """Rows of one to four numbers; padding is not 0 and is masked at the end, by a mask and by a context. What else is
    passed on is always as wide as the longest row, and must stay so."""

    def first(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, mask.sum(1, keepdim=True).expand(-1, 4)

    def second(x: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, wide

    def last(x: torch.Tensor, wide: torch.Tensor, mask: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
        assert wide.shape[1] == 4
        return (x * mask * half * 2).sum(1, keepdim=True)

    x, y = tensor("x", "FP32", ("n", bound), pad_value=7), tensor("y", "FP32", 1)
    model = make_model(
        None, [x, tensor("mask", "FP32", ("n", bound), mask_of="x")], [y], stages=[first, second, last],
        again=[(), (), (1, 2)], context=lambda x, mask: (mask / 2,), **LENGTHS,
    )  # fmt: skip
    return Trips(
        model,
        lambda number: np.full(number % 4 + 1, number, np.float32),
        lambda number: [np.array([(2 * number + 1) * (number % 4 + 1)], np.float32)],
        lambda number: 3,
    )


def cell(module: nn.Module, inputs: Any, outputs: Any, most: int | None = None) -> Model:
    return recurrent(Recurrent(module, ((),), most), inputs, outputs, row_check="refuse")


POISON = -1000.0  # less the number of the row


class Sums(nn.Module):
    """What a row has read, at each of its steps and in all. It writes into its state."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))
        self.looks = looks

    def step(self, x: torch.Tensor, state: Any) -> Any:
        total = state[0].add_(x * self.one)
        for value in x.tolist() if self.looks else ():
            if value <= POISON:
                fail(int(POISON - value))
        return (total, total), (total,)


def sums(bad: Bad | None = None, bound: int = 6, most: int | None = None) -> Trips:
    """Rows of one to six numbers. A bad one is poisoned at one of its steps."""
    bad = bad or {}
    every = tensor("every", "FP32", ("n", bound)) if most is None else tensor("every", "FP32", ("steps", 0))
    x = tensor("x", "FP32", ("n", bound), pad_value=7)
    model = cell(Sums(bool(bad)), [x], [every, tensor("last", "FP32")], most)

    def rows(number: int) -> np.ndarray:
        values = np.arange(number, number + (6 if number in bad else 1 + number % 6), dtype=np.float32)
        if number in bad:
            values[bad[number]] = POISON - number
        return values

    def expected(number: int) -> list[np.ndarray]:
        totals = rows(number)[:most].cumsum()
        return [totals, totals[-1]]

    return Trips(model, rows, expected, lambda number: len(rows(number)[:most]), cells=True, bad=bad)


class Counts(nn.Module):
    """Feeds itself: counts down to 0, and says so, each time in the same memory. `finish` makes the outputs."""

    def __init__(self, bad: Bad) -> None:
        super().__init__()
        self.bad = bad
        self.one = nn.Parameter(torch.ones((), dtype=torch.int64), requires_grad=False)
        self.counts, self.flags = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.bool)

    def start(self, first: torch.Tensor) -> Any:
        return None, (first,)

    def step(self, x: None, state: Any) -> Any:
        count, rows = state[0].clone(), len(state[0])
        flags = self.flags[:rows].copy_(count == 0)
        return count, (self.counts[:rows].copy_(count - self.one),), flags

    def finish(self, state: Any, ys: torch.Tensor, lengths: torch.Tensor) -> Any:
        for value in ys[:, 0].tolist():
            if value >= 40:
                fail(value)
        return ys * 10, state[0] + lengths


def counts(bad: Bad | None = None) -> Trips:
    """Rows that make one to five steps, or as many as are allowed. A bad one fails when it is finished."""
    bad = bad or {}
    outputs = [tensor("every", "INT64", ("steps", 0)), tensor("all", "INT64")]
    model = cell(Counts(bad), [tensor("n", "INT64")], outputs, 5)

    def first(number: int) -> int:
        return number if number in bad else number % 7

    def expected(number: int) -> list[np.ndarray]:
        ran = list(range(first(number), -1, -1))[:5]
        return [np.array(ran) * 10, np.array(ran[-1] - 1 + len(ran))]

    return Trips(
        model, lambda number: np.array(first(number)), expected, lambda number: min(first(number) + 1, 5), cells=True,
        bad=bad,
    )  # fmt: skip


@cache
def writer(kind: str) -> tuple[TemporaryDirectory[str], Model]:
    folder = TemporaryDirectory()
    tiny_decoders.save(Path(folder.name), kind, 6)
    return folder, load(ModelSource("writer", 1, Path(folder.name)), {"max_batch": 4})


@cache
def texts(kind: str) -> Trips:
    """Texts of up to six tokens. What is expected is written alone, as a whole."""
    model = writer(kind)[1]
    call = model.call

    def rows(number: int) -> np.ndarray:
        return np.arange(number, number + 1 + number % 5, dtype=np.int64) % 200 + 2

    @cache
    def expected(number: int) -> list[np.ndarray]:
        ids = torch.from_numpy(rows(number))[None]
        with torch.inference_mode():
            return [values[0] for values in call(ids, torch.ones_like(ids), parameters=[{}])]

    return Trips(model, rows, expected, lambda number: 6, cells=True, own_steps=True)


WRITERS = {"decoder": lambda: texts("gpt2"), "decoder behind an encoder": lambda: texts("t5")}

MODELS: dict[str, Callable[[], Trips]] = {
    "whole": plain,
    "whole, lengths": of_lengths,
    "whole, lengths without bound": lambda: of_lengths(UNBOUNDED),
    "stages": staged,
    "stages, lengths": staged_of_lengths,
    "stages, lengths without bound": lambda: staged_of_lengths(UNBOUNDED),
    "cell": sums,
    "cell, shortened": lambda: sums(most=3),
    "cell that ends rows by itself": counts,
}

#: By model, the numbers of bad rows and the step at which they fail.
FAILING: dict[str, Callable[[], Trips]] = {
    "whole": lambda: plain({102: 0, 105: 0, 109: 0}),
    "stages": lambda: staged({103: 0, 106: 1, 110: 2, 113: 3, 116: 1}),
    "cell": lambda: sums({103: 0, 106: 2, 109: 1, 113: 5}),
    "cell that ends rows by itself": lambda: counts({104: 4, 107: 4}),
}
