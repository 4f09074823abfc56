"""A model's queues, one for each class, fit into the memory that its slots may take; none is cut below a batch."""

from __future__ import annotations

import logging
from pathlib import Path

from app.engine.program import fit_queue, over_budget, over_memory
from app.scheduler.types import Profile

from .rig import X, Y, make_model, tensor


def test_a_queue_that_fits_is_left_alone(caplog):
    model = make_model(max_queue=100)
    assert fit_queue(model, 10, 210 * 8) is model
    assert caplog.records == []


def test_a_queue_that_does_not_fit_is_cut_and_said(caplog):
    image = tensor("image", "FP32", 256, 256)  # 256 KiB a row
    model = make_model(None, [image], [Y], max_queue=1000, max_batch=8)
    with caplog.at_level(logging.WARNING):
        cut = fit_queue(model, 16, 10 << 20)
    assert cut.info.batching.max_queue == 12  # 40 rows in 10 MiB, 16 of them running
    assert model.info.batching.max_queue == 1000
    assert (cut.call, cut.info.name, cut.info.batching.max_batch) == (model.call, "m", 8)
    assert "model m: the queue of each class is cut from 1000 to 12 rows" in caplog.text
    assert "256.0 KiB fit in 10 MiB" in caplog.text


def test_a_queue_is_never_cut_below_a_batch():
    image = tensor("image", "FP32", 1024, 1024)
    model = make_model(None, [image], [Y], max_queue=1000, max_batch=8)
    assert fit_queue(model, 16, 1 << 20).info.batching.max_queue == 8


def test_a_queue_below_a_batch_is_not_made_longer():
    image = tensor("image", "FP32", 1024, 1024)
    model = make_model(None, [image], [Y], max_queue=2, max_batch=8)
    assert fit_queue(model, 16, 1 << 20).info.batching.max_queue == 2


def test_text_has_no_bound_and_takes_no_slots():
    model = make_model(None, [tensor("t", "BYTES", 1000)], [Y], max_queue=1_000_000)
    assert fit_queue(model, 16, 1 << 20) is model
    assert fit_queue(make_model(None, [X]), 16, 1 << 20).info.batching.max_queue == 1024


def test_a_stage_over_the_budget_is_told_with_how_many_would_fit() -> None:
    profiles = [Profile((8_000_000,)), Profile((31_200_000, 40_000_000))]
    assert over_budget(profiles, 32_000_000) is None
    assert over_budget([Profile()], 1) is None
    told = over_budget(profiles, 10_000_000)
    assert told is not None
    page = " ".join((Path(__file__).parents[2] / "docs" / "classes.md").read_text(encoding="utf-8").split())
    assert "stages would" not in str(over_budget([Profile((20_000_000,))], 10_000_000, cell=True))
    said = told.replace("stage 1", "stage 0")
    assert f"model encoder: {said}" in page


def test_what_a_containers_memory_may_not_suffice_for_is_told_with_the_settings() -> None:
    mib = 1 << 20
    assert over_memory(None, 6, 3072 * mib, 0, 512 * mib) is None
    assert over_memory(8192 * mib, 6, 3072 * mib, 512 * mib, 512 * mib) is None
    told = over_memory(600 * mib, 6, 3072 * mib, 0, 512 * mib)
    assert told is not None
    parts = "6 models may take 3072 MiB (--pool-mib", "512 MiB (--max-inflight-mib)", "the container's 600 MiB"
    assert [part for part in parts if part not in told] == []
