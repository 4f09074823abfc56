"""A decoder of transformers, run step by step for rows that are at any positions: their forward, our cache and mask.

A row first reads what it was sent, with other rows of about its length and in pieces: its encoder does, some of its
layers at a time, or its decoder all of a prompt but the last token, some of them at a time. Each `step` then reads one
token of every row of a window and gives the next, the first step of a row with others' later ones. What chooses the
tokens is `choosing`; which rows run together, and where they lie in the slabs, is for whoever calls.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from app.errors import ConfigError
from app.models.decoders.attention import Columns, attend_by_rows
from app.models.decoders.packing import pack
from app.models.decoders.slabs import Slab, SlabCache, SlabShape

#: By the model type of its configuration. With an encoder: what the list of its layers is called, what each layer's
#: attention to it is, and in that the layers that make keys and values.
ENCODER_DECODERS = {
    "t5": ("block", "EncDecAttention", "k", "v"),
    "marian": ("layers", "encoder_attn", "k_proj", "v_proj"),
}
DECODERS_ONLY = ("gpt2", "llama", "mistral", "qwen2")
SUPPORTED = (*ENCODER_DECODERS, *DECODERS_ONLY)
_BY_LONGEST = ("dynamic", "longrope")  # ways to turn positions that depend on the longest row of a batch


class Begun(NamedTuple):
    """Rows that have read all but the token that their first step reads: what their places are to hold.

    In `own` row r is place r, all ending at its last column; None where nothing is in it. `read` is the encoder's, from
    the first column on, None without one. `written` and `has_read` are the columns of each row in both.
    """

    own: Slab | None
    read: Slab | None
    written: list[int]
    has_read: list[int]


class _RowPositions(nn.Module):
    """Marian's sinusoids of the positions of each row; its decoder counts those of the window for all rows alike."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.of = threading.local()  # `positions` [rows, new] of the forward that this thread runs

    def forward(self, shape: Any, before: int = 0, position_ids: torch.Tensor | None = None) -> Any:
        weights: Any = self.table.weight
        return nn.functional.embedding(self.of.positions, weights)


class _EncoderLayers(nn.Module):
    """The layers of an encoder, in place of its own list: all run, or the next ones of what this thread encodes."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers
        self.of = threading.local()  # `encoding` of the forward that this thread runs

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, *given: Any, **named: Any) -> Any:
        """T5's are given more, of which the first is what their first layer makes of positions."""
        encoding: Encoding | None = getattr(self.of, "encoding", None)
        layers = self.layers
        if encoding is not None:
            layers, (hidden, given) = layers[encoding.part], encoding.made or (hidden, given)
        for layer in layers:
            made = layer(hidden, mask, *given, **named)
            hidden, given = (made[0], (made[1], *given[1:])) if given else (made, ())
        if encoding is not None:
            encoding.made = hidden, given
        return (hidden, None, None) if given else hidden


