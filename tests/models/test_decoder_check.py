"""A decoder whose rows depend on others that begin and end beside them is refused before it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from app.contract import Model
from app.errors import ConfigError
from app.models.checks.row_check import check_rows
from app.models.checks.trial import call_directly, check_independence, tolerance_of
from app.models.loading import load
from tests import tiny_decoders

from .folders import source_of


def made(folder: Path, kind: str, spoil: Callable[[Any], None], row_check: str = "refuse") -> Model:
    tiny_decoders.save(folder, kind)
    model = load(source_of(folder))
    call: Any = model.call
    spoil(call.decoder.model)
    return replace(model, row_check=row_check)


def with_positions_of_the_longest(model: Any) -> None:
    """As a model has them that takes them from the width of its batch."""

    def positions(_: Any, given: tuple[torch.Tensor]) -> torch.Tensor:
        return given[0].amax(0, keepdim=True).expand_as(given[0])

    model.transformer.wpe.register_forward_pre_hook(positions)


def without_a_mask(model: Any) -> None:
    def seen(_: Any, args: Any, given: dict[str, Any]) -> Any:
        return args, {**given, "attention_mask": None}

    model.model.register_forward_pre_hook(seen, with_kwargs=True)


def checked(model: Model) -> str | None:
    return check_independence(model, call_directly(model))


@pytest.mark.parametrize("kind", tiny_decoders.KINDS)
def test_a_decoder_whose_rows_are_independent_passes(kind: str, tmp_path: Path) -> None:
    assert checked(made(tmp_path, kind, lambda model: None)) is None


def test_one_that_is_wrong_only_where_rows_join_others_is_refused(tmp_path: Path) -> None:
    model = made(tmp_path, "gpt2", with_positions_of_the_longest)
    alike = [row for row in model.samples if row.lengths == model.samples[0].lengths]
    assert check_rows(model.info, alike, call_directly(model), tolerance_of(model)) is None, (
        "in whole batches it is right"
    )
    with pytest.raises(ConfigError, match="a row writes depends on its company") as caught:
        checked(model)
    assert "by its own forward" in str(caught.value)
    assert "beside" in str(caught.value)
    assert "its positions must be those" in str(caught.value)
    assert "depends on its company" in str(checked(replace(model, row_check="warn")))
    assert checked(replace(model, row_check="off")) is None


def test_one_that_reads_what_its_mask_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a row writes depends on its company"):
        checked(made(tmp_path, "llama", without_a_mask))


@pytest.mark.parametrize(("kind", "most"), [("gpt2", tiny_decoders.POSITIONS - 1), ("t5", 1)])
def test_rows_of_the_check_fit_the_positions_of_the_model(kind: str, most: int, tmp_path: Path) -> None:
    tiny_decoders.save(tmp_path, kind, most)
    model = load(source_of(tmp_path))
    assert checked(model) is None
