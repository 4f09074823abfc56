"""The pages in docs/bench are what their JSON says, and a figure that becomes worse is named as a missed target."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from loadtest.common import experiment
from loadtest.common.page import Page
from loadtest.common.paths import DOCS, ROOT

#: Each has its page's text beside it.
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("experiments", "loadtest")
    for path in sorted((ROOT / folder).rglob("*.template"))
]
PAGES: dict[str, Page] = {page.name: page for page in (import_module(name).PAGE for name in MODULES)}
STORED = [path.stem for path in DOCS.glob("*.md")]


@pytest.mark.parametrize("name", STORED)
def test_page_is_what_its_json_says(name: str, tmp_path: Path) -> None:
    PAGES[name].write(experiment.load(DOCS / f"{name}.json"), tmp_path)
    assert (tmp_path / f"{name}.md").read_text("utf-8") == (DOCS / f"{name}.md").read_text("utf-8")
    plots = list(tmp_path.glob("*.png"))
    assert all(plot.read_bytes()[:4] == b"\x89PNG" and (DOCS / plot.name).exists() for plot in plots)


def change(data: Any, path: tuple[Any, ...], value: Any) -> None:
    """Set an entry; "*" in the path stands for every entry there."""
    key, *rest = path
    for each in (range(len(data)) if isinstance(data, list) else list(data)) if key == "*" else [key]:
        if rest:
            change(data[each], tuple(rest), value)
        else:
            data[each] = value


#: A page, an entry of its figures, a worse value, and what the line says that names it.
WORSE = [
    ("ahead", ("cells", 0, "ahead"), [99.0] * 4, "7 + 0.6 b, load 0.3: +"),
    ("bulk", ("runs", "reef", "beside", "*", "p99_ms"), 1e6, "reef: real-time p99"),
    ("bulk", ("runs", "reef", "beside", "*", "best_effort", "per_s"), 0.0, "reef: best effort 0.00"),
    ("cells", ("datasets", 0, "peaks", "cells"), 1.0, "WMT-like: peak -"),
    ("cells", ("datasets", 0, "loads", "*", "cells", "p50_ms"), 1e6, "WMT-like, 0.7 of the peak: p50"),
    ("cells", ("datasets", 1, "loads", "*", "cells", "p50_ms"), 1e6, "fixed 20, 0.5 of the peak: p50"),
    ("cells", ("steps", "join", "cells"), [[9, 1.0]], "a row of length 1 is answered after 9 steps"),
    ("cells", ("steps", "costs", 0, "together"), 1e9, "a step costs +"),
    ("disb-live", ("workloads", "A", "runs", "reef", "*", "classes", "realtime", "mean_ms"), 1e6, "A, reef: real-time"),
    ("disb-live", ("workloads", "A", "runs", "reef", "*", "classes", "all", "throughput"), 0.0, "A, reef: 0.00 x"),
    ("drill", ("load", "errors"), {"status 500": 2}, "2 x status 500"),
    ("drill", ("load", "completed"), 0, "requests without a right answer"),
    ("drill", ("replacements", 0, "exit"), 1, "server A ended with 1"),
    ("glue", ("closed", "by length", "rows_per_s"), [1.0], "closed loop: 0.01 x"),
    ("glue", ("loads", "0.6", "by length", "p99_ms"), 1e6, "load 0.6: mean"),
    ("glue", ("loads", "0.9", "by length", "mean_ms"), [1e6], "load 0.9: mean"),
    ("lengths", ("studies", "*", "closed", "by length"), 1.0, "encoder, closed loop: 0.0"),
    ("lengths", ("studies", "*", "loads", "0.6", "by length", "mean_ms"), 1e3, "encoder, load 0.6: mean"),
    ("many", ("workers", "cells", "*", "adaptive"), [1e6], "mlp, x 1, load 0.1: +"),
    ("many", ("steps", "studies", 0, "schedules", "burst", "adaptive", "*"), [1.0, 1e6], "mlp, burst, 90%: "),
    ("many", ("deadlines", "studies", 2, "highest", "deadline"), 0.5, "ResNet-50, 8 workers: 99 % in time up to 0.50"),
    ("many", ("deadlines", "studies", 2, "moderate", "deadline", "row_ms"), 2.0, "ResNet-50, 8 workers: 1"),
    ("many", ("deadlines", "lengths", "*", "deadline"), 0.5, "30 ms, load 1.6"),
    ("policies", ("cells", "*", "above"), 1.0, "adaptive: +100.0"),
    ("preemption", ("stages", "8", "rounds", "*", "waits_us"), [1e9], "8 stage(s): 99 % of the waits"),
    ("sliced", ("cells", 0, "above"), 0.5, "mlp, 2 of equal time, load 0.1: +50.00"),
    ("soak", ("load", "completed"), 0, "load: "),
    ("soak", ("faults", "wrong"), {"bad row: 200": 3}, "3 x bad row: 200"),
    ("soak", ("log", "told"), -1, "lines of the log were lost, and the log says -1"),
    ("soak", ("exit",), 1, "the steady server ended with 1"),
    ("soak", ("left", "*"), 2, "starling_"),
    ("texts", ("tasks", "vectors", "many", "by length", "rows_per_s"), [1.0], "vectors: fewer rows/s by length"),
    ("texts", ("tasks", "ranker", "many", "by length", "p99_ms"), 1e6, "ranker: 99 % 1,000,000 ms by length"),
    ("writing-leaving", ("slots",), 1, "0 places and 1 slots are in use"),
    ("writing-leaving", ("samples", 19, "mib"), 1e4, "memory grew by"),
]


@pytest.mark.parametrize(("name", "path", "worse", "line"), WORSE)
def test_a_worse_figure_is_missed(name: str, path: tuple[Any, ...], worse: Any, line: str) -> None:
    data = experiment.load(DOCS / f"{name}.json")
    before = PAGES[name].missed(data)
    change(data, path, worse)
    new = set(PAGES[name].missed(data)) - set(before)
    assert any(line in found for found in new), new
