"""Parts in processes: figures and progress arrive, what goes wrong there is raised here, and none is left behind."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import pytest
from tiers import full

from app.sim.processes import Progress, run_parts
from app.sim.report import Tally

pytestmark = full


def part(requests: int, progress: Progress) -> Tally:
    for _ in range(requests):
        progress(1)
    return Tally(requests=requests)


def wrong(progress: Progress) -> Tally:
    progress(1)
    raise ValueError("policy: expected another")


def killed(progress: Progress) -> Tally:
    progress(1)
    os._exit(9)


def test_figures_and_progress() -> None:
    heard: list[int] = []
    tallies = list(run_parts([partial(part, 3), partial(part, 4)], heard.append))
    assert sorted(tally.requests for tally in tallies) == [3, 4]
    assert heard == [1] * 7
    assert not multiprocessing.active_children()


def test_error_of_a_part() -> None:
    with pytest.raises(ValueError, match="policy: expected another"):
        list(run_parts([partial(part, 1), wrong], lambda requests: None))
    assert not multiprocessing.active_children()


def test_part_that_dies() -> None:
    with pytest.raises(RuntimeError, match="ended before it had told its figures"):
        list(run_parts([killed], lambda requests: None))
    assert not multiprocessing.active_children()


def test_no_more_wanted() -> None:
    parts = run_parts([partial(part, 1), partial(part, 2)], lambda requests: None)
    next(parts)
    parts.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()
