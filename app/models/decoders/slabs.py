"""Keys and values of rows, one place each, read by transformers' own attention as views.

A slab is one tensor, [layers, 2, places, heads, columns, size]. The rows that run together are at its first places and
end at one column: a step writes the next one for every row, and attention reads a view that begins where the longest
row does. In the slab of an encoder's output rows begin at the first column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "starling"
_LARGE = 32 << 20  # bytes: malloc, too, maps larger blocks anew each time (see app/process.py)
_CALL = 20_000  # keys, with their values, that are read in the time of one more call: about 25 us


class SlabShape:
    """The shape of the keys and values of one position of a row, by a model's `config`."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        own = config.get_text_config(decoder=True)
        # T5's decoder has its own number
        self.layers: int = getattr(config, "num_decoder_layers", None) or own.num_hidden_layers
        self.heads: int = getattr(own, "num_key_value_heads", None) or own.num_attention_heads
        self.size: int = getattr(own, "head_dim", None) or own.hidden_size // own.num_attention_heads
        self.dtype = dtype

    @property
    def column_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.size * self.dtype.itemsize


class Slab:
    """`values` [layers, 2, places, heads, columns, size]: keys and values.

    Columns beyond a row hold old values. They must be finite: attention multiplies them by masked weights of 0.
    """

    def __init__(self, shape: SlabShape, places: int, columns: int, device: torch.device | None = None) -> None:
        self.shape = shape
        self.columns = columns
        self.values = _zeros((shape.layers, 2, places, shape.heads, columns, shape.size), shape.dtype, device)

    def copy(self, place: int, end: int, source: Slab, source_place: int, source_end: int, length: int) -> None:
        """Copy the `length` columns before `source_end` of a place of `source` to this place, where they end at `end`.

        Both places may be the same.
        """
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
        """Move the columns `start` to `end` of the first places by so many columns, layer after layer."""
        for layer in self.values:
            layer[:, :rows, :, start + by : end + by] = layer[:, :rows, :, start:end].clone()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
    """On a CPU, of much memory the system maps only the pages that are written: torch.zeros writes all of them."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or (device is not None and device.type != "cpu"):
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype=dtype).view(shape)


class SlabLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers has no types
    """One layer of a slab behind the interface of transformers' cache. The base class's own tensors are not used."""

    is_sliding = False

    def __init__(self, values: torch.Tensor) -> None:
        """`values` [2, places, heads, columns, size]."""
        super().__init__()
        self._values = values
        self.window(0, 0, 0)
        self.is_initialized = True

    def window(self, rows: int, start: int, end: int) -> None:
        """Set what attention reads: the first `rows` places, columns `start` to `end`."""
        self._rows, self._start, self._end = rows, start, end
        self.keys, self.values = self._values[:, :rows, :, start:end]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the slab is already allocated."""

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
        """The number of columns that attention reads with the new ones, and the offset of the first."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Columns of the window."""
        return self._end - self._start

    def get_max_length(self) -> int:
        """Columns of the slab."""
        return self._values.shape[3]

    get_max_cache_shape = get_max_length  # its name in older releases of transformers


class SlabCache:
    """Slabs as one cache of transformers. Steps share one; rows that are prefilled have one of their own."""

    def __init__(self, own: Slab, read: Slab | None = None) -> None:
        """`own`: the decoder's keys and values; `read`: those of the encoder's output, None without an encoder."""
        self._own = [SlabLayer(values) for values in own.values]
        self._read = [] if read is None else [SlabLayer(values) for values in read.values]
        cache: Any = Cache(layers=self._own)
        if read is not None:
            cache = EncoderDecoderCache(cache, Cache(layers=self._read))
            cache.is_updated = dict.fromkeys(range(len(self._read)), True)  # no forward is to write them
        self.cache = cache

    def window(self, rows: int, start: int, end: int, read: int = 0) -> Any:
        """The cache of a forward: these columns of the first places, and `read` of the encoder's output."""
        for layer in self._own:
            layer.window(rows, start, end)
        for layer in self._read:
            layer.window(rows, 0, read)
        return self.cache


# attention


class Columns:
    """The columns that each row of a step reads: of the decoder's keys and values, and of the encoder's.

    None: one call reads those of all rows.
    """

    def __init__(self, written: Sequence[int], read: Sequence[int], width: int) -> None:
        """`written` rows end at the last column, `read` rows begin at the first. `width`: values of a column."""
        self.own = [slice(-length, None) for length in written] if _apart(written, width) else None
        self.read = [slice(length) for length in read] if _apart(read, width) else None


def _apart(lengths: Sequence[int], width: int) -> bool:
    hidden = max(lengths) * len(lengths) - sum(lengths)
    return hidden * width > _CALL * len(lengths)


def attend_by_rows(model: Any) -> None:
    """Make a model of transformers use this attention: it applies to forwards that get `columns`."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, sdpa_mask)
    model.set_attn_implementation(_NAME)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    position_bias: torch.Tensor | None = None,
    columns: Columns | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of transformers; its own one is called if one call reads for all rows."""
    own = None if columns is None else columns.own if module.is_causal else columns.read
    if own is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, position_bias=position_bias, **given
        )
    parts = zip(*(torch.split(each, 1) for each in (query, key, value)), own, strict=True)
    read = [
        functional.scaled_dot_product_attention(
            one, keys[:, :, cut], values[:, :, cut], scale=given["scaling"], enable_gqa=query.shape[1] != key.shape[1],
            attn_mask=None if position_bias is None else position_bias[..., cut],
        )
        for one, keys, values, cut in parts
    ]  # fmt: skip
    return torch.cat(read).transpose(1, 2), None
