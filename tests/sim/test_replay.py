"""Replay says whether the recorded Steps come out again, and where they do not."""

from __future__ import annotations

import json

import pytest

from app.sim.replay import Replayed, replay

from .runs import recorded


def record() -> list[str]:
    return [json.dumps(entry) for entry in recorded()]


def test_equal() -> None:
    assert replay(record()) == Replayed(equal=6)
    assert replay(record()).same


def test_first_difference_is_named_with_its_line() -> None:
    lines = record()
    changed = json.loads(lines[7])
    changed["step"]["start"][0][1] = 3  # another worker
    lines[7] = json.dumps(changed)
    replayed = replay(lines)
    assert not replayed.same
    assert (replayed.equal, replayed.line, replayed.expected) == (2, 8, changed)
    assert replayed.got is not None
    assert replayed.got["step"]["start"][0][1] == 0


def test_missing_input_is_a_difference() -> None:
    lines = record()
    del lines[6]
    assert replay(lines).line == 7


def test_replay_ends_at_a_hole() -> None:
    lines = record()
    lines[6:9] = ['{"dropped": 3}']
    assert replay(lines) == Replayed(equal=2, hole=3)


@pytest.mark.parametrize(
    "first",
    ['{"format": 99}', '{"in": "tick", "t": 0}', "[]", "7", "not JSON"],
    ids=["format", "input", "list", "number", "text"],
)
def test_what_is_no_record(first: str) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        replay([first])
