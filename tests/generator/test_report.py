"""The table and the object say the same, and neither hides what went wrong."""

from __future__ import annotations

import json
from pathlib import Path

from loadtest.generator.peak import Try
from loadtest.generator.report import as_json, table

from .made import repeat, result

DOCS = Path(__file__).parents[2] / "docs" / "measure.md"


def test_what_the_figures_do_not_show_is_said() -> None:
    closed = table(result(repeat([1.0]), rate=None, concurrency=4))
    assert "hide queueing" in closed
    assert "one run has no confidence interval" in closed
    assert "mean" not in table(result(repeat([-1.0, -1.0])))
    assert "7 answers were not compared" in table(result(repeat([1.0] * 9, unchecked=7)))


def test_json() -> None:
    found = json.loads(json.dumps(as_json(result(repeat([1.0] * 20), repeat([3.0] * 20), deadline_ms=2.0))))
    assert (found["mode"], found["rate"], found["requests"], found["completed"]) == ("open", 100.0, 40, 40)
    assert (found["mean_ms"], found["goodput"], found["status"]) == (2.0, 50.0, {"200": 40})
    assert [one["mean_ms"] for one in found["runs"]] == [1.0, 3.0]
    assert "tries" not in found


def test_json_of_a_search() -> None:
    found = as_json(result(repeat([1.0] * 20)), 200.0, (Try(9, 1.0, 9, ""), Try(10, None, 0, "2 x connect")))
    assert (found["mode"], found["slo_ms"]) == ("find-peak", 200.0)
    assert [one["kept"] for one in found["tries"]] == [True, False]
    assert table(result(repeat([1.0] * 20)), 200).startswith("peak: 100.0/s")


def test_every_key_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    found = as_json(result(repeat([1.0] * 20)), 200.0, (Try(9, 1.0, 9, ""),))
    keys = {*found, *found["runs"][0], *found["tries"][0]}
    missing = {key for key in keys if f"`{key.removesuffix('_ci95')}`" not in text}
    assert missing == set()
