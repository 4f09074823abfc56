"""Invariant: vectors are made as the files of sentence-transformers say, and compared as their users do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
from safetensors.torch import save_file

from app.errors import BadRequest

from .folders import try_out
from .task_models import answered, broken, forward, opened, texts

TEXTS = ["the cat sat", "unhappy dogs ran on a mat in paris", "a good day , anna ."]
MODELS = "sentence_transformers.models"


def write_steps(weights: Path, pooling: dict[str, Any], *kinds: str) -> None:
    """modules.json with these steps behind the transformer, and their files; a dense layer of 16 to 4 values."""
    steps = [{"path": "", "type": f"{MODELS}.Transformer"}]
    steps += [{"path": f"{n}_{kind}", "type": f"{MODELS}.{kind}"} for n, kind in enumerate(("Pooling", *kinds), 1)]
    (weights / "modules.json").write_text(json.dumps(steps))
    dense = {"in_features": 16, "out_features": 4, "activation_function": "torch.nn.modules.activation.Tanh"}
    for step, config in zip(steps[1:], [pooling] + [dense] * len(kinds), strict=True):
        (weights / step["path"]).mkdir()
        (weights / step["path"] / "config.json").write_text(json.dumps(config))
    if "Dense" in kinds:
        weight, bias = dense_layer()
        save_file({"linear.weight": weight, "linear.bias": bias}, weights / "2_Dense" / "model.safetensors")


def dense_layer() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(4, 16, generator=made), torch.randn(4, generator=made)


OLD_CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 16}


@pytest.mark.parametrize(
    ("pooling", "kinds"),
    [
        (OLD_CLS, ("Normalize",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, ()),
        ({"embedding_dimension": 16, "pooling_mode": "lasttoken"}, ("Normalize",)),
        ({"embedding_dimension": 16, "pooling_mode": ["mean"]}, ("Dense", "Normalize")),
    ],
)
def test_the_steps_that_the_folder_lists(tmp_path: Path, pooling: dict[str, Any], kinds: tuple[str, ...]) -> None:
    weights = tmp_path / "weights"
    original = tiny.save_bert(weights, "")
    write_steps(weights, pooling, *kinds)
    model = opened(tmp_path, "feature-extraction")
    assert try_out(model) == []
    for text, found in zip(TEXTS, answered(model, TEXTS), strict=True):
        hidden = forward(original, weights, text).last_hidden_state[0]
        if pooling is OLD_CLS:
            expected = hidden[0]
        else:
            expected = hidden[-1] if pooling.get("pooling_mode") == "lasttoken" else hidden.mean(dim=0)
        if "Dense" in kinds:
            weight, bias = dense_layer()
            expected = torch.tanh(weight @ expected + bias)
        if "Normalize" in kinds:
            expected = expected / expected.norm()
        assert np.allclose(found["embedding"], expected.numpy(), atol=1e-4)


def test_the_default_prompt_is_put_before_each_text(tmp_path: Path) -> None:
    original = tiny.save_bert(tmp_path / "weights", "")
    prompts = {"prompts": {"query": "a dog ran , "}, "default_prompt_name": "query"}
    (tmp_path / "weights" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for options, prompt in (("", "a dog ran , "), ('prompt = ""', ""), ('prompt = "good "', "good ")):
        (found,) = answered(opened(tmp_path, "feature-extraction", options), TEXTS[:1])
        hidden = forward(original, tmp_path / "weights", prompt + TEXTS[0]).last_hidden_state[0]
        assert np.allclose(found["embedding"], hidden.mean(dim=0).numpy(), atol=1e-4)


@pytest.mark.parametrize("measure", ["cosine", "dot"])
def test_a_sentence_is_compared_with_others(tmp_path: Path, measure: str) -> None:
    """Each text is a row of its own length, whatever request it came with."""
    original = tiny.save_bert(tmp_path / "weights", "")
    said = {"similarity_fn_name": measure}
    (tmp_path / "weights" / "config_sentence_transformers.json").write_text(json.dumps(said))
    model = opened(tmp_path, "sentence-similarity")
    assert try_out(model) == []
    sources, others = TEXTS[:2], [["a cat", "the dog sat on the mat"], ["unhappy", "a day in paris"]]
    for source, sentences, found in zip(sources, others, answered(model, sources, others), strict=True):
        vectors = [
            forward(original, tmp_path / "weights", text).last_hidden_state[0].mean(dim=0)
            for text in (source, *sentences)
        ]
        if measure == "cosine":
            vectors = [vector / vector.norm() for vector in vectors]
        expected = [float(vectors[0] @ vector) for vector in vectors[1:]]
        assert found["scores"] == pytest.approx(expected, rel=1e-4)
    (read,) = model.front.read([[texts(sources), texts(others)]])
    assert read.own_lengths == {"tokens": [5, 4, 8, 12, 4, 6]}


def test_a_sentence_that_does_not_fit_is_named(tmp_path: Path) -> None:
    tiny.save_bert(tmp_path / "weights", "")
    front = opened(tmp_path, "sentence-similarity", "max_tokens = 5").front
    for sources, others, message in (
        (["a"], [["a", "a cat sat on a"]], r"sentences\[1\]: expected at most 5 tokens, got 7"),
        (["a cat sat on a"], [["a"]], "source_sentence: expected at most 5 tokens, got 7"),
        (["a", "a"], [["a", "a"], [b"\xff", "a"]], r"sentences\[0\] of row 1: expected UTF-8, got byte 0xff"),
    ):
        with pytest.raises(BadRequest, match=f"^{message}"):
            front.read([[texts(sources), texts(others)]])


@pytest.mark.parametrize(
    ("pooling", "kinds", "message"),
    [
        ({"pooling_mode_max_tokens": True}, (), "1_Pooling/config.json says pooling_mode_max_tokens"),
        (OLD_CLS, ("LSTM",), "expected modules.json to list Transformer, Pooling, Dense, Normalize, got "),
    ],
)
def test_steps_that_are_not_made_here(
    tmp_path: Path, pooling: dict[str, Any], kinds: tuple[str, ...], message: str
) -> None:
    tiny.save_bert(tmp_path / "weights", "")
    write_steps(tmp_path / "weights", pooling, *kinds)
    assert message in broken(tmp_path, "feature-extraction")
