"""The page of `steps`: a plot and two tables for each model, and the differences between live and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from experiments.papers.steps_data import Schedule, Settings, StepsData, Study
from loadtest.common import markdown
from loadtest.common.markdown import ms, plural

HEAD = """\
# Steps, live and simulated

Ebird's Figure 2 (the rate rises every 150 requests) and Figure 8 (150 requests at a low rate, 250 at a high one) with
models of `app/models/zoo`, on real servers over HTTP and in the simulator.

- Every policy has the same device: {at_once} of {threads} compute thread{s} each. `ebird` has its workers
  (1, 1, 2, 4, 8, 16), of which as many run at once; all others have {others}. `window` waits {delay:g} ms.
- Rates are shares of the model's own peak on that device: {peak}.
- A model's batch times were measured just before its runs (`starling profile`); the simulator knows nothing else about
  the server. It gets the same instants that were sent, Poisson arrivals from the same seeds. Each run, live and
  simulated, begins with {warm:g} s at the first rate, which are left out.
- One row per request, binary payload, sequences of 16 tokens, no deadline and no time limit. The policies take turns
  within each seed.
- "live" is the client's latency from the intended instant to the last byte. "in the server" is the part from arrival to
  the end of the batch (Server-Timing, queue and compute), which is what the simulator computes. "off" is simulated over
  "in the server", less one. Means in ms, first over the requests of a step, then over seeds.
- Load generator, event loop and units share the machine's {cores} cores. The profile was measured without the first
  two, which explain more of the difference the closer the rate is to the peak.
"""

AFTER = """\
The simulator leaves out HTTP, the time to hand a batch to another thread and back, and everything that slows down a
unit beside the busy event loop and the load generator. A unit that takes longer is a higher load, and queues grow
faster than batch times, above all near the peak. A noisy profile affects both sides: `adaptive` uses it live as well.
"Batch times over the profile's" compares the batches that ran with the profile's times of units alone and of as many
units at once. Values between the two are what the profile predicts for a device on which units run sometimes alone and
sometimes together. If the second value is above 1, the machine was slower than when it was profiled. "Others" are
processes with no part in the run.
"""


def head(settings: Settings) -> str:
    at_once, threads = settings["at_once"], settings["threads"]
    within = f"{settings['slo_ms']:g} ms under `adaptive`, found by trying"
    peak = f"the largest rate\n  whose 99th percentile stays within {within}"
    return HEAD.format(
        at_once=f"{at_once} unit{plural(at_once)} at once", threads=threads, s=plural(threads),
        others=f"{at_once} worker{plural(at_once)} of 32 rows", delay=settings["delay_ms"],
        peak="given on the command line" if settings["given"] else peak, warm=settings["warm_s"],
        cores=settings["cores"],
    )  # fmt: skip


def schedules_of(data: StepsData) -> list[Schedule]:
    return [Schedule(one["name"], tuple((count, share) for count, share in one["steps"])) for one in data["schedules"]]


def write(data: StepsData, folder: Path) -> list[str]:
    studies, schedules = data["studies"], schedules_of(data)
    names = draw(studies, folder, schedules)
    parts = [head(data["settings"])]
    for found in studies:
        parts += section(found, schedules)
    parts += ["## Differences", AFTER, "\n".join(differences(studies, schedules)), markdown.facts_list(data["facts"])]
    return [*names, markdown.write(parts, folder / "steps.md")]


def missed(data: StepsData) -> list[str]:
    """Failed requests, by model, schedule and policy."""
    schedules = schedules_of(data)
    return [line for found in data["studies"] for line in failures(found, schedules)]


def section(found: Study, schedules: Sequence[Schedule]) -> Iterator[str]:
    """The section of one model."""
    model = found["model"]
    yield f"## {model}"
    times = ", ".join(f"{size}: {ms(time)}" for size, time in found["batch_ms"].items())
    fewer = "" if found["seeds"] == found["asked"] else f" ({found['asked']} did not fit into the time)"
    yield (
        f"Peak {found['peak']:.0f} requests/s; {found['seeds']} seed{plural(found['seeds'])}{fewer}. Batch times "
        f"alone by rows, ms: {times}"
        + "".join(f"; {units} at once, 32 rows each: x {slow:.2f}" for units, slow in found["together"].items())
        + "."
    )
    yield f"![{model}: latency by request, live and simulated, seed 0](steps-{model}.png)"
    yield markdown.table(*means(found, schedules))
    yield markdown.table(*servers(found, schedules))
    lost = list(failures(found, schedules))
    yield "\n".join(f"- FAILED: {line}" for line in lost) if lost else "Every request was answered, and rightly."


def means(found: Study, schedules: Sequence[Schedule]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: means of each step for each policy, live, in the server, simulated, and their difference."""
    headings = ["policy", ""]
    for one in schedules:
        headings += [f"{one.name}, {share:.0%}: {share * found['peak']:.0f}/s" for _, share in one.steps]
    rows = []
    for policy in found[schedules[0].name]:
        cells = [found[one.name][policy] for one in schedules]
        live, served, virtual = (
            [value for cell in cells for value in over_seeds(cell[kind])]
            for kind in ("live_ms", "served_ms", "simulated_ms")
        )
        off = [f"{after / before - 1:+.0%}" for before, after in zip(served, virtual, strict=True)]
        rows += [
            [policy, "live", *map(ms, live)], ["", "in the server", *map(ms, served)],
            ["", "simulated", *map(ms, virtual)], ["", "off", *off],
        ]  # fmt: skip
    return headings, rows


