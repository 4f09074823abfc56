"""What DecoderModel refuses, and what its steps read. What it writes is tested in tests/engine/cpu/test_decoding.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.errors import ConfigError
from app.models.decoders import attention
from app.models.decoders.decoder import DecoderModel
from tests import tiny_decoders


def test_an_architecture_that_is_not_known_is_refused_by_name_with_the_list() -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(model_type="bart"))
    with pytest.raises(ConfigError, match=r"^expected a decoder of t5, marian, gpt2, llama, mistral, qwen2, got bart$"):
        DecoderModel(model)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("llama", {"sliding_window": 64}, "expected attention without a sliding window, got 64"),
        ("t5", {"decoder_start_token_id": None}, "expected a decoder_start_token_id, got None"),
    ],
)
def test_a_model_that_cannot_run_so_is_refused(kind: str, change: dict[str, Any], message: str) -> None:
    model = tiny_decoders.model(kind)
    for name, value in change.items():
        for config in (model.config, model.generation_config):
            setattr(config, name, value)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        DecoderModel(model)


@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
@pytest.mark.parametrize(("call", "own", "read"), [(150, [[4], [41], [9]], [[30], [2], [12]]), (10**6, [[41]], [[30]])])
def test_a_row_reads_its_own_columns_where_that_costs_less(
    kind: str, call: int, own: list[list[int]], read: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_CALL", call)
    columns: list[list[int]] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, key: torch.Tensor, *given: Any, **named: Any) -> Any:
        columns.append([key.shape[2]])
        return real(query, key, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    decoder = DecoderModel(tiny_decoders.model(kind))
    cache = decoder.cache(decoder.slab(3, 60), decoder.slab(3, 30) if decoder.encodes else None)
    with torch.inference_mode():
        decoder.step(torch.tensor([5, 6, 7]), cache, 50, [3, 40, 8], [30, 2, 12] if decoder.encodes else [0, 0, 0])
    assert columns == 2 * [*own, *(read if decoder.encodes else [])]  # two layers
