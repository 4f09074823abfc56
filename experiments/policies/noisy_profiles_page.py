"""The page of `adaptive` with profiles that are known only with noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from loadtest.common.page import Data, Page, grid, joined

MOST_ABOVE = 0.01  # of the mean of `no_wait`
LEAST_GAIN = 0.8  # of that of exact tables
JAGGED = ("mlp", "encoder", "resnet18")
_GAINS = 0.02  # exact tables gain so much at least, where a part of the gain is given

Cell = Mapping[str, Any]
#: Kind of noise, device, noise, load.
Key = tuple[str, str, float, float]


def above(cells: Sequence[Cell], part: str) -> list[float]:
    return [cell["adaptive"][part] / cell["no_wait"][part] - 1 for cell in cells]


def gain(cells: Sequence[Cell]) -> float | None:
    """The part of the gain of exact tables that is had in the second half; None where there is little to gain."""
    plain, exact, ours = (sum(cell[one]["late"] for cell in cells) for one in ("no_wait", "exact", "adaptive"))
    return (plain - ours) / (plain - exact) if plain - exact >= _GAINS * plain else None


def grouped(data: Data) -> dict[Key, list[Cell]]:
    found: dict[Key, list[Cell]] = {}
    for cell in data["cells"]:
        found.setdefault((cell["kind"], cell["device"], cell["noise"], cell["load"]), []).append(cell)
    return found


def missed(data: Data) -> list[str]:
    """Where the mean over profiles is above `no_wait` by more than a percent, or too little of the gain is had."""
    lines = []
    for (kind, device, noise, load), cells in grouped(data).items():
        where = f"{kind}, {device}, noise {noise:.0%}, load {load:g}"
        for part, name in (("all", "the whole run"), ("late", "the second half")):
            if (mean := fmean(above(cells, part))) > MOST_ABOVE:
                lines.append(f"{where}: {mean:+.1%} above no_wait in {name}")
        share = gain(cells)
        if device in JAGGED and share is not None and share < LEAST_GAIN:
            lines.append(f"{where}: {share:.0%} of the gain")
    return lines


def described(cells: Sequence[Cell]) -> str:
    whole, late = (f"{fmean(found):+.1%} ({max(found):+.1%})" for found in (above(cells, "all"), above(cells, "late")))
    share = gain(cells)
    return f"{whole}; {late}; {'-' if share is None else f'{share:.0%}'}"


def fill(data: Data) -> Mapping[str, object]:
    groups = grouped(data)
    solved = [cell["adaptive"]["solved"] for cell in data["cells"]]

    def section(kind: str, device: str) -> str:
        keys = [key for key in groups if key[:2] == (kind, device)]
        noises = {f"{noise:.0%}": noise for *_, noise, _ in keys}
        loads = {load: f"load {load:g}" for *_, load in keys}
        cells = grid(
            "noise", noises, loads, lambda noise, load: described(groups[kind, device, noises[noise], load])
        )  # fmt: skip
        return joined([f"## {device}, {kind}", cells])

    return {
        "solved_mean": fmean(solved),
        "solved_most": max(solved),
        "most_above": MOST_ABOVE,
        "least_gain": LEAST_GAIN,
        "groups": len(groups),
        "sections": joined(section(kind, device) for kind, device in dict.fromkeys(key[:2] for key in groups)),
    }


PAGE = Page("noisy-profiles", __file__, fill, missed)
