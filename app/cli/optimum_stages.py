"""`starling optimum --stages`: two stages, solved exactly, and how far `adaptive` and the whole model are from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.errors import as_config_error

if TYPE_CHECKING:
    from app.scheduler.estimates.profile import ModelProfile
    from app.scheduler.optimal.two_stages import Solution

_MS = 1e6
_SHOWN = 12  # rows that wait, in the decisions shown
_COLUMNS = (
    ("load", "load", ".2f"), ("rate/s", "rate", ".1f"), ("optimum ms", "mean_ms", ".3f"),
    ("adaptive ms", "adaptive_ms", ".3f"), ("above", "adaptive_above", "+.2%"),
    ("whole ms", "whole_ms", ".3f"), ("above", "whole_above", "+.2%"),
)  # fmt: skip


def show(profile: str, rate: str, load: str, max_batch: int, as_json: bool) -> None:
    """Print a line for each load, and what to do at the last of them. Raises ConfigError for a bad option."""
    with as_config_error():
        from app.sim import options
        from app.sim.two_stages import halved

        measured = options.profile(profile, max_batch or (0 if profile and _small(profile) else 8))
        measured = measured if measured.stages else halved(measured)
        rates = options.rates(rate, load, measured.peak, "poisson")
        found = [_cell(measured, one) for one in rates if one is not None]
    cells = [cell for cell, _ in found]
    if as_json:
        print(json.dumps(cells[0] if len(cells) == 1 else cells, indent=2))
    else:
        print("\n".join([*_table(cells), "", *_decisions(found[-1][1], cells[-1]["load"])]))


def _small(profile: str) -> bool:
    """Whether the profile's own largest batch is small enough to be solved."""
    from app.scheduler.optimal.two_stages import LARGEST
    from app.sim import options

    return not profile.startswith("linear:") and options.profile(profile).max_batch <= LARGEST


def _cell(measured: ModelProfile, rate: float) -> tuple[dict[str, Any], Solution]:
    from app.scheduler.optimal import solver, two_stages
    from app.sim.fleet import Setup
    from app.sim.two_stages import exact, times

    setup = Setup(measured, rate, max_queue=1 << 30)
    both = times(setup)
    best = two_stages.solve(*both, rate)
    adaptive = exact(setup).mean_ns
    whole = solver.solve(tuple(map(sum, zip(*both, strict=True))), rate).mean_ns
    cell = {
        "rate": rate, "load": rate / measured.peak, "mean_ms": best.mean_ns / _MS, "adaptive_ms": adaptive / _MS,
        "adaptive_above": adaptive / best.mean_ns - 1, "whole_ms": whole / _MS, "whole_above": whole / best.mean_ns - 1,
        "table": [[[action.stage, action.rows] for action in row] for row in best.table],
    }  # fmt: skip
    return cell, best


def _table(cells: Sequence[dict[str, Any]]) -> list[str]:
    lines = [[title for title, _, _ in _COLUMNS]]
    lines += [[format(cell[name], form) for _, name, form in _COLUMNS] for cell in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines]


def _decisions(best: Solution, load: float) -> list[str]:
    """What the optimum does for so many rows waiting (across) and standing between the stages (down)."""
    largest = len(best.table[0]) // 2
    lines = [f"the optimum at load {load:.2f}: rows waiting across, rows between the stages down; 0:b and 1:b run b"]
    lines.append("     " + " ".join(f"{waiting:>4}" for waiting in range(_SHOWN + 1)))
    for standing in range(largest + 1):
        done = [best.table[waiting][standing] for waiting in range(_SHOWN + 1)]
        told = (f"{action.stage}:{action.rows}" if action.rows else "wait" for action in done)
        lines.append(f"{standing:>4} " + " ".join(f"{text:>4}" for text in told))
    return lines
