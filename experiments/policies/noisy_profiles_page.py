"""The page of `adaptive` with profiles that are known only with noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import table

MOST_ABOVE = 0.01  # of the mean of `no_wait`
LEAST_GAIN = 0.8  # of that of exact tables
JAGGED = ("mlp", "encoder", "resnet18")
_GAINS = 0.02  # exact tables gain so much at least, where a part of the gain is told

HEAD = """\
# `adaptive` with noisy profiles

Simulated: the devices and loads of [policies](policies.md), Poisson arrivals. The scheduler's profile was measured with
noise; the device takes the true times, each batch varied by a gamma factor of half the noise. While it serves, batches
correct the profile and tables are solved again, by the server's own code. {seeds} profiles of each kind, each for
{seconds:g} s of arrivals that are the same for all policies. Two kinds of noise:

- **repeated**: {visits} visits of each size in turn; each adds an exponential share of that mean, and one in 20 eight
  times as much. Repeating shows the noise, so errors are known.
- **lasting**: all visits of a size are off by the same normal share of that deviation. Repeating does not show it: the
  profile is wrong and claims to be sure. Only batches of calls correct it.

Given is the mean latency over that of `no_wait` on the same arrivals, the first 3 s left out, as the mean over profiles
and in brackets the worst; then the second half of the run alone. "gain" is the part of the gain of exact tables that is
had in the second half, where these gain at least 2 %. "-": they gain less.
"""


def above(cells: Sequence[dict[str, Any]], part: str) -> list[float]:
    return [cell["adaptive"][part] / cell["no_wait"][part] - 1 for cell in cells]


def gain(cells: Sequence[dict[str, Any]]) -> float | None:
    """The part of the gain of exact tables that is had in the second half; None where there is little to gain."""
    plain, exact, ours = (sum(cell[one]["late"] for cell in cells) for one in ("no_wait", "exact", "adaptive"))
    return (plain - ours) / (plain - exact) if plain - exact >= _GAINS * plain else None


def _text(cells: Sequence[dict[str, Any]]) -> str:
    def told(part: str) -> str:
        found = above(cells, part)
        return f"{sum(found) / len(found):+.1%} ({max(found):+.1%})"

    share = gain(cells)
    return f"{told('all')}; {told('late')}; {'-' if share is None else f'{share:.0%}'}"


def _groups(data: dict[str, Any]) -> dict[tuple[str, str, float, float], list[dict[str, Any]]]:
    """Cells by kind, device, noise, load."""
    found: dict[tuple[str, str, float, float], list[dict[str, Any]]] = {}
    for cell in data["cells"]:
        found.setdefault((cell["kind"], cell["device"], cell["noise"], cell["load"]), []).append(cell)
    return found


def missed(data: dict[str, Any]) -> list[str]:
    """Where the mean over profiles is above `no_wait` by more than a percent, or too little of the gain is had."""
    lines = []
    for (kind, device, noise, load), cells in _groups(data).items():
        where = f"{kind}, {device}, noise {noise:.0%}, load {load:g}"
        for part, name in (("all", "the whole run"), ("late", "the second half")):
            found = above(cells, part)
            if (mean := sum(found) / len(found)) > MOST_ABOVE:
                lines.append(f"{where}: {mean:+.1%} above no_wait in {name}")
        share = gain(cells)
        if device in JAGGED and share is not None and share < LEAST_GAIN:
            lines.append(f"{where}: {share:.0%} of the gain")
    return lines


def write(data: dict[str, Any], folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    return [markdown.write(parts(data), folder / "noisy-profiles.md")]


def parts(data: dict[str, Any]) -> list[str]:
    groups, lines = _groups(data), missed(data)
    solved = [cell["adaptive"]["solved"] for cell in data["cells"]]
    made = [
        HEAD.format(**data),
        f"Tables were solved again {sum(solved) / len(solved):.1f} times a run on average, at most {max(solved)}.",
        "## Targets",
        f"At most {MOST_ABOVE:.0%} above `no_wait` as the mean over profiles; on the measured curves at least "
        f"{LEAST_GAIN:.0%} of the gain. Of {len(groups)} cells these miss:" if lines else "All are met.",
        *(["\n".join(f"- {line}" for line in lines)] if lines else []),
    ]  # fmt: skip
    for kind, device in dict.fromkeys(key[:2] for key in groups):
        keys = [key for key in groups if key[:2] == (kind, device)]
        loads, noises = dict.fromkeys(key[3] for key in keys), dict.fromkeys(key[2] for key in keys)
        rows = [[f"{noise:.0%}", *(_text(groups[kind, device, noise, load]) for load in loads)] for noise in noises]
        made += [f"## {device}, {kind}", table(("noise", *(f"load {load:g}" for load in loads)), rows)]
    return [*made, markdown.facts_list(data["facts"])]
