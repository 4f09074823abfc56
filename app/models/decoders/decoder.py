"""A decoder of transformers, run step by step for rows at any positions: transformers' forward, our cache and mask.

A row is first prefilled, with other rows of about its length and in pieces: some layers of an encoder at a time, or
some tokens of the prompt without its last. Each `step` then reads one token of every row and returns the logits of the
next; rows may be at different steps. `sampling` chooses the tokens, `places` where rows are in the slabs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn

from app.errors import ConfigError
from app.models.decoders.slabs import Columns, Slab, SlabCache, SlabShape, attend_by_rows
from app.models.packed_weights import pack

#: By model type: the names of the encoder's list of layers, of the decoder's attention to it, and of the linear layers
#: in that which make keys and values.
ENCODER_DECODERS = {
    "t5": ("block", "EncDecAttention", "k", "v"),
    "marian": ("layers", "encoder_attn", "k_proj", "v_proj"),
}
DECODERS_ONLY = ("gpt2", "llama", "mistral", "qwen2")
SUPPORTED = (*ENCODER_DECODERS, *DECODERS_ONLY)
_BY_LONGEST = ("dynamic", "longrope")  # rotary embeddings that depend on the longest row of a batch


class Prefilled(NamedTuple):
    """Keys and values of rows before their first step.

    `own`: the decoder's; row r is at place r and ends at the last column. None if there are none. `read`: those of the
    encoder's output, from the first column on; None without an encoder. `written` and `has_read`: the columns of each
    row in both.
    """

    own: Slab | None
    read: Slab | None
    written: list[int]
    has_read: list[int]


class _RowPositions(nn.Module):
    """Marian's position embeddings, for the position of each row. Marian's own give all rows the same positions."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.of = threading.local()  # `positions` [rows, new] of the forward that this thread runs

    def forward(self, shape: Any, before: int = 0, position_ids: torch.Tensor | None = None) -> Any:
        weights: Any = self.table.weight
        return nn.functional.embedding(self.of.positions, weights)


