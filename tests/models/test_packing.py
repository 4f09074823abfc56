"""Packed layers of decoders give what the plain ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from app.models.decoders import packing
from app.models.decoders.packing import PackedLinear, pack
from tests import tiny_decoders


def refuse(*args: Any) -> Any:
    raise RuntimeError("not on this processor")


@pytest.mark.parametrize("layer", [nn.Linear(24, 40), nn.Linear(24, 40, bias=False), Conv1D(40, 24)])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24)])
def test_a_packed_layer_gives_what_the_plain_one_does(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(layer)(x), layer(x))


@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
def test_all_large_float32_layers_are_packed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_decoders.model(kind)
    pack(model)
    assert not [layer for layer in model.modules() if isinstance(layer, PackedLinear)]  # they are small
    monkeypatch.setattr(packing, "LEAST", 1)
    double = tiny_decoders.model(kind).double()
    pack(double)
    assert not [layer for layer in double.modules() if isinstance(layer, PackedLinear)]
    pack(model)
    assert not [layer for layer in model.modules() if isinstance(layer, nn.Linear | Conv1D)]


def test_a_processor_that_cannot_pack_leaves_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEAST", 1)
    monkeypatch.setattr(packing, "Product", refuse)
    model = tiny_decoders.model("t5")
    pack(model)
    assert not [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
