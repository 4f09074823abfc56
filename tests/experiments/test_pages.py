"""What pages quote is what was measured, and a figure that becomes worse is named as a missed target."""

from __future__ import annotations

import re
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
#: The figures that each page quotes.
QUOTED = {
    "bench/peers": ["peers"],
    "bench/http": ["http"],
    "bench/overload": ["overload", "drill", "soak"],
    "bench/many": ["many"],
    "papers/ebird": ["ebird"],
    "papers/late-batching": ["stages", "cells"],
    "papers/adaptive-batching": ["adaptive_batching"],
    "papers/dvabatch": ["stages", "glue"],
    "papers/reef": ["disb-live", "preemption"],
}
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


def numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]


@pytest.mark.parametrize("page", QUOTED)
def test_figures_are_those_that_were_measured(page: str) -> None:
    """Every number in a page's tables is in the tables of its figures, there perhaps with more digits."""
    rendered = "\n".join(PAGES[name].text(experiment.load(DOCS / f"{name}.json")) for name in QUOTED[page])
    measured = [float(number) for number in numbers(rendered)]
    text = (DOCS.parent / f"{page}.md").read_text("utf-8")
    for row in re.findall(r"^\|.*\d.*\|$", text.partition("## Figures")[2] or text, re.MULTILINE):
        for cell in row.strip("|").split("|")[1:]:
            for number in numbers(cell):
                digits = len(number.partition(".")[2])
                assert any(round(one, digits) == float(number) for one in measured), f"{number} in {row}"


@pytest.mark.parametrize("name", [path.stem for path in DOCS.glob("*.json") if path.stem in PAGES])
def test_tables_and_plots_are_made_of_the_json(name: str, tmp_path: Path) -> None:
    PAGES[name].write(experiment.load(DOCS / f"{name}.json"), tmp_path)
    if name in ("gpu", "learned"):  # the page itself is made
        assert (tmp_path / f"{name}.md").read_text("utf-8") == (DOCS / f"{name}.md").read_text("utf-8")
    assert all(plot.read_bytes()[:4] == b"\x89PNG" for plot in tmp_path.glob("*.png"))


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
    ("cells", ("datasets", 0, "peaks", "cells"), 1.0, "WMT-like: peak -"),
    ("cells", ("datasets", 0, "loads", "*", "cells", "p50_ms"), 1e6, "WMT-like, 0.7 of the peak: p50"),
    ("cells", ("datasets", 1, "loads", "*", "cells", "p50_ms"), 1e6, "fixed 20, 0.5 of the peak: p50"),
    ("disb-live", ("workloads", "A", "runs", "reef", "*", "classes", "realtime", "mean_ms"), 1e6, "A, reef: real-time"),
    ("disb-live", ("workloads", "A", "runs", "reef", "*", "classes", "all", "throughput"), 0.0, "A, reef: 0.00 x"),
    ("drill", ("load", "errors"), {"status 500": 2}, "2 x status 500"),
    ("drill", ("load", "completed"), 0, "requests without a right answer"),
    ("drill", ("replacements", 0, "exit"), 1, "server A ended with 1"),
    ("glue", ("closed", "by length", "rows_per_s"), [1.0], "closed loop: 0.01 x"),
    ("glue", ("loads", "0.6", "by length", "p99_ms"), 1e6, "load 0.6: mean"),
    ("glue", ("loads", "0.9", "by length", "mean_ms"), [1e6], "load 0.9: mean"),
    ("many", ("workers", "cells", "*", "adaptive"), [1e6], "mlp, x 1, load 0.1: +"),
    ("policies", ("cells", "*", "above"), 1.0, "adaptive: +100.0"),
    ("preemption", ("stages", "8", "rounds", "*", "waits_us"), [1e9], "8 stage(s): 99 % of the waits"),
    ("soak", ("load", "completed"), 0, "load: "),
    ("soak", ("faults", "wrong"), {"bad row: 200": 3}, "3 x bad row: 200"),
    ("soak", ("log", "told"), -1, "lines of the log were lost, and the log says -1"),
    ("soak", ("exit",), 1, "the steady server ended with 1"),
    ("soak", ("left", "*"), 2, "starling_"),
]


@pytest.mark.parametrize(("name", "path", "worse", "line"), WORSE)
def test_a_worse_figure_is_missed(name: str, path: tuple[Any, ...], worse: Any, line: str) -> None:
    data = experiment.load(DOCS / f"{name}.json")
    before = PAGES[name].missed(data)
    change(data, path, worse)
    new = set(PAGES[name].missed(data)) - set(before)
    assert any(line in found for found in new), new