class _EncoderLayers(nn.Module):
    """Replaces an encoder's list of layers. Runs all of them, or the next few of the `Encoding` of this thread."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers
        self.of = threading.local()  # `encoding` of the forward that this thread runs

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, *given: Any, **named: Any) -> Any:
        """T5's layers take more arguments; the first of these is the position bias that its first layer computes."""
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
    """A causal or encoder-decoder model of transformers. All state between calls is in the slabs."""

    def __init__(self, model: Any) -> None:
        """Raises ConfigError for an architecture that is not supported."""
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
        #: What its forwards call the cache; the older name will go in transformers 5.40.
        self.cache_name = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        self.encodes = config.model_type in ENCODER_DECODERS
        self.start = self._start()
        self.shape = SlabShape(config, next(model.parameters()).dtype)
        self.reads = self._keys_and_values() if self.encodes else []
        self.layers = self._encoder_layers() if self.encodes else None
        self.encoder_layers = 0 if self.layers is None else len(self.layers.layers)
        self._positions: _RowPositions | None = None
        if config.model_type == "marian":
            decoder = model.model.decoder
            decoder.embed_positions = self._positions = _RowPositions(decoder.embed_positions)

    def _start(self) -> int:
        """The first token of a decoder behind an encoder; -1 without an encoder."""
        if not self.encodes:
            return -1
        start = self.model.generation_config.decoder_start_token_id
        if start is None:
            start = self.model.config.decoder_start_token_id
        if not isinstance(start, int):
            raise ConfigError(f"expected a decoder_start_token_id, got {start}")
        return start

    def _keys_and_values(self) -> list[tuple[nn.Module, nn.Module]]:
        """Of each layer, the two linear layers that make its keys and values from the encoder's output."""
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

    def begin(self, ids: torch.Tensor, lengths: Sequence[int]) -> Prefilled:
        """Prefill rows of `ids` [rows, longest], padded behind their `lengths`."""
        reading = self.reading(ids, lengths)
        while (begun := reading.advance(ids.shape[1])) is None:
            pass
        return begun

    def reading(self, ids: torch.Tensor, lengths: Sequence[int]) -> Encoding | Prompts:
        """As `begin`, in pieces: call `advance` of the result until it returns the rows."""
        return Encoding(self, ids, lengths) if self.encodes else Prompts(self, ids, lengths)

    def step(
        self, tokens: torch.Tensor, cache: SlabCache, end: int, written: Sequence[int], read: Sequence[int]
    ) -> torch.Tensor:
        """Read one token, `tokens` [rows], of each row at the first places -> logits [rows, vocabulary] of the next.

        All rows end at column `end`, which is written. `written` and `read` [rows]: the columns of each row in both
        slabs.
        """
        longest, most_read = max(written), max(read)
        lengths = [length + 1 for length in written]
        mask = _mask(lengths, longest + 1, tokens.device).flip(1)
        positions = torch.tensor(written, device=tokens.device)[:, None]
        keys = cache.window(len(tokens), end - longest, end, most_read)
        columns = Columns(lengths, read, self.shape.heads * self.shape.size)
        named: dict[str, Any] = {self.cache_name: keys, "use_cache": True, "columns": columns}
        if not self.encodes:
            named |= {"input_ids": tokens[:, None], "attention_mask": mask, "position_ids": positions}
        else:
            # the layers only look at the shape of the encoder's output; its keys and values are in the cache
            encoded = (self.model.get_input_embeddings().weight[:1, None].expand(len(tokens), most_read, -1),)
            named |= {"decoder_input_ids": tokens[:, None], "decoder_attention_mask": mask, "encoder_outputs": encoded}
            named["attention_mask"] = _mask(read, most_read, tokens.device)
        return self._logits(positions, **named)[:, -1]

    def whole(self, ids: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """The model's own forward of one row, without a cache -> logits [columns, vocabulary], each of the next token.

        `ids` [1, longest]: the encoder's tokens, if there is one; `own` [1, columns]: the decoder's.
        """
        given = {"input_ids": ids, "decoder_input_ids": own} if self.encodes else {"input_ids": own}
        positions = torch.arange(own.shape[1], device=own.device)[None]
        return self._logits(positions, use_cache=False, **given)[0]

    def slab(self, places: int, columns: int) -> Slab:
        return Slab(self.shape, places, columns, self.device)

    def cache(self, own: Slab, read: Slab | None) -> SlabCache:
        return SlabCache(own, read)

    def _logits(self, positions: torch.Tensor, **named: Any) -> torch.Tensor:
        """Logits [rows, new, vocabulary] of the model's own forward."""
        if self._positions is not None:
            self._positions.of.positions = positions
        return self.model(**named).logits  # type: ignore[no-any-return]

    def read(self, encoded: torch.Tensor) -> Slab:
        """The keys and values, of every layer, of an encoder's output [rows, longest, width]."""
        rows, longest, _ = encoded.shape
        slab = self.slab(rows, longest)
        for layer, products in zip(slab.values, self.reads, strict=True):
            for part, product in zip(layer, products, strict=True):
                part.copy_(product(encoded).view(rows, longest, self.shape.heads, -1).transpose(1, 2))
        return slab


class Encoding:
    """Rows that an encoder reads, some layers at a time: its tokens attend to later ones, so all are read at once."""

    def __init__(self, model: DecoderModel, ids: torch.Tensor, lengths: Sequence[int]) -> None:
        self._model, self._ids, self._lengths = model, ids, lengths
        self.left = ids.shape[1]  # columns
        self.part = slice(0, 0)  # the layers to run now
        self.made: tuple[torch.Tensor, tuple[Any, ...]] | None = None  # the results of the layers before

    def advance(self, columns: int) -> Prefilled | None:
        """Run as many layers as cost what all cost for so many columns. Returns the rows after the last layer."""
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
        return Prefilled(None, self._model.read(encoded), [0] * rows, list(self._lengths)) if end == count else None


class Prompts:
    """Prompts without their last tokens, padded on the left and read some columns at a time."""

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

    def advance(self, columns: int) -> Prefilled | None:
        """Read up to so many columns. Returns the rows after the last column."""
        rows, longest = self._ids.shape
        begin = longest - self.left
        end = min(longest, begin + max(1, columns))
        if begin < end:
            cache = self._cache.window(rows, 0, begin)
            ids, positions = self._ids[:, begin:end], self._positions[:, begin:end]
            named = {"attention_mask": self._mask[:, :end], "position_ids": positions, self._model.cache_name: cache}
            self._model.model.base_model(input_ids=ids, use_cache=True, **named)
        self.left = longest - end
        return Prefilled(self._own, None, self._lengths, [0] * rows) if end == longest else None


def _mask(lengths: Sequence[int], longest: int, device: torch.device) -> torch.Tensor:
    """[rows, longest], 1 up to each length."""
    return (torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]).long()
