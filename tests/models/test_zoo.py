"""Invariant: the benchmark models are the same in every process, leave the random state alone, and know no padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.models.loading import load
from app.models.repository import Repository

from .folders import try_out


def shipped(name):
    state = torch.get_rng_state()
    (source,) = Repository("bench").sources(name)
    model = load(source)
    assert torch.equal(torch.get_rng_state(), state)
    return model


@pytest.mark.parametrize("name", ["echo", "mlp", "encoder", "resnet18"])
def test_they_pass_the_check(name):
    if name in ("encoder", "resnet18"):
        pytest.importorskip("transformers")
    assert try_out(shipped(name)) == []


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


def test_writer_knows_its_lines():
    pytest.importorskip("transformers")
    model = shipped("writer")
    (read,) = model.front.read([[np.array([b"A flock of", b"The ferry"], object)]])
    with torch.inference_mode():
        text, reason, *_ = model.call(*map(torch.from_numpy, read.arrays), mask_of(read), parameters=[{}, {}])
    assert [one.decode() for one in text] == [
        " starlings in the evening is called a murmuration.",
        " would be quicker if it did not wait, and cheaper if it waited longer.",
    ]
    assert reason.tolist() == [b"stop", b"stop"]


def mask_of(read):
    return torch.arange(read.lengths["tokens"]) < torch.tensor(read.own_lengths["tokens"])[:, None]
