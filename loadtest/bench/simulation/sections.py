"""What is measured: speed, sizing, policies against load, the optimum, and fleets of replicas behind routers."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from app.commands import plots
from app.scheduler.estimates.profile import ModelProfile, linear, parse
from app.scheduler.optimal import solver as optimal
from app.scheduler.policies import POLICIES
from app.sim.fleet import Setup, run
from app.sim.routers import ROUTERS

from ..load import ROOT
from .command import Ran, said, starling
from .section import Say, Section

MODEL = "linear:7+0.6b"  # the device of most figures: 7 ms and 0.6 ms a row
LOADS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))

#: The example of docs/simulation.md: batch times as once measured of `mlp` on one CPU thread, and the rest made up.
EXAMPLE = {
    "model": "mlp", "device": "cpu", "threads": 1, "max_batch": 32,
    "batch_ms": {"1": 4.6, "2": 9.5, "3": 14.0, "4": 10.0, "8": 11.7, "16": 17.4, "32": 25.3},
    "concurrency": {"2": {"1": 7.0, "32": 48.0}},
    "power_w": {"idle": 20, "busy": 65},
    "transfer_ms": {"1": 0.06, "32": 1.0},
}  # fmt: skip
MLP = "an MLP on one CPU thread"

#: Batch times in ms, the curves whose optimum docs/simulation.md compares.
CURVES: dict[str, ModelProfile] = {
    "7 + 0.6 b": linear(7, 0.6, 32),
    "0.2 + 3 b": linear(0.2, 3, 32),
    "4 up to 8 rows, then 0.4 more a row": parse({"batch_ms": {"1": 4, "8": 4, "32": 4 + 24 * 0.4}}),
    MLP: parse(EXAMPLE),
}

PROFILE = "simulation-profile.json"
ROUNDS = 3
MILLION = 1_000_000
REPLICAS = (1, 10, 100, 1000, 10_000)
POLICY_REQUESTS = 200_000


def speed(folder: Path, say: Say) -> Section:
    """How long a million requests take on one core."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    for policy in ("no_wait", "window", "adaptive"):
        arguments = (
            "simulate", "--profile", MODEL, "--policy", policy, "--load", "0.6", "--requests", str(MILLION), "--json",
        )  # fmt: skip
        rounds = []
        for _ in range(ROUNDS):
            say(f"speed: {policy}")
            rounds.append(starling(*arguments))
        walls = [ran.wall_s for ran in rounds]
        cpu_s = median(ran.cpu_s for ran in rounds)
        data[policy] = {
            "wall_s": walls,
            "cpu_s": cpu_s,
            "peak_mib": max(ran.mib(0, 1) for ran in rounds),
            "cell": rounds[0].cell,
        }
        rows.append(
            [policy, f"{median(walls):.1f}", f"{min(walls):.1f} – {max(walls):.1f}", f"{cpu_s:.1f}",
             f"{MILLION / median(walls):,.0f}", f"{data[policy]['peak_mib']:.0f}"]
        )  # fmt: skip
    return Section(
        "speed", "A million requests on one core",
        f"`starling simulate --profile {MODEL} --policy P --load 0.6 --requests 1000000`, one serial device, from exec "
        f"to exit; `adaptive` solves its tables first. Median of {ROUNDS}.",
        ("policy", "wall, s", "min – max", "CPU, s", "requests/s", "peak memory, MiB"), rows, data=data,
    )  # fmt: skip