class DecoderModel(nn.Module):
    """A causal or encoder-decoder model of transformers. Nothing is kept between calls but in the slabs."""

    def __init__(self, model: Any) -> None:
        """Raises ConfigError for an architecture that is not known to run so."""
        super().__init__()
        config = model.config
        if config.model_type not in SUPPORTED:
            raise ConfigError(f"expected a decoder of {', '.join(SUPPORTED)}, got {config.model_type}")
        if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
            raise ConfigError(f"expected attention without a sliding window, got {config.sliding_window}")
        turned = getattr(config, "rope_parameters", None) or {}
        if turned.get("rope_type") in _BY_LONGEST:
            raise ConfigError(f"expected positions that no other row changes, got rope_type {turned['rope_type']!r}")
        pack(model)
        attend_by_rows(model)
        self.model = model
        self.encodes = config.model_type in ENCODER_DECODERS
        self.start = self._start()
        self.shape = _slab_shape(config, self.encodes, next(model.parameters()).dtype)
        self.reads = self._keys_and_values() if self.encodes else []
        self.layers = self._encoder_layers() if self.encodes else None
        self.encoder_layers = 0 if self.layers is None else len(self.layers.layers)
        self._positions: _RowPositions | None = None
        if config.model_type == "marian":
            decoder = model.model.decoder
            decoder.embed_positions = self._positions = _RowPositions(decoder.embed_positions)

    def _start(self) -> int:
        """The token that a decoder behind an encoder begins with."""
        if not self.encodes:
            return -1
        start = self.model.generation_config.decoder_start_token_id
        if start is None:
            start = self.model.config.decoder_start_token_id
        if not isinstance(start, int):
            raise ConfigError(f"expected a decoder_start_token_id, got {start}")
        return start

    def _keys_and_values(self) -> list[tuple[nn.Module, nn.Module]]:
        """Of each layer, what makes its keys and values of what the encoder gives."""
        _, attention, keys, values = ENCODER_DECODERS[self.model.config.model_type]
        layers = self.model.get_decoder().named_modules()
        found = [layer for name, layer in layers if name.rpartition(".")[2] == attention]
        return [(getattr(layer, keys), getattr(layer, values)) for layer in found]

    def _encoder_layers(self) -> _EncoderLayers:
        name, encoder = ENCODER_DECODERS[self.model.config.model_type][0], self.model.get_encoder()
        layers = _EncoderLayers(getattr(encoder, name))
        setattr(encoder, name, nn.ModuleList([layers]))
        return layers

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    def begin(self, ids: torch.Tensor, lengths: Sequence[int]) -> Begun:
        """Rows of `ids` [rows, longest], padded behind their `lengths`, before their first step."""
        reading = self.reading(ids, lengths)
        while (begun := reading.advance(ids.shape[1])) is None:
            pass
        return begun

    def reading(self, ids: torch.Tensor, lengths: Sequence[int]) -> Encoding | Prompts:
        """The same in pieces."""
        return Encoding(self, ids, lengths) if self.encodes else Prompts(self, ids, lengths)

    def step(
        self, tokens: torch.Tensor, cache: SlabCache, end: int, written: Sequence[int], read: Sequence[int]
    ) -> torch.Tensor:
        """One more token each, `tokens` [rows], for the rows at the first places -> logits [rows, words] of the next.

        All of them end at column `end`, where it is written; `written` and `read` [rows] are the columns that each has
        in both slabs.
        """
        longest, most_read = max(written), max(read)
        lengths = [length + 1 for length in written]
        mask = _mask(lengths, longest + 1, tokens.device).flip(1)
        positions = torch.tensor(written, device=tokens.device)[:, None]
        keys = cache.window(len(tokens), end - longest, end, most_read)
        columns = Columns.of(lengths, read, self.shape.heads * self.shape.size)
        if not self.encodes:
            return self.forward(tokens[:, None], keys, mask, positions, columns)
        seen = _mask(read, most_read, tokens.device)
        # the layers ask whether there is an encoder, and how long it is; its keys and values are in the cache
        encoded = (self.model.get_input_embeddings().weight[:1, None].expand(len(tokens), most_read, -1),)
        return self.forward(tokens[:, None], keys, mask, positions, columns, seen, encoded)

    def whole(self, ids: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The model's own forward of one row, at once and without a cache -> logits [columns, words], each of the next
        token. `ids` [1, longest]: what its encoder reads, if it has one; `own` [1, columns]: what its decoder does."""
        if not self.encodes:
            return self.model(input_ids=own, use_cache=False).logits[0]  # type: ignore[no-any-return]
        if self._positions is not None:
            self._positions.of.positions = torch.arange(own.shape[1], device=own.device)[None]
        return self.model(input_ids=ids, decoder_input_ids=own, use_cache=False).logits[0]  # type: ignore[no-any-return]

    def slab(self, places: int, columns: int) -> Slab:
        return Slab(self.shape, places, columns, self.device)

    def cache(self, own: Slab, read: Slab | None) -> SlabCache:
        return SlabCache(own, read)

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Any,
        mask: torch.Tensor,
        positions: torch.Tensor,
        columns: Columns,
        seen: torch.Tensor | None = None,
        encoded: Any = None,
    ) -> torch.Tensor:
        """Logits [rows, words] of the last token of each row."""
        if encoded is None:
            return self.model(  # type: ignore[no-any-return]
                input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                columns=columns,
            ).logits[:, -1]  # fmt: skip
        if self._positions is not None:
            self._positions.of.positions = positions
        return self.model(  # type: ignore[no-any-return]
            decoder_input_ids=tokens, decoder_attention_mask=mask, attention_mask=seen, encoder_outputs=encoded,
            past_key_values=cache, use_cache=True, columns=columns,
        ).logits[:, -1]  # fmt: skip

    def read(self, encoded: torch.Tensor) -> Slab:
        """The keys and values, of every layer, of what the encoder gives: [rows, longest, width]."""
        rows, longest, _ = encoded.shape
        slab = self.slab(rows, longest)
        for layer, products in zip(slab.values, self.reads, strict=True):
            for part, product in zip(layer, products, strict=True):
                part.copy_(product(encoded).view(rows, longest, self.shape.heads, -1).transpose(1, 2))
        return slab

    def prompt(self, ids: torch.Tensor, cache: Any, mask: torch.Tensor, positions: torch.Tensor) -> None:
        """Have the cache hold so many columns more, of `ids` [rows, new]."""
        self.model.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )


class Encoding:
    """Rows that an encoder reads, some layers at a time: each token attends to those behind it."""

    def __init__(self, model: DecoderModel, ids: torch.Tensor, lengths: Sequence[int]) -> None:
        self._model, self._ids, self._lengths = model, ids, lengths
        self.left = ids.shape[1]  # columns
        self.part = slice(0, 0)  # the layers that run next
        self.made: tuple[torch.Tensor, tuple[Any, ...]] | None = None  # what those before them have made

    def advance(self, columns: int) -> Begun | None:
        """Run as many layers more as take what all of them take for so many columns. What has begun, after the last."""
        rows, longest = self._ids.shape
        layers, count = self._model.layers, self._model.encoder_layers
        assert layers is not None
        begin = self.part.stop
        end = min(count, begin + max(1, columns * count // longest))
        self.part, layers.of.encoding = slice(begin, end), self
        try:
            mask = _mask(self._lengths, longest, self._ids.device)
            encoded = self._model.model.get_encoder()(input_ids=self._ids, attention_mask=mask)[0]
        except Exception:
            self.part = slice(begin, begin)
            raise
        finally:
            layers.of.encoding = None
        self.left = longest * (count - end) // count
        return Begun(None, self._model.read(encoded), [0] * rows, list(self._lengths)) if end == count else None


class Prompts:
    """Prompts but for their last tokens, read in pieces: rows padded on the left, some columns at a time."""

    def __init__(self, model: DecoderModel, ids: torch.Tensor, lengths: Sequence[int]) -> None:
        self._model, self._lengths = model, [length - 1 for length in lengths]
        rows, longest = len(lengths), max(self._lengths)
        self._ids = ids.new_zeros((rows, longest))
        for row, length in enumerate(self._lengths):
            self._ids[row, longest - length :] = ids[row, :length]
        self._mask = _mask(self._lengths, longest, ids.device).flip(1)
        self._positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        self._own = model.slab(rows, longest)
        self._cache = SlabCache(self._own)
        self.left = longest  # columns

    def advance(self, columns: int) -> Begun | None:
        """Read up to so many columns more. What has begun, after the last of them."""
        rows, longest = self._ids.shape
        begin = longest - self.left
        end = min(longest, begin + max(1, columns))
        if begin < end:
            cache = self._cache.window(rows, 0, begin)
            self._model.prompt(self._ids[:, begin:end], cache, self._mask[:, :end], self._positions[:, begin:end])
        self.left = longest - end
        return Begun(self._own, None, self._lengths, [0] * rows) if end == longest else None


def _mask(lengths: Sequence[int], longest: int, device: torch.device) -> torch.Tensor:
    """[rows, longest], 1 up to each length."""
    return (torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]).long()


def _slab_shape(config: Any, encodes: bool, dtype: torch.dtype) -> SlabShape:
    if config.model_type == "t5":
        return SlabShape(config.num_decoder_layers, config.num_heads, config.d_kv, dtype)
    if encodes:
        return SlabShape(
            config.decoder_layers,
            config.decoder_attention_heads,
            config.d_model // config.decoder_attention_heads,
            dtype,
        )
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return SlabShape(config.num_hidden_layers, getattr(config, "num_key_value_heads", None) or heads, size, dtype)
