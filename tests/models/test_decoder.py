"""What DecoderModel refuses when it is loaded. What it writes is tested in tests/engine/cpu/test_decoding.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.errors import ConfigError
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
