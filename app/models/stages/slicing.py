"""model.toml's `cuts` and `stages`: cuts an nn.Module into stages, and compares these with the whole.

It is cut after the named submodules, or into parts of equal time, measured on this machine. Of places that are about
equally good, one that few tensors cross is chosen.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import Any

import torch
from torch import fx, nn

from app.contract import Model
from app.errors import ConfigError
from app.models.base import one_line
from app.models.checks.calling import compare_with_whole
from app.models.checks.samples import full_lengths, rows_of, short_lengths, stack
from app.models.sources.hubs import ByName
from app.models.stages.graph import CannotCut, Graph, export
from app.models.stages.staged import Staged

log = logging.getLogger("starling.models")

_SIZES = (1, 2, 7)  # rows, beside the largest batch, at which stages are compared with the whole
_ROWS = 3  # to export with; it must differ from all lengths, because torch.export takes equal sizes for one
_TIMED_ROWS = 8  # of the batch whose operators are timed
_ROUNDS = 7
#: Of a stage's time: how much further from equal stages a cut may be for each crossing tensor less.
_PER_TENSOR = 0.02


def sliced(model: Model, stages: int, cuts: Sequence[str] = ()) -> Model:
    """The model with so many stages, or cut after the submodules `cuts`. Stages share its weights; `call` stays whole.

    Raises ConfigError, without file and key, if it cannot be cut so, or if the stages do not answer as it does.
    """
    staged, inputs = _slice(model, stages, cuts), model.info.client_inputs
    spans, sizes = (short_lengths(inputs), full_lengths(inputs)), {*_SIZES, model.info.batching.max_batch}
    compare_with_whole(model, replace(model, call=staged), "stages", sorted(sizes), spans)
    return replace(model, stages=staged.parts)


def _slice(model: Model, number: int, cuts: Sequence[str]) -> Staged:
    module = model.call
    if not isinstance(module, nn.Module):
        raise ConfigError(f"expected a source that returns an nn.Module, got {type(module).__name__}")
    if model.takes_parameters:
        raise ConfigError("expected a model without parameters of requests: what is exported takes tensors alone")
    known = _names(module)
    for name in cuts:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.4) or sorted(known)[:3]
            raise ConfigError(f"expected the name of a submodule, like {', '.join(near)}, got {name!r}")
    graph = _export(model, module)
    places = _after(graph, cuts, known) if cuts else _equal(graph, model, number)
    stages, again, context = graph.cut(places)
    return Staged([stage.eval() for stage in stages], again, context)


def _names(module: nn.Module) -> dict[str, str]:
    """The submodules of the source's module, by name: their names within the called module."""
    inner, prefix = (module.model, "model.") if type(module) is ByName else (module, "")
    return {name: f"{prefix}{name}" for name, _ in inner.named_modules() if name}


def _export(model: Model, module: nn.Module) -> Graph:
    lengths = short_lengths(model.info.client_inputs)
    rows = _ROWS + (_ROWS in lengths.values())
    try:
        return export(module, model.info.inputs, stack(model.info.inputs, rows_of(model, lengths)[:1], rows))
    except Exception as error:  # torch.export raises many types
        raise ConfigError(
            f"expected a model that torch.export takes with a batch of any size, got {one_line(error)}. Take sizes "
            "from x.shape, branch on no values, and let nothing depend on the number of rows; or return Staged([...]) "
            "from the source"
        ) from error


def _after(graph: Graph, names: Sequence[str], known: dict[str, str]) -> list[int]:
    """Places behind these submodules. Raises ConfigError if one has no operators, or cannot be cut there."""
    found: dict[int, str] = {}
    for name in names:
        place = graph.after(known[name])
        if place is None:
            raise ConfigError(f"expected a submodule that computes something, got {name!r}")
        if place >= len(graph.nodes):
            raise ConfigError(f"expected a submodule that something follows, got {name!r}")
        if place in found:
            raise ConfigError(f"expected cuts that differ, got {found[place]!r} and {name!r}, which end together")
        found[place] = name
        try:
            graph.crossing(place)
        except CannotCut as error:
            raise ConfigError(f"expected a place to cut, got {name!r}: {error}") from None
    return sorted(found)


def _equal(graph: Graph, model: Model, stages: int) -> list[int]:
    """Places between parts of the graph that take about the same time."""
    try:
        lengths = short_lengths(model.info.client_inputs)
        size = min(_TIMED_ROWS, model.info.batching.max_batch)
        times = _operator_times(graph, stack(model.info.inputs, rows_of(model, lengths), size))
    except Exception:  # the model may raise on made-up rows
        log.warning("model %s: it raises on made-up rows, so its stages have equally many operators", model.info.name)
        times = [float(node not in graph.derived) for node in graph.nodes]
    crossing: dict[int, int] = {}
    for place in range(1, len(graph.nodes)):
        with suppress(CannotCut):
            crossing[place] = len(graph.crossing(place))
    if len(crossing) < stages - 1:
        raise ConfigError(f"expected fewer stages, got {stages}: it cannot be cut in so many places")
    ends = list(accumulate(times, initial=0.0))
    places: list[int] = []
    for number in range(1, stages):
        behind = [place for place in crossing if place > max(places, default=0)]
        left = behind[: len(behind) - (stages - 1 - number)]  # the others are for later cuts
        worth = {place: abs(ends[place] * stages / ends[-1] - number) + _PER_TENSOR * crossing[place] for place in left}
        places.append(min(left, key=worth.__getitem__))
    return places


def _operator_times(graph: Graph, arguments: Sequence[Any]) -> list[float]:
    """Seconds of each operator, the median of some runs; 0 for those of the context."""
    timer = _Timer(graph.module)
    with torch.inference_mode():
        for _ in range(_ROUNDS + 1):
            timer.run(*arguments)
    return [0.0 if node in graph.derived else median(timer.seconds[node][1:]) for node in graph.nodes]


class _Timer(fx.Interpreter):
    """Runs a graph operator by operator."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[fx.Node, list[float]] = {}

    def run_node(self, n: fx.Node) -> Any:
        begin = time.perf_counter()
        result = super().run_node(n)
        self.seconds.setdefault(n, []).append(time.perf_counter() - begin)
        return result
