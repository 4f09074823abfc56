"""The networks that are measured, by their shapes, with random weights: ResNet-50, BERT, an LSTM, a small decoder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from torch import nn

WORDS = 30_522
TOKENS = 128


# ResNet-50


class Bottleneck(nn.Module):
    def __init__(self, wide: int, mid: int, out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            *_conv(wide, mid, 1), nn.ReLU(), *_conv(mid, mid, 3, stride), nn.ReLU(), *_conv(mid, out, 1)
        )
        self.side = nn.Identity() if wide == out and stride == 1 else nn.Sequential(*_conv(wide, out, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.main(x) + self.side(x))


def _conv(wide: int, out: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(wide, out, size, stride, size // 2, bias=False), nn.BatchNorm2d(out)


class Pixels(nn.Module):
    """uint8 [n, 3, h, w] -> the network's floating-point input, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1 / 255), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(self.scale.dtype) * self.scale).contiguous(memory_format=torch.channels_last)


def resnet50(*, quick: bool = False) -> list[nn.Module]:
    """The parts of a ResNet-50 that takes uint8 images; `quick`: of a tiny one."""
    base, depths = (8, (1, 1)) if quick else (64, (3, 4, 6, 3))
    parts: list[nn.Module] = [
        nn.Sequential(Pixels(), *_conv(3, base, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
    ]
    wide = base
    for level, depth in enumerate(depths):
        mid = base << level
        for at in range(depth):
            parts.append(Bottleneck(wide, mid, 4 * mid, 2 if at == 0 and level else 1))
            wide = 4 * mid
    parts.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000)))
    for part in parts:
        part.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return parts


# BERT


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int


BASE, LARGE, TINY = Shape(12, 768, 12), Shape(24, 1024, 16), Shape(4, 32, 2)


class Embedding(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.words(ids) + self.places.weight[: ids.shape[1]])


class Layer(nn.Module):
    """hidden [n, tokens, width], and a mask [n, tokens] of 1 and 0 where rows are padded -> hidden."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        keep = None if mask is None else mask[:, None, None, :].bool()
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(1, 2).reshape(x.shape)
        x = self.first(x + self.project(seen))
        return self.second(x + self.down(F.gelu(self.up(x))))


class First(nn.Module):
    """hidden [n, tokens, width] -> [n, width] of the first token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]


class Several(nn.Module):
    """Parts that run one after another; layers also get the mask, if there is one."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        for part in self.parts:
            x = part(x, mask) if isinstance(part, Layer) else part(x)
        return x


def bert(shape: Shape) -> list[nn.Module]:
    """The parts of an encoder that takes ids, int32 or int64 [n, tokens]."""
    parts = [Embedding(shape.width), *(Layer(shape) for _ in range(shape.layers)), First()]
    return [part.eval() for part in parts]


def cut(parts: Sequence[nn.Module], stages: int) -> list[nn.Module]:
    """At most so many stages of about equally many parts."""
    stages = min(stages, len(parts))
    ends = [round(at * len(parts) / stages) for at in range(stages + 1)]
    return [Several(parts[first:end]) for first, end in pairwise(ends)]


def whole_bert(quick: bool = False) -> nn.Module:
    """BERT-base in one piece, from a seed: the factory that model.toml and the other servers call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Several(bert(TINY if quick else BASE))


# recurrent


class Reader(nn.Module):
    """An LSTM over int32 ids [n, tokens] of padded rows, with each row's length -> logits [n, 10]."""

    def __init__(self, width: int, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(self.embedding(ids))
        return self.head(hidden[-1])

    def padded(self, ids: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """`last` [n]: the place of each row's last token."""
        every, _ = self.lstm(self.embedding(ids))
        own = every.gather(1, last[:, None, None].expand(-1, 1, every.shape[2]))
        return self.head(own[:, 0])


class Decoder(nn.Module):
    """A small causal decoder as a cell: a step reads one token of each row, and attends to what the row has read.

    The state of a row: how far it is [1], and per layer its keys and values [2, longest, width].
    """

    def __init__(self, longest: int, width: int = 256, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.longest, self.heads, self.width = longest, heads, width
        self.embedding, self.head = nn.Embedding(10_000, width), nn.Linear(width, 1)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.register_buffer("columns", torch.arange(longest, dtype=torch.float32), persistent=False)
        self.columns: torch.Tensor

    @property
    def state(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of a row's state."""
        return ((1,), *((2, self.longest, self.width) for _ in self.qkv))

    def start(self, ids: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        rows, like = ids.shape[0], self.head.weight
        return ids, tuple(like.new_zeros((rows, *shape)) for shape in self.state)

    def step(self, ids: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        at, *kept = state
        rows, here = ids.shape[0], self.columns == at  # [rows, longest]
        seen = (self.columns <= at)[:, None, None, :]
        x = self.embedding(ids)
        after = [at + 1]
        for layer, old in enumerate(kept):
            q, k, v = self.qkv[layer](self.norm[layer](x)).chunk(3, dim=-1)
            new = torch.where(here[:, None, :, None], torch.stack((k, v), 1)[:, :, None, :], old)
            keys, values = new.view(rows, 2, self.longest, self.heads, -1).permute(1, 0, 3, 2, 4)
            read = F.scaled_dot_product_attention(q.view(rows, self.heads, 1, -1), keys, values, attn_mask=seen)
            x = x + self.out[layer](read.reshape(rows, self.width))
            after.append(new)
        return self.head(x), tuple(after)