def sizing(folder: Path, say: Say) -> Section:
    """What the commands of docs/simulation.md print."""
    (folder / PROFILE).write_text(json.dumps(EXAMPLE, indent=1) + "\n", encoding="utf-8")
    profile = ("--profile", _named(folder / PROFILE))
    needed = ("--rate", "5000", "--deadline-ms", "60")
    commands = (
        ("simulate", *profile, "--load", "0.3,0.6,0.9"),
        ("simulate", *profile, *needed, "--replicas", "4,5,6", "--router", "round_robin,least_waiting"),
        ("optimum", *profile, "--rate", "1000"),
        ("simulate", *profile, *needed, "--replicas", "5,10", "--router", "round_robin", "--arrivals", "bursty:1:1"),
    )
    shell: list[str] = []
    for command in commands:
        say(f"sizing: {' '.join(command)}")
        shell += [*([""] if shell else []), *said(*command)]
    return Section(
        "sizing", "Sizing a deployment",
        f"The commands of docs/simulation.md on its example of a profile, [{PROFILE}]({PROFILE}), and what they print.",
        shell=shell,
    )  # fmt: skip


def policies(folder: Path, say: Say) -> Section:
    """Every policy against load, with the least mean latency that any could reach."""
    profile = CURVES[MLP]
    cells: list[dict[str, Any]] = []
    for policy in POLICIES:
        say(f"policies: {policy}")
        setups = [Setup(profile, load * profile.peak, policy, POLICY_REQUESTS, seed=1) for load in LOADS]
        cells += [run(setup) | {"load": load} for setup, load in zip(setups, LOADS, strict=True)]
    for load in LOADS:
        best = optimal.solve(profile.batch_ns, load * profile.peak)
        cells.append({"policy": "optimum", "load": load, "mean_ms": best.mean_ns / 1e6, "p99_ms": None})
    plots.latency(cells, folder / "simulation-policies.png")
    rows = [
        [name, *(_mean_and_tail(cell) for cell in cells if cell["policy"] == name and cell["load"] in LOADS[::2])]
        for name in (*POLICIES, "optimum")
    ]
    return Section(
        "policies", "Policies against load",
        f"Mean / 99th percentile in ms of each policy on one device with the batch times of {MLP} ({_times(profile)} "
        f"ms), Poisson arrivals, {POLICY_REQUESTS:,} requests a point; `window`, `static` and `preferred` wait 5 ms at "
        "most. `optimum` is the exact least mean of any policy.",
        ("load", *(f"{load:.1f}" for load in LOADS[::2])), rows, "simulation-policies.png", data={"cells": cells},
    )  # fmt: skip


def _named(path: Path) -> str:
    """As one would type it in the checkout, where it lies there."""
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _mean_and_tail(cell: dict[str, Any]) -> str:
    tail = "" if cell["p99_ms"] is None else f" / {_ms(cell['p99_ms'])}"
    return f"{_ms(cell['mean_ms'])}{tail}"


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _times(profile: ModelProfile) -> str:
    sizes = [size for size in (1, 2, 3, 4, 8, 16, 32) if size <= profile.max_batch]
    return ", ".join(f"{size}: {profile.batch_ns[size - 1] / 1e6:g}" for size in sizes)


def optimum(folder: Path, say: Say) -> Section:
    """How far serving all that waits is from the optimum, both exactly."""
    rows: list[list[str]] = []
    data: dict[str, Any] = {}
    for name, profile in CURVES.items():
        say(f"optimum: {name}")
        above = []
        for load in LOADS:
            rate = load * profile.peak
            best = optimal.solve(profile.batch_ns, rate)
            every = [min(waiting, profile.max_batch) for waiting in range(512)]
            all_ns = optimal.evaluate(profile.batch_ns, rate, every, pad=False).mean_ns
            above.append(all_ns / best.mean_ns - 1)
        data[name] = dict(zip(map(str, LOADS), above, strict=True))
        rows.append([name, f"{max(above):.1%}", f"{LOADS[above.index(max(above))]:.1f}", f"{max(0.0, min(above)):.1%}"])
    return Section(
        "optimum", "Serving all that waits, against the optimum",
        "Mean latency above the exact least mean, Poisson arrivals, loads from 0.1 to 0.9; batches run at their own "
        "size. Solved, not simulated.",
        ("batch times, ms", "worst", "at load", "best"), rows, data=data,
    )  # fmt: skip


