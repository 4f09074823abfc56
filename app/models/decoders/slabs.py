"""Keys and values of rows, one place each, read by transformers' own attention as views.

A slab is one tensor, [layers, 2, places, heads, columns, size]. The rows that run together are at its first places. In
the slab of what decoders have written all of them end at one column: a step writes the next one for every row at once,
and attention reads a view of the window from where the longest row begins. What is left of a shorter row is hidden by a
mask, as in a batch padded on its left, or left out (`attention`). The slab of what an encoder has read is aligned at
its first column instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache


@dataclass(frozen=True, slots=True)
class SlabShape:
    """Of the keys and values of a position of one row."""

    layers: int
    heads: int
    size: int
    dtype: torch.dtype

    @property
    def column_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.size * self.dtype.itemsize


class Slab:
    """`values` [layers, 2, places, heads, columns, size]: keys and values. What a place has beyond its row is noise,
    but finite: masked weights of 0 are multiplied with it."""

    def __init__(self, shape: SlabShape, places: int, columns: int, device: torch.device | None = None) -> None:
        self.shape = shape
        self.columns = columns
        # zeros: the system gives memory to pages when they are first written
        self.values = torch.zeros(
            (shape.layers, 2, places, shape.heads, columns, shape.size), dtype=shape.dtype, device=device
        )

    def copy(self, place: int, end: int, source: Slab, source_place: int, source_end: int, length: int) -> None:
        """Have this place hold, up to column `end`, the last `length` columns before `source_end` of another place,
        which may be the same one."""
        values = source.values[:, :, source_place, :, source_end - length : source_end]
        if source is self and place == source_place:
            if end == source_end:
                return
            values = values.clone()  # they overlap
        self.values[:, :, place, :, end - length : end] = values

    def swap(self, one: int, other: int, columns: slice) -> None:
        """Exchange what two places hold in these columns."""
        values = self.values[:, :, one, :, columns].clone()
        self.values[:, :, one, :, columns] = self.values[:, :, other, :, columns]
        self.values[:, :, other, :, columns] = values

    def move(self, rows: int, start: int, end: int, by: int) -> None:
        """Move the columns from `start` to `end` of the first places by so many columns, layer after layer."""
        for layer in self.values:
            layer[:, :rows, :, start + by : end + by] = layer[:, :rows, :, start:end].clone()


class SlabLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """One layer of a slab, as transformers' attention reads and writes it: the first `rows` places, from column `start`
    to `end`. The base class keeps tensors of its own, which are not used here."""

    is_sliding = False

    def __init__(self, values: torch.Tensor) -> None:
        """`values` [2, places, heads, columns, size]."""
        super().__init__()
        self._values = values
        self.window(0, 0, 0)
        self.is_initialized = True

    def window(self, rows: int, start: int, end: int) -> None:
        """What attention is to read."""
        self._rows, self._start, self._end = rows, start, end
        self.keys, self.values = self._values[:, :rows, :, start:end]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the slab is there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `key_states` and `value_states` [rows, heads, new, size] behind the window; return all of both."""
        new = key_states.shape[2]
        whole = self._values[:, : self._rows, :, self._start : self._end + new]
        whole[0, :, :, -new:] = key_states
        whole[1, :, :, -new:] = value_states
        self.keys, self.values = whole
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns that attention reads with so many new ones, and the first of them as the model counts."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Columns of the window."""
        return self._end - self._start

    def get_max_length(self) -> int:
        """Columns of the slab."""
        return self._values.shape[3]


class SlabCache:
    """Slabs as one cache of transformers. Steps share it; where rows begin, they have one of their own."""

    def __init__(self, own: Slab, read: Slab | None = None) -> None:
        """`own`: what decoders have written; `read`: what an encoder has, None where there is none."""
        self.own, self.read = own, read
        self._own = [SlabLayer(values) for values in own.values]
        self._read = [] if read is None else [SlabLayer(values) for values in read.values]
        cache: Any = Cache(layers=self._own)
        if read is not None:
            cache = EncoderDecoderCache(cache, Cache(layers=self._read))
        self.cache = cache

    def window(self, rows: int, start: int, end: int, read: int = 0) -> Any:
        """What the forward of a model takes as `past_key_values`: these columns of the first places, and `read` columns
        of what the encoder has read, 0 where it is to be written by this forward."""
        for layer in self._own:
            layer.window(rows, start, end)
        for index, layer in enumerate(self._read):
            layer.window(rows, 0, read)
            self.cache.is_updated[index] = read > 0
        return self.cache
