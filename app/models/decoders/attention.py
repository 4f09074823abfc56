"""Attention of a step: each row reads its own columns of a window where that costs less than those of the longest row.

All rows together are one call, which reads as many columns of each row as the longest has and multiplies those that a
mask hides by 0. A call for each row costs more calls. The window of 32 rows of WMT-like lengths is some 2.5 times as
wide as their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_NAME = "starling"
_CALL = 20_000  # keys that are read, with their values, in the time of one call more: some 25 us


class Columns(NamedTuple):
    """What each row of a step reads: of what decoders have written, and of what an encoder has read. None where all
    rows are to read the window together."""

    own: Sequence[slice] | None
    read: Sequence[slice] | None

    @classmethod
    def of(cls, written: Sequence[int], read: Sequence[int], width: int) -> Columns:
        """`written` end at the window's last column, `read` begin at its first; `width`: values of a column."""
        return cls(
            [slice(-length, None) for length in written] if _apart(written, width) else None,
            [slice(length) for length in read] if _apart(read, width) else None,
        )


def _apart(lengths: Sequence[int], width: int) -> bool:
    hidden = max(lengths) * len(lengths) - sum(lengths)
    return hidden * width > _CALL * len(lengths)


def attend_by_rows(model: Any) -> None:
    """Have the steps of a model of transformers read so: those of which the forward gets `columns`."""
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
    """As transformers' own, which is called where all rows read together."""
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
