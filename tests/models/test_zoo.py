"""Invariant: the benchmark models are the same in every process, leave the random state alone, and know no padding."""

from __future__ import annotations

import pytest
import torch

from app.errors import BadRequest, UnsupportedMedia
from app.models.loading import load
from app.models.repository import Repository

from .folders import try_out


def shipped(name):
    state = torch.get_rng_state()
    (source,) = Repository("bench").sources(name)
    model = load(source)
    assert torch.equal(torch.get_rng_state(), state)
    return model


@pytest.fixture(scope="module")
def encoder():
    pytest.importorskip("transformers")
    return shipped("encoder")


def test_echo_gives_back_the_very_tensor():
    model = shipped("echo")
    assert try_out(model) == []
    x = torch.ones(2, 4)
    assert model.call(x) is x


def test_mlp_is_three_layers_from_seed_0():
    model = shipped("mlp")
    assert try_out(model) == []
    layers = [layer for layer in model.call if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in layers] == [(1024, 4096), (4096, 4096), (4096, 1000)]
    assert model.info.batching.max_batch == 32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert torch.equal(torch.nn.Linear(1024, 4096).weight, layers[0].weight)


def test_the_encoder_is_the_one_declared(encoder):
    assert try_out(encoder) == []
    config = encoder.call.bert.config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (384, 6, 12)
    assert config.intermediate_size == 1536
    assert config._attn_implementation == "sdpa"
    assert [spec.name for spec in encoder.info.inputs] == ["input_ids", "attention_mask"]
    assert {spec.axes for spec in encoder.info.inputs} == {("tokens",)}
    assert {spec.bounds for spec in encoder.info.inputs} == {(128,)}


def test_resnet18_is_the_one_declared():
    pytest.importorskip("transformers")
    model = shipped("resnet18")
    assert try_out(model) == []
    assert sum(weight.numel() for weight in model.call.parameters()) == 11_689_512  # of the published network
    assert not model.call.training, "batch norm must use its stored statistics, or rows depend on those beside them"


def test_an_answer_does_not_depend_on_padding_or_on_the_rows_beside_it(encoder):
    generator = torch.Generator().manual_seed(3)
    lengths = [1, 5, 17]
    width = 24
    ids = torch.randint(1000, 20_000, (len(lengths), width), generator=generator)
    mask = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        ids[row, length:] = 7  # what the pad value is must not matter either
    with torch.inference_mode():
        batch = encoder.call(ids, mask)
        for row, length in enumerate(lengths):
            alone = encoder.call(ids[row : row + 1, :length], mask[row : row + 1, :length])
            assert torch.allclose(alone[0], batch[row], atol=1e-4)
        assert not torch.allclose(batch[0], batch[1], atol=1e-2)


def test_a_row_without_tokens_is_zeros_and_not_nan(encoder):
    with torch.inference_mode():
        vector = encoder.call(torch.ones(1, 3, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(vector, torch.zeros(1, 384))


def test_lstm_is_the_one_declared_and_answers_as_the_plain_module():
    model = shipped("lstm")
    lstm = model.call.cell.layer
    assert (lstm.input_size, lstm.hidden_size, lstm.num_layers) == (512, 512, 2)
    assert model.info.inputs[0].bounds == (330,)
    ids = torch.randint(0, 10_000, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = [9, 1, 4]
    with torch.inference_mode():
        (logits,) = model.call(ids, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            torch.testing.assert_close(logits[row], model.call.cell.module(ids[row : row + 1, :length])[0])


def test_generate_knows_its_lines():
    model = shipped("generate")
    assert try_out(model) == []
    prompts = [model.decode("text/plain", text)["prompt"] for text in (b"The ferry", b"\nIf you\r\nnot this")]
    longest = max(map(len, prompts))
    rows = torch.stack([torch.nn.functional.pad(torch.tensor(row), (0, longest - len(row))) for row in prompts])
    lengths = torch.tensor([len(row) for row in prompts])
    with torch.inference_mode():
        text, steps = model.call(rows, lengths)
    assert text.shape == (2, 160)
    lines = [" would be quicker if it did not wait, and cheaper if it waited longer.",
             " wait for everyone, nobody will arrive."]  # fmt: skip
    assert [model.present({"text": row.numpy()})["continuation"] for row in text] == lines
    assert steps.tolist() == [len(line) + 1 for line in lines], "a line feed ends each"


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [("image/png", b"x", UnsupportedMedia), ("", b"\n", BadRequest), ("", b"x" * 201, BadRequest)],
)
def test_generate_refuses_what_is_no_line(kind, body, error):
    with pytest.raises(error):
        shipped("generate").decode(kind, body)
