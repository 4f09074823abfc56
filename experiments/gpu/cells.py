"""An LSTM and a small decoder step by step through the engine, against whole padded batches (Late Batching).

The rows always wait; their lengths are like those of WMT's sentences. The whole batches are a loop of bare torch over
rows in order of arrival, each batch padded to its longest row: no engine and no queue, so the most that such a server
can do. `step graph`: a CUDA graph of one padded step, replayed as often as the longest row needs; `whole`: one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from app.contract import Checks, Model
from app.models import Recurrent
from app.models.recurrent.cells import CellModel
from app.models.recurrent.layer_steps import TorchSteps
from app.models.recurrent.rnn import by_its_layer
from experiments.gpu.blocks import Block, Data
from experiments.gpu.card import HostCard, card_of
from experiments.gpu.engines import Setup, built, engine_of, model_of, ready, started, tensor
from experiments.gpu.loads import Rate, closed_loop, ids_of, open_loop
from experiments.gpu.networks import Decoder, Reader
from loadtest.generator.run import in_loop
from planner.drawn_lengths import Lengths

LONGEST = 128
LENGTHS = f"lognormal:22:0.65:1:{LONGEST}"
_SHARE = 0.5

Batch = tuple[torch.Tensor, torch.Tensor]  # padded ids [rows, longest], and the place of each row's last token


def measure(block: Block) -> None:
    largest = 4 if block.quick else 32
    lengths = Lengths(LENGTHS, [0]).draw(20 * largest).tolist()
    block.keep(lengths=LENGTHS, largest=largest, models={})
    card = card_of(block)
    makers: dict[str, Callable[[], nn.Module]] = {
        "lstm": lambda: Reader(32 if block.quick else 1024),
        "decoder": lambda: Decoder(LONGEST, *((32, 2) if block.quick else ())),
    }
    for name, make in makers.items():
        if not block.fits(name, 14):
            continue
        with block.noting(name):
            of: Data = {}
            block.found["models"][name] = of
            module = built(block, make).eval().to(card.half)
            card.sync()
            with torch.inference_mode():
                of["whole_rows_s"] = _whole(block, card, module, _batches(card, lengths, largest))
            block.keep()
            of["cells"] = in_loop(_by_steps(block, module, name, largest, lengths))


# whole padded batches


def _batches(card: HostCard, lengths: list[int], largest: int) -> list[Batch]:
    found = []
    for first in range(0, len(lengths), largest):
        some = torch.tensor(lengths[first : first + largest], device=card.device)
        padded = torch.randint(1, 10_000, (len(some), int(some.max())), dtype=torch.int32, device=card.device)
        found.append((padded, some - 1))
    return found


def _whole(block: Block, card: HostCard, module: Any, batches: list[Batch]) -> Data:
    """Rows a second of each way."""
    stream = card.stream()
    ways: dict[str, Callable[[Batch], object]] = {}
    if isinstance(module, Reader):
        module.lstm.flatten_parameters()
        ways["whole"] = lambda batch: module.padded(*batch)
        ways["step graph"] = _replayed(card, stream, _LstmStep(module), len(batches[0][0]))
    else:
        ways["step graph"] = _replayed(card, stream, module, len(batches[0][0]))
    return {name: _rate(block, card, stream, run, batches) for name, run in ways.items()}


def _rate(block: Block, card: HostCard, stream: Any, run: Callable[[Batch], object], batches: list[Batch]) -> float:
    rows, seconds, at = 0, block.seconds(1.5), 0
    card.sync()
    with card.on(stream):
        run(batches[0])
        stream.synchronize()
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            run(batches[at % len(batches)])
            stream.synchronize()  # its answers are given before the next batch is formed
            rows += len(batches[at % len(batches)][0])
            at += 1
        return round(rows / (time.perf_counter() - begun), 1)


class _LstmStep:
    """A step of a Reader by the operations that the engine's steps are made of. The interface of Decoder."""

    def __init__(self, module: Reader) -> None:
        self._embedding, self._steps = module.embedding, TorchSteps(module.lstm)
        self.state = tuple((module.lstm.hidden_size,) for _ in range(2 * module.lstm.num_layers))

    def step(self, ids: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[Any, tuple[torch.Tensor, ...]]:
        y, after = self._steps.stride(self._embedding(ids)[None], state)
        return y[0], after


def _replayed(card: HostCard, stream: Any, cell: Any, rows: int) -> Callable[[Batch], object]:
    """One padded step as a graph that reads and writes its own state."""
    token = torch.zeros(rows, dtype=torch.int32, device=card.device)
    state = [torch.zeros((rows, *shape), dtype=card.half, device=card.device) for shape in cell.state]

    def step() -> None:
        _, after = cell.step(token, tuple(state))
        for old, new in zip(state, after, strict=True):
            old.copy_(new)

    replay = card.capture(step, stream)

    def run(batch: Batch) -> None:
        padded, _ = batch
        for value in state:
            value.zero_()
        for column in padded.unbind(1):
            token[: len(column)].copy_(column)
            replay()

    return run


# step by step, through the engine


async def _by_steps(block: Block, module: Any, name: str, largest: int, lengths: list[int]) -> Data:
    found: Data = {}
    begun, seconds = time.monotonic(), block.seconds(2.0)
    calls = ids_of(lengths, "tokens")
    async with engine_of(block, Setup((largest,))) as engine:
        served = await started(engine, _model(module, name, largest))
        await ready(engine, served, 1.0)
        found["load_s"] = round(time.monotonic() - begun, 1)
        found["closed"] = await closed_loop(served, calls, 4 * largest, seconds)
        found["steps_s"] = round(found["closed"]["rows_s"] * float(np.mean(lengths)), 1)
        block.keep()
        found["open"] = await open_loop(served, calls, Rate(_SHARE * found["closed"]["rows_s"] + 1), seconds)
    return found


def _model(module: Any, name: str, largest: int) -> Model:
    inputs = [tensor("ids", "INT32", ("tokens", LONGEST), minimum=0, maximum=9_999)]
    outputs = [tensor("y", "FP32", 10 if name == "lstm" else 1)]
    plain = model_of(module, inputs, outputs, name=name, policy="late", max_batch=largest)
    declared = by_its_layer(module, plain.info) if name == "lstm" else Recurrent(module, module.state)
    call = CellModel(declared, plain.info)
    info = call.info
    return Model(info, call, checks=Checks(row_check="off"))