def over_seeds(steps: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each step over the seeds; NaN if a seed has no answer in that step."""
    return [float(value) for value in np.asarray(steps, dtype=float).mean(axis=0)]


def servers(found: Study, schedules: Sequence[Schedule]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: batch sizes and times, and the lag of the load generator."""
    units = list(next(iter(found[schedules[0].name].values()))["against"])
    headings = ["policy", "", "requests", "failed", "rows a batch, live / sim", "batch time, live / sim",
                *(f"batch times over the profile's, {f'{k} at once' if k != '1' else 'alone'}" for k in units),
                "sender late, p99", "others, cores"]  # fmt: skip
    rows = []
    for one in schedules:
        for policy, cell in found[one.name].items():
            known = [cores for cores in cell["others"] if cores is not None]
            others = f"{np.mean(known):.2f}" if known else ""
            batch = " / ".join(f"{value:.2f}" for value in cell["rows"])
            rows.append([
                policy, one.name, str(cell["requests"]), str(sum(cell["failed"].values())),
                batch, " / ".join(ms(value) for value in cell["unit_ms"]),
                *(f"x {cell['against'][k]:.2f}" for k in units), ms(cell["late_ms"]), others,
            ])  # fmt: skip
    return headings, rows


def failures(found: Study, schedules: Sequence[Schedule]) -> Iterator[str]:
    """A line for each policy with failed requests."""
    for one in schedules:
        for policy, cell in found[one.name].items():
            if cell["failed"]:
                kinds = ", ".join(f"{count} x {kind}" for kind, count in cell["failed"].items())
                asked = f"of {cell['requests']} requests, left out of the means"
                yield f"{found['model']}, {one.name}, {policy}: {kinds} {asked}"


def differences(studies: Sequence[Study], schedules: Sequence[Schedule]) -> Iterator[str]:
    """A line for each model: how much simulated and live differ, and whether they agree on the best policy."""
    for found in studies:
        off: list[tuple[float, str]] = []
        agreed = total = 0
        for one in schedules:
            cells = found[one.name]
            served = {policy: over_seeds(cell["served_ms"]) for policy, cell in cells.items()}
            virtual = {policy: over_seeds(cell["simulated_ms"]) for policy, cell in cells.items()}
            for step, (_, share) in enumerate(one.steps):
                off += [(virtual[policy][step] / served[policy][step] - 1, f"{policy}, {one.name}, {share:.0%}")
                        for policy in cells]  # fmt: skip
                best = min(cells, key=lambda policy: virtual[policy][step])
                total += 1
                agreed += served[best][step] <= 1.05 * min(served[policy][step] for policy in cells)
        values = [value for value, _ in off]
        worst = max(off, key=lambda pair: abs(pair[0]))
        yield (
            f"- {found['model']}: simulated is {np.median(values):+.0%} off in the middle of {len(off)} means "
            f"({min(values):+.0%} to {max(values):+.0%}), most for {worst[1]}; in {agreed} of {total} steps the policy "
            "that is simulated best is live within 5 % of the best."
        )


def draw(studies: Sequence[Study], folder: Path, schedules: Sequence[Schedule]) -> list[str]:
    """Draw a plot for each model whose latencies are stored; returns the names."""
    from loadtest.common import plots

    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for found in studies:
        if any("run" not in cell for one in schedules for cell in found[one.name].values()):
            continue
        rows = [
            [
                plots.Panel(
                    f"{policy}: {one.name}", [(count, share * found["peak"]) for count, share in one.steps],
                    {policy: cell["run"]["simulated"]}, {policy: cell["run"]["live"]},
                )
                for policy, cell in found[one.name].items()
            ]
            for one in schedules
        ]  # fmt: skip
        names.append(f"steps-{found['model']}.png")
        plots.live_over_simulated(found["model"], rows, folder / names[-1])
    return names
