"""The page of `steps`: a plot and two tables for each model, and where live and simulated differ."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench import machine

from . import page, plots
from .page import ms
from .steps_runs import WARM_S, Experiment

Found = dict[str, Any]

HEAD = """\
# Steps, live and simulated

Ebird's Figure 2 (a rate that rises every 150 requests) and Figure 8 (150 requests at a low rate, 250 at a high one) on
models of `app/models/zoo`, against real servers over HTTP and in the simulator.

- The device is the same for every policy: {at_once} of {threads} compute thread{s} each. `ebird` has its workers
  (1, 1, 2, 4, 8, 16), of which as many run at once; all others have {others}. `window` waits {delay:g} ms.
- Rates are shares of the model's own peak on that device: {peak}.
- A model's batch times were measured just before its runs (`starling profile`), and the simulator knows nothing else of
  the server. It gets the very instants that were sent, Poisson arrivals from the same seeds. {warm:g} s at the first
  rate go before each run, live and simulated, and are left out.
- One row a request, binary payload, sequences of 16 tokens; no deadline, no time limit. All policies' runs of a seed
  follow one another in alternation.
- "live" is what the client sees, from the intended instant to the last byte; "in the server" the part of it from
  arrival to the end of the batch (Server-Timing, queue and compute), which is what the simulator simulates; "off" is
  simulated over "in the server", less one. Means over the requests of a step, then over seeds; ms.
- Load generator, the server's event loop and the units share the machine's {cores} cores. The profile was measured
  without the first two: the nearer to the peak, the more of the difference is theirs.
"""

AFTER = """\
Where live and simulated differ. The simulator leaves out the hand-over of a batch from one thread to another and back,
HTTP, and all that slows a unit beside the busy event loop and the load generator; a unit that takes longer is a higher
load, and queues grow faster than batch times, the more so near the peak. A noisy profile is wrong for both: `adaptive`
decides by it live, too. "Batch times over the profile's" says how much longer: for the sizes that ran, against the
profile's times of units alone and of as many at once. Between the two is what the profile predicts for a device that is
now idle beside a unit, now not; above the second the machine was slower than when it was profiled. "Others" are
processes that had no part in the run.
"""


def shown(arguments: Sequence[str]) -> list[str]:
    """The command's arguments without folders of this machine."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--out")
    return parser.parse_known_args(list(arguments))[1]


def parts(studies: Sequence[Found], experiments: Sequence[Experiment], chosen: argparse.Namespace) -> list[str]:
    units = f"{chosen.at_once} unit{'s' * (chosen.at_once > 1)} at once"
    workers = f"{chosen.at_once} worker{'s' * (chosen.at_once > 1)} of 32 rows"
    peak = "the largest rate\n  whose 99th percentile stays within 200 ms under `adaptive`, found by trying"
    if any(found["given"] for found in studies):
        peak = "given on the command line"
    head = HEAD.format(
        at_once=units, threads=chosen.threads, s="s" * (chosen.threads > 1), others=workers, delay=chosen.delay,
        peak=peak, warm=WARM_S, cores=machine.cores(),
    )  # fmt: skip
    sections = [part for found in studies for part in section(found, experiments)]
    return [head, *sections, "## Differences", AFTER, "\n".join(differences(studies, experiments))]


def section(found: Found, experiments: Sequence[Experiment]) -> Iterator[str]:
    """One model."""
    model = found["model"]
    yield f"## {model}"
    times = ", ".join(f"{size}: {ms(time)}" for size, time in found["batch_ms"].items())
    fewer = "" if found["seeds"] == found["asked"] else f" ({found['asked']} did not fit into the time)"
    yield (
        f"Peak {found['peak']:.0f} requests/s; {found['seeds']} seed{'s' * (found['seeds'] > 1)}{fewer}. Batch times "
        f"alone by rows, ms: {times}"
        + "".join(f"; {units} at once, 32 rows each: x {slow:.2f}" for units, slow in found["together"].items())
        + "."
    )
    yield f"![{model}: latency by request, live and simulated, seed 0](steps-{model}.png)"
    yield page.table(*means(found, experiments))
    yield page.table(*servers(found, experiments))
    lost = list(failures(found, experiments))
    yield "\n".join(f"- FAILED: {line}" for line in lost) if lost else "Every request was answered, and rightly."


def means(found: Found, experiments: Sequence[Experiment]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: for each policy live, in the server, simulated and their difference, step by step."""
    headings = ["policy", ""]
    for one in experiments:
        headings += [f"{one.name}, {share:.0%}: {share * found['peak']:.0f}/s" for _, share in one.steps]
    rows = []
    for policy in found[experiments[0].name]:
        cells = [found[one.name][policy] for one in experiments]
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
    """The mean of each step over the seeds; NaN where a seed has no answer to any of its requests."""
    return [float(value) for value in np.asarray(steps, dtype=float).mean(axis=0)]


def servers(found: Found, experiments: Sequence[Experiment]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: what the batches were like, and how late the load generator was."""
    units = list(next(iter(found[experiments[0].name].values()))["against"])
    headings = ["policy", "", "requests", "failed", "rows a batch, live / sim", "batch time, live / sim",
                *(f"batch times over the profile's, {f'{k} at once' if k != '1' else 'alone'}" for k in units),
                "sender late, p99", "others, cores"]  # fmt: skip
    rows = []
    for one in experiments:
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


def failures(found: Found, experiments: Sequence[Experiment]) -> Iterator[str]:
    """A line for each policy of which requests failed."""
    for one in experiments:
        for policy, cell in found[one.name].items():
            if cell["failed"]:
                kinds = ", ".join(f"{count} x {kind}" for kind, count in cell["failed"].items())
                asked = f"of {cell['requests']} requests, left out of the means"
                yield f"{found['model']}, {one.name}, {policy}: {kinds} {asked}"


def differences(studies: Sequence[Found], experiments: Sequence[Experiment]) -> Iterator[str]:
    """A line for each model: how far off, where most, and whether the two agree on the best policy."""
    for found in studies:
        off: list[tuple[float, str]] = []
        agreed = total = 0
        for one in experiments:
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


def stored(studies: Sequence[Found], experiments: Sequence[Experiment]) -> list[Found]:
    """For the JSON: without latencies request by request, which the plots show."""
    kept = []
    for found in studies:
        figures = {
            one.name: {
                policy: {name: value for name, value in cell.items() if name != "run"}
                for policy, cell in found[one.name].items()
            }
            for one in experiments
        }
        kept.append({**found, **figures})
    return kept


def draw(studies: Sequence[Found], folder: Path, experiments: Sequence[Experiment]) -> list[str]:
    """A plot for each model; their names."""
    names = []
    for found in studies:
        rows = [
            [
                plots.Panel(
                    f"{policy}: {one.name}", [(count, share * found["peak"]) for count, share in one.steps],
                    {policy: cell["run"]["simulated"]}, {policy: cell["run"]["live"]},
                )
                for policy, cell in found[one.name].items()
            ]
            for one in experiments
        ]  # fmt: skip
        names.append(f"steps-{found['model']}.png")
        plots.live_over_simulated(found["model"], rows, folder / names[-1])
    return names
