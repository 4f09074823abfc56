"""The page of Khan et al.'s experiment: their figures beside ours, assumptions, and where ours are worse and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from loadtest.common.page import Column, Data, Page, grid, joined, ms, standard_error, table

#: One network under one trace: a value for each seed, by policy and figure. `weights`: those of "as sparing".
Study = Mapping[str, Any]
LITERAL = "preferred, literal"


def ratios(found: Study, above: str, below: str, figure: str) -> list[float]:
    """A figure of one policy over that of another, by seed."""
    pairs = zip(found["policies"][above][figure], found["policies"][below][figure], strict=True)
    return [one / other for one, other in pairs]


def headlines(ramps: list[Study]) -> str:
    def faster(policy: str) -> Column:
        return lambda found: f"{fmean(ratios(found, 'max batch', policy, 'mean_ms')):.1f}"

    def literal(found: Study) -> str:
        times = ratios(found, "max batch", LITERAL, "mean_ms")
        return f"{fmean(times):.1f} ± {standard_error(times):.1f}"

    def sparing(found: Study) -> str:
        joules = ratios(found, LITERAL, "ad hoc", "per_joule")
        return f"{fmean(joules) - 1:+.1%} ± {100 * standard_error(joules):.1f}"

    columns: dict[str, Column] = {
        "ramp": "{network}",
        "latency of max batch over `preferred`, literal": literal,
        "over `preferred`, bounded": faster("preferred, bounded"),
        "over `adaptive`, latency": faster("adaptive, latency"),
        "requests/J, `preferred` against ad hoc": sparing,
        "`adaptive`, energy, against ad hoc": lambda found: (
            f"{fmean(ratios(found, 'adaptive, energy', 'ad hoc', 'per_joule')) - 1:+.1%}"
        ),
    }
    return f"{table(columns, ramps)}\n| published | 14 |  |  | up to +5 % |  |"


def policies(found: Study) -> str:
    weights = f" (weight {', '.join(dict.fromkeys(found['weights']))})"
    columns: dict[str, Column] = {
        "": lambda one: one["name"] + (weights if one["name"] == "adaptive, as sparing" else ""),
        "mean, ms": "{mean_ms:error}",
        "99 %, ms": "{p99_ms:mean}",
        "rows a batch": lambda one: f"{fmean(one['batch']):.2f}",
        "busy": lambda one: f"{fmean(one['busy']):.1%}",
        "busy, ms a request": lambda one: f"{fmean(one['busy_ms_per_request']):.2f}",
        "requests/J": lambda one: f"{fmean(one['per_joule']):.3f}",
        "left": lambda one: f"{fmean(one['left']):.1f}",
    }
    rows = ({"name": name, **figures} for name, figures in found["policies"].items())
    return joined([f"### {found['network']}, {found['trace']}", table(columns, rows)])


def fill(data: Data) -> Mapping[str, object]:
    ramps = [found for found in data["studies"] if found["trace"] == "ramp"]
    ours = {found["network"]: fmean(found["policies"][LITERAL]["mean_ms"]) for found in ramps}
    networks: dict[str, Column] = {
        "": "{name}",
        "T(b), ms": "{fixed_ms:g} + {row_ms:g} b",
        "published mean, ms": "{theirs_ms:ms}",
        "`preferred`, literal, ramp, ms": lambda one: ms(ours[one["name"]]),
    }
    open_questions = {one["network"]: one["ratios"] for one in data["open_questions"]}
    return {
        "headlines": headlines(ramps),
        "networks": table(networks, data["networks"]),
        "policies": joined(map(policies, data["studies"])),
        "open_questions": grid(
            "largest batch, deadline",
            data["open_questions"][0]["ratios"],
            {name: name for name in open_questions},
            lambda case, network: f"{open_questions[network][case]:.1f}",
        ),
    }


def draw(data: Data, folder: Path) -> None:
    """Plot mean latency and requests per joule as groups of bars, with a colour per policy."""
    from loadtest.common.plots import grouped_bars, legend_above, saved_grid

    ramps = [found for found in data["studies"] if found["trace"] == "ramp"]
    names = [name for name in ramps[0]["policies"] if "padded" not in name]
    groups = [found["network"] for found in ramps]
    with saved_grid(folder / "adaptive_batching.png", 1, 2, (11, 4.4)) as (figure, grid):
        left, right = grid[0]
        for axes, key in ((left, "mean_ms"), (right, "per_joule")):
            series = {
                name: (f"C{number}", [fmean(found["policies"][name][key]) for found in ramps])
                for number, name in enumerate(names)
            }
            grouped_bars(axes, groups, series)
        theirs = [found["theirs_ms"] for found in ramps]
        left.plot(range(len(groups)), theirs, "k_", markersize=30, label="published, theirs")
        left.set_yscale("log")
        left.set_ylabel("mean latency, ms")
        right.set_ylabel("requests per joule")
        legend_above(figure, grid, 4)
        figure.tight_layout(rect=(0, 0, 1, 0.87))


PAGE = Page("adaptive_batching", __file__, fill, draw=draw)
