"""What a decoder refuses when it is loaded, and what generation_config.json changes of its texts.

Others of its texts are tested in tests/engine/cpu/test_decoding.py.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app.errors import ConfigError
from app.models.decoders import attention
from app.models.decoders.decoder import DecoderModel
from app.models.decoders.texts import TextDecoder
from tests import tiny_decoders


def test_an_architecture_that_is_not_known_is_refused_by_name_with_the_list() -> None:
    model: Any = SimpleNamespace(config=SimpleNamespace(model_type="bart"))
    with pytest.raises(ConfigError, match=r"^expected a decoder of t5, marian, gpt2, llama, mistral, qwen2, got bart$"):
        DecoderModel(model)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("llama", {"sliding_window": 64}, "expected attention without a sliding window, got 64"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "expected positions that no other row changes, got rope_type 'dynamic'",
        ),
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


ENDS = [1, 188, *range(60, 90)]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("t5", {"begin_suppress_tokens": list(range(2, 150)), "forced_bos_token_id": 50}),
        ("t5", {"begin_suppress_tokens": list(range(2, 150)), "forced_eos_token_id": 1, "suppress_tokens": [195]}),
        ("gpt2", {"min_length": 12, "min_new_tokens": 3, "eos_token_id": ENDS}),
        ("gpt2", {"min_length": 12, "eos_token_id": ENDS, "repetition_penalty": 1.7}),
        ("llama", {"bad_words_ids": [[5], [70, 71]], "no_repeat_ngram_size": 2, "eos_token_id": ENDS}),
    ],
)
def test_what_generation_config_says_is_done_as_generate_does_it(kind: str, settings: dict[str, Any]) -> None:
    random.seed(0)
    rows, most = [random.choices(range(2, 200), k=length) for length in (13, 4, 9, 17, 2)], 16
    model = tiny_decoders.model(kind)
    usual = [tiny_decoders.generated(model, ids, most) for ids in rows]
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    expected = [tiny_decoders.generated(model, ids, most) for ids in rows]
    assert expected != usual
    decoder = TextDecoder(DecoderModel(model), tiny_decoders.tokenizer(), 60, most)
    for ids, wanted in zip(rows, expected, strict=True):
        with torch.inference_mode():
            texts, begun = decoder.begin(torch.tensor([ids]), [len(ids)], [{}])
            decoder.write(texts, begun)
        assert texts[0].choice.written == wanted


@pytest.mark.parametrize(("name", "value"), [("stop_strings", ["."]), ("sequence_bias", [[[7], 5.0]])])
def test_what_generation_config_asks_for_that_is_not_offered_is_refused_by_name(name: str, value: Any) -> None:
    model = tiny_decoders.model("gpt2")
    setattr(model.generation_config, name, value)
    with pytest.raises(ConfigError, match=rf"^generation_config.json: {name} is not offered, got "):
        TextDecoder(DecoderModel(model), tiny_decoders.tokenizer(), 60, 16)
