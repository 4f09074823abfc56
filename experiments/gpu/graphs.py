"""A network on the card as CUDA graphs of its stages, for what is measured by torch alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from experiments.gpu.blocks import Block
from experiments.gpu.card import HostCard, Replay
from experiments.gpu.networks import BASE, LARGE, TINY, TOKENS, WORDS, bert, cut, resnet50


class OnCard:
    """A network of one `kind`: resnet50, bert or bert large. `rows` makes inputs, `graphs` captures."""

    def __init__(self, block: Block, card: HostCard, kind: str, dtype: torch.dtype) -> None:
        self.card = card
        self.kind = kind
        self._side = 32 if block.quick else 224
        with card.device:
            if kind == "resnet50":
                self.parts = resnet50(quick=block.quick)
            else:
                self.parts = bert(TINY if block.quick else LARGE if kind == "bert large" else BASE)
        nn.ModuleList(self.parts).to(dtype)

    def rows(self, count: int) -> torch.Tensor:
        shape, most = ((count, 3, self._side, self._side), 255) if self.kind == "resnet50" else ((count, TOKENS), WORDS)
        dtype = torch.uint8 if self.kind == "resnet50" else torch.int32
        return torch.randint(0, most, shape, dtype=dtype, device=self.card.device)

    def whole(self) -> nn.Module:
        return cut(self.parts, 1)[0]

    def graphs(self, count: int, stages: int, stream: Any) -> tuple[list[Replay], torch.Tensor, torch.Tensor]:
        """Replays of at most so many stages for `count` rows, in one pool; the input, and the last output."""
        given = x = self.rows(count)
        pool = self.card.pool()
        replays = []
        for stage in cut(self.parts, stages):
            replay, x = self.card.capture(partial(stage, x), stream, pool)
            replays.append(replay)
        return replays, given, x


def run_all(replays: Sequence[Replay]) -> None:
    """One behind another, on the current stream."""
    for replay in replays:
        replay()
