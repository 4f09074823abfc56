"""The page of the simulator's figures, with a section for each entry of simulation.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown

Figures = Mapping[str, Any]

HEAD = """\
# The simulator, measured

Latencies here are of virtual time: they follow from the profile and the seed, and are the same on every machine. Wall
times, rates and memory are of the machine named. `python -m experiments.simulation` makes the page, with a name one
section of it.
"""


def speed(found: Figures) -> list[str]:
    rows = [
        [policy, f"{median(one['wall_s']):.1f}", f"{min(one['wall_s']):.1f} – {max(one['wall_s']):.1f}",
         f"{one['cpu_s']:.1f}", f"{found['requests'] / median(one['wall_s']):,.0f}", f"{one['peak_mib']:.0f}"]
        for policy, one in found["policies"].items()
    ]  # fmt: skip
    return [
        "## A million requests on one core",
        f"`starling simulate --profile {found['model']} --policy P --load 0.6 --requests {found['requests']}`, one "
        "serial device, from exec to exit; `adaptive` solves its tables first. Median of "
        f"{len(next(iter(found['policies'].values()))['wall_s'])}.",
        markdown.table(("policy", "wall, s", "min – max", "CPU, s", "requests/s", "peak memory, MiB"), rows),
    ]


def sizing(found: Figures) -> list[str]:
    profile = found["profile"]
    return [
        "## Sizing a deployment",
        f"The commands of docs/simulation.md on its example of a profile, [{profile}]({profile}), and what they print.",
        "\n".join(["```", *found["shell"], "```"]),
    ]


def policies(found: Figures) -> list[str]:
    loads = found["loads"][::2]
    cells = found["cells"]
    rows = [
        [name, *(mean_and_tail(cell) for cell in cells if cell["policy"] == name and cell["load"] in loads)]
        for name in dict.fromkeys(cell["policy"] for cell in cells)
    ]
    return [
        "## Policies against load",
        f"Mean / 99th percentile in ms of each policy on one device with the batch times of {found['device']} "
        f"({found['times']} ms), Poisson arrivals, {found['requests']:,} requests a point; `window`, `static` and "
        "`preferred` wait 5 ms at most. `optimum` is the exact least mean of any policy.",
        markdown.table(("load", *(f"{load:.1f}" for load in loads)), rows),
        "![Policies against load](simulation-policies.png)",
    ]


def optimum(found: Figures) -> list[str]:
    rows = []
    for name, by_load in found["above"].items():
        worst = max(by_load, key=lambda load: by_load[load])
        rows.append([name, f"{by_load[worst]:.1%}", worst, f"{max(0.0, min(by_load.values())):.1%}"])
    return [
        "## Serving all that waits, against the optimum",
        "Mean latency above the exact least mean, Poisson arrivals, loads from 0.1 to 0.9; batches run at their own "
        "size. Solved, not simulated.",
        markdown.table(("batch times, ms", "worst", "at load", "best"), rows),
    ]


def transfers(found: Figures) -> list[str]:
    rows = [[f"{one['load']:.1f}", *map(mean_and_tail, one["cells"])] for one in found["loads"]]
    return [
        "## Copies beside units, and in them",
        "Mean / 99th percentile in ms, a made-up device: 2 + 0.1 b ms a batch, copies of 0.06 ms for one row to 1 ms "
        "for 32, `no_wait`. The load counts batch times alone: with copies in the units, 0.9 of it is too much.",
        markdown.table(("load", *found["kinds"]), rows),
    ]


def fleet(found: Figures) -> list[str]:
    most = max(cell["replicas"] for cell in found["cells"])
    rows = []
    for router, ran in found["runs"].items():
        cell = next(one for one in found["cells"] if (one["router"], one["replicas"]) == (router, most))
        rows.append(
            [router, cell["simulated"], f"{ran['wall_s']:.0f}", f"{ran['cpu_s']:.0f}",
             f"{cell['requests'] / ran['wall_s']:,.0f}", f"{memory_mib(ran, 0.25, 0.5):.0f}",
             f"{memory_mib(ran, 0.75, 1):.0f}", f"{cell['mean_ms']:.1f}", f"{cell['p99_ms']:.1f}"]
        )  # fmt: skip
    return [
        "## Replicas behind a router",
        f"`starling simulate --profile {found['model']} --policy no_wait --load 0.6 --replicas K --router R`, {most:,} "
        "replicas and ten million requests in the table, a million for fewer replicas in the plot. `split`: each "
        "replica is simulated by itself, shared out to processes; `coupled`: the router looks at the replicas, so all "
        "stand in one simulation and one process. Memory is that of all processes, sampled each second: the most in "
        "the second and in the last quarter of the run.",
        markdown.table(
            ("router", "simulated", "wall, s", "CPU, s", "requests/s", "MiB, 2nd quarter", "MiB, last", "mean, ms",
             "p99, ms"), rows,
        ),
        "![Replicas behind a router](simulation-routers.png)",
    ]  # fmt: skip


#: In the order of the page.
SECTIONS: dict[str, Callable[[Figures], list[str]]] = {
    "speed": speed, "sizing": sizing, "policies": policies, "optimum": optimum, "transfers": transfers, "fleet": fleet,
}  # fmt: skip


def mean_and_tail(cell: Mapping[str, Any]) -> str:
    tail = "" if cell["p99_ms"] is None else f" / {ms(cell['p99_ms'])}"
    return f"{ms(cell['mean_ms'])}{tail}"


def ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def memory_mib(ran: Figures, begin: float, end: float) -> float:
    """The most memory between two shares of a run; 0 if it was too short for a sample."""
    inside = [mib for at, mib in ran["samples"] if begin * ran["wall_s"] <= at <= end * ran["wall_s"]]
    return max(inside, default=0.0)


def draw(known: Figures, folder: Path) -> list[str]:
    """Draw the plots of the sections that have one; returns their names."""
    if not {"policies", "fleet"} & set(known):
        return []
    from app.cli import plots

    names = []
    if "policies" in known:
        names.append("simulation-policies.png")
        plots.latency(known["policies"]["cells"], folder / names[-1])
    if "fleet" in known:
        names.append("simulation-routers.png")
        plots.latency(router_lines(known["fleet"]["cells"]), folder / names[-1])
    return names


def router_lines(cells: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells for a line per router; all lines begin with the same cell of one replica."""
    one = next(cell for cell in cells if cell["replicas"] == 1)
    routers = list(dict.fromkeys(cell["router"] for cell in cells))
    lines = [cell for cell in cells if cell["replicas"] > 1] + [{**one, "router": router} for router in routers]
    return sorted(lines, key=lambda cell: (routers.index(cell["router"]), cell["replicas"]))


def section(name: str, found: Figures) -> list[str]:
    """The parts of one section, with its command, date and machine at the end."""
    told = "; ".join(f"{fact}: {text}" for fact, text in found["facts"].items())
    return [*SECTIONS[name](found), f"<sub>`python -m experiments.simulation {name}`; {told}</sub>"]


def write(known: Figures, folder: Path) -> list[str]:
    """Write `simulation.md` and its plots from simulation.json."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [part for name in SECTIONS if name in known for part in section(name, known[name])]
    return [*draw(known, folder), markdown.write([HEAD, *parts], folder / "simulation.md")]
