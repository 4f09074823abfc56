"""The page of the simulator's figures, with a section for each entry of simulation.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, grid, section_facts, table

Figures = Mapping[str, Any]


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def mean_and_tail(cell: Figures) -> str:
    tail = "" if cell["p99_ms"] is None else f" / {ms(cell['p99_ms'])}"
    return f"{ms(cell['mean_ms'])}{tail}"


def memory_mib(run: Figures, begin: float, end: float) -> float:
    """The most memory between two shares of a run; 0 if it was too short for a sample."""
    inside = [mib for at, mib in run["samples"] if begin * run["wall_s"] <= at <= end * run["wall_s"]]
    return max(inside, default=0.0)


def speed(found: Figures) -> str:
    columns: dict[str, Column] = {
        "policy": "{policy}",
        "wall, s": lambda one: f"{median(one['wall_s']):.1f}",
        "min – max": lambda one: f"{min(one['wall_s']):.1f} – {max(one['wall_s']):.1f}",
        "CPU, s": "{cpu_s:.1f}",
        "requests/s": lambda one: f"{found['requests'] / median(one['wall_s']):,.0f}",
        "peak memory, MiB": "{peak_mib:.0f}",
    }
    return table(columns, ({"policy": policy, **one} for policy, one in found["policies"].items()))


def policies(found: Figures) -> str:
    cells = {(cell["policy"], cell["load"]): cell for cell in found["cells"]}
    loads = {load: f"{load:.1f}" for load in found["loads"][::2]}
    names = dict.fromkeys(name for name, _ in cells)
    return grid("load", names, loads, lambda name, load: mean_and_tail(cells[name, load]))


def optimum(found: Figures) -> str:
    columns: dict[str, Column] = {
        "batch times, ms": lambda one: one[0],
        "worst": lambda one: f"{max(one[1].values()):.1%}",
        "at load": lambda one: max(one[1], key=lambda load: one[1][load]),
        "best": lambda one: f"{max(0.0, min(one[1].values())):.1%}",
    }
    return table(columns, found["above"].items())


def largest(found: Figures) -> int:
    return max(cell["replicas"] for cell in found["cells"])


def fleet(found: Figures) -> str:
    cells = {cell["router"]: cell for cell in found["cells"] if cell["replicas"] == largest(found)}
    columns: dict[str, Column] = {
        "router": "{router}",
        "simulated": "{simulated}",
        "wall, s": "{wall_s:.0f}",
        "CPU, s": "{cpu_s:.0f}",
        "requests/s": lambda one: f"{one['requests'] / one['wall_s']:,.0f}",
        "MiB, 2nd quarter": lambda one: f"{memory_mib(one, 0.25, 0.5):.0f}",
        "MiB, last": lambda one: f"{memory_mib(one, 0.75, 1):.0f}",
        "mean, ms": "{mean_ms:.1f}",
        "p99, ms": "{p99_ms:.1f}",
    }
    return table(columns, ({**cells[router], **run} for router, run in found["runs"].items()))


def fill(data: Data) -> Mapping[str, object]:
    return {
        **section_facts(data, "experiments.simulation"),
        "speed_rounds": len(next(iter(data["speed"]["policies"].values()))["wall_s"]),
        "speed_table": speed(data["speed"]),
        "sizing_shell": "\n".join(["```", *data["sizing"]["shell"], "```"]),
        "policies_table": policies(data["policies"]),
        "optimum_table": optimum(data["optimum"]),
        "fleet_most": largest(data["fleet"]),
        "fleet_table": fleet(data["fleet"]),
    }


def router_lines(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells for a line per router; all lines begin with the same cell of one replica."""
    one = next(cell for cell in cells if cell["replicas"] == 1)
    routers = list(dict.fromkeys(cell["router"] for cell in cells))
    lines = [cell for cell in cells if cell["replicas"] > 1] + [{**one, "router": router} for router in routers]
    return sorted(lines, key=lambda cell: (routers.index(cell["router"]), cell["replicas"]))


def draw(data: Data, folder: Path) -> None:
    from experiments.simulation import plots

    plots.against_load(data["policies"]["cells"], folder / "simulation-policies.png")
    plots.against_replicas(router_lines(data["fleet"]["cells"]), folder / "simulation-routers.png")


PAGE = Page("simulation", __file__, fill, draw=draw)