def fleet(folder: Path, say: Say) -> Section:
    """Replicas behind each router, up to 10,000 of them with ten million requests."""
    rows: list[list[str]] = []
    cells: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    for router in ROUTERS:
        for replicas in REPLICAS:
            if replicas == 1 and router != ROUTERS[0]:
                continue
            ran = _fleet(router, replicas, say)
            cell = {"router": router, "replicas": 1, **ran.cell}
            cells.append(cell)
            if replicas == max(REPLICAS):
                runs[router] = {"wall_s": ran.wall_s, "cpu_s": ran.cpu_s, "samples": ran.samples}
                rows.append(_fleet_row(ran))
    one = next(cell for cell in cells if cell["replicas"] == 1)
    lines = [cell for cell in cells if cell["replicas"] > 1] + [{**one, "router": router} for router in ROUTERS]
    plots.latency(sorted(lines, key=lambda cell: (ROUTERS.index(cell["router"]), cell["replicas"])),
                  folder / "simulation-routers.png")  # fmt: skip
    return Section(
        "fleet", "Replicas behind a router",
        f"`starling simulate --profile {MODEL} --policy no_wait --load 0.6 --replicas K --router R`, {max(REPLICAS):,} "
        f"replicas and ten million requests in the table, a million for fewer replicas in the plot. `split`: each "
        "replica is simulated by itself, shared out to processes; `coupled`: the router looks at the replicas, so all "
        "stand in one simulation and one process. Memory is that of all processes, sampled each second: the most in "
        "the second and in the last quarter of the run.",
        ("router", "simulated", "wall, s", "CPU, s", "requests/s", "MiB, 2nd quarter", "MiB, last", "mean, ms",
         "p99, ms"),
        rows, "simulation-routers.png", data={"cells": cells, "runs": runs},
    )  # fmt: skip


def _fleet(router: str, replicas: int, say: Say) -> Ran:
    requests = 10 * MILLION if replicas == max(REPLICAS) else MILLION
    say(f"fleet: {router}, {replicas:,} replicas, {requests:,} requests")
    return starling(
        "simulate", "--profile", MODEL, "--policy", "no_wait", "--load", "0.6", "--requests", str(requests),
        "--replicas", str(replicas), *(("--router", router) if replicas > 1 else ()), "--json",
    )  # fmt: skip


def _fleet_row(ran: Ran) -> list[str]:
    cell = ran.cell
    return [
        cell["router"], cell["simulated"], f"{ran.wall_s:.0f}", f"{ran.cpu_s:.0f}",
        f"{cell['requests'] / ran.wall_s:,.0f}",
        f"{ran.mib(0.25, 0.5):.0f}", f"{ran.mib(0.75, 1):.0f}", f"{cell['mean_ms']:.1f}", f"{cell['p99_ms']:.1f}",
    ]  # fmt: skip


def transfers(folder: Path, say: Say) -> Section:
    """What copies cost, part of a unit and beside it."""
    profile = parse({**linear(2, 0.1, 32).to_dict(), "transfer_ms": {"1": 0.06, "32": 1.0}})
    rows: list[list[str]] = []
    cells = []
    for load in (0.3, 0.6, 0.9):
        say(f"transfers: load {load}")
        found = [
            run(Setup(profile, load * profile.peak, "no_wait", POLICY_REQUESTS, seed=1, transfers=kind))
            for kind in ("none", "overlap", "serial")
        ]
        cells += found
        rows.append([f"{load:.1f}", *map(_mean_and_tail, found)])
    return Section(
        "transfers", "Copies beside units, and in them",
        "Mean / 99th percentile in ms, a made-up device: 2 + 0.1 b ms a batch, copies of 0.06 ms for one row to 1 ms "
        "for 32, `no_wait`. The load counts batch times alone: with copies in the units, 0.9 of it is too much.",
        ("load", "none", "overlap", "serial"), rows, data={"cells": cells},
    )  # fmt: skip


SECTIONS = {
    "speed": speed,
    "sizing": sizing,
    "policies": policies,
    "optimum": optimum,
    "transfers": transfers,
    "fleet": fleet,
}
