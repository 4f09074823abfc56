"""Invariant: what passes `normalise` and `verify` has the number, order, dtypes and shapes that were declared."""

from __future__ import annotations

import pytest
import torch

from app.contract import ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models.base import normalise, one_line, verify

Y = TensorSpec("y", "FP32", (3,), ("",), (3,))
Z = TensorSpec("z", "INT64", (), (), ())
SEQUENCE = TensorSpec("s", "FP32", (-1, 2), ("tokens", ""), (8, 2))


def info(*outputs: TensorSpec) -> ModelInfo:
    return ModelInfo("m", "1", "pytorch", (), outputs)


@pytest.mark.parametrize("wrap", [tuple, list, lambda pair: {"z": pair[1], "y": pair[0]}])
def test_all_forms_give_the_declared_order_without_a_copy(wrap):
    y, z = torch.ones(2, 3), torch.ones(2, dtype=torch.int64)
    values = normalise(wrap((y, z)), [Y, Z])
    assert values[0] is y
    assert values[1] is z


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (torch.ones(2, 3), r"expected 2 outputs \['y', 'z'\], got 1"),
        ({"y": torch.ones(1)}, r"output 'z': not returned; the model returned \['y'\]"),
        ({"y": 1, "z": 2, "w": 3}, r"expected the outputs \['y', 'z'\], got \['w', 'y', 'z'\]"),
        (None, "expected a tensor, a tuple or a mapping .* got NoneType"),
    ],
)
def test_normalise_names_what_is_wrong(result, message):
    with pytest.raises(ConfigError, match=message):
        normalise(result, [Y, Z])


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (Y, torch.ones(2, 4), r"output 'y': expected shape \[2, 3\], got \[2, 4\]"),
        (Y, torch.ones(1, 3), r"expected shape \[2, 3\], got \[1, 3\]"),
        (Y, torch.ones(2, 3, dtype=torch.float64), "expected FP32 .*got torch.float64"),
        (SEQUENCE, torch.ones(2, 6, 2), "the length 5 that the inputs have along axis 'tokens', got 6"),
        (TensorSpec("t", "BYTES", (1,), ("",), (1,)), torch.ones(2, 1), "expected BYTES"),
    ],
)
def test_verify_names_model_output_and_both_sides(spec, value, message):
    with pytest.raises(ConfigError, match=message):
        verify(info(spec), [value], 2, {"tokens": 5})


def test_an_error_in_one_line_has_no_colour_codes():
    assert one_line(ValueError("load\n\x1b[1monly\x1b[0m what you \x1b[31;1mtrust\x1b[0m")) == (
        "ValueError: load only what you trust"
    )
