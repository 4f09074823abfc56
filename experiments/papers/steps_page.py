"""The page of `steps`: a plot and two tables for each model, and the differences between live and simulated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.common.page import Column, Data, Page, bullets, joined, lines_table, ms, plural, table

#: One model: its name, peak, seeds and batch times, and under the name of each schedule a cell for each policy. A cell
#: holds the means of each step by seed, live and simulated, and the latencies of the first seed.
Study = Mapping[str, Any]
#: `steps`: number of requests and their rate, as a share of the peak.
Schedule = Mapping[str, Any]


def over_seeds(steps: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each step over the seeds; NaN if a seed has no answer in that step."""
    return [float(value) for value in np.asarray(steps, dtype=float).mean(axis=0)]


def missed(data: Data) -> list[str]:
    """Failed requests, by model, schedule and policy."""
    return [line for found in data["studies"] for line in failures(found, data["schedules"])]


def failures(found: Study, schedules: Sequence[Schedule]) -> list[str]:
    return [
        f"{found['model']}, {one['name']}, {policy}: "
        + ", ".join(f"{count} x {kind}" for kind, count in cell["failed"].items())
        + f" of {cell['requests']} requests, left out of the means"
        for one in schedules
        for policy, cell in found[one["name"]].items()
        if cell["failed"]
    ]


def section(found: Study, schedules: Sequence[Schedule]) -> str:
    model, seeds = found["model"], found["seeds"]
    times = ", ".join(f"{size}: {ms(time)}" for size, time in found["batch_ms"].items())
    fewer = "" if seeds == found["asked"] else f" ({found['asked']} did not fit into the time)"
    together = "".join(f"; {units} at once, 32 rows each: x {slow:.2f}" for units, slow in found["together"].items())
    lost = failures(found, schedules)
    return joined(
        [
            f"## {model}",
            f"Peak {found['peak']:.0f} requests/s; {seeds} seed{plural(seeds)}{fewer}. Batch times alone by rows, ms: "
            f"{times}{together}.",
            f"![{model}: latency by request, live and simulated, seed 0](steps-{model}.png)",
            means(found, schedules),
            servers(found, schedules),
            bullets(f"FAILED: {line}" for line in lost) or "Every request was answered, and rightly.",
        ]
    )


def means(found: Study, schedules: Sequence[Schedule]) -> str:
    """Means of each step for each policy, live, in the server, simulated, and their difference."""
    headings = ["policy", ""]
    for one in schedules:
        headings += [f"{one['name']}, {share:.0%}: {share * found['peak']:.0f}/s" for _, share in one["steps"]]
    rows = []
    for policy in found[schedules[0]["name"]]:
        cells = [found[one["name"]][policy] for one in schedules]
        live, served, virtual = (
            [value for cell in cells for value in over_seeds(cell[kind])]
            for kind in ("live_ms", "served_ms", "simulated_ms")
        )
        off = [f"{after / before - 1:+.0%}" for before, after in zip(served, virtual, strict=True)]
        rows += [[policy, "live", *map(ms, live)], ["", "in the server", *map(ms, served)]]
        rows += [["", "simulated", *map(ms, virtual)], ["", "off", *off]]
    return lines_table(headings, rows)


def servers(found: Study, schedules: Sequence[Schedule]) -> str:
    """Batch sizes and times, and the lag of the load generator."""
    units = list(next(iter(found[schedules[0]["name"]].values()))["against"])

    def others(cell: Mapping[str, Any]) -> str:
        known = [cores for cores in cell["others"] if cores is not None]
        return f"{np.mean(known):.2f}" if known else ""

    columns: dict[str, Column] = {
        "policy": "{policy}",
        "schedule": "{schedule}",
        "requests": "{requests}",
        "failed": lambda cell: sum(cell["failed"].values()),
        "rows a batch, live / sim": "{rows[0]:.2f} / {rows[1]:.2f}",
        "batch time, live / sim": "{unit_ms[0]:ms} / {unit_ms[1]:ms}",
        **{
            f"batch times over the profile's, {f'{count} at once' if count != '1' else 'alone'}":
            f"x {{against[{count}]:.2f}}" for count in units
        },
        "sender late, p99": "{late_ms:ms}",
        "others, cores": others,
    }  # fmt: skip
    rows = (
        {**cell, "policy": policy, "schedule": one["name"]}
        for one in schedules
        for policy, cell in found[one["name"]].items()
    )
    return table(columns, rows)


def differences(studies: Sequence[Study], schedules: Sequence[Schedule]) -> Iterator[str]:
    """A line for each model: how much simulated and live differ, and whether they agree on the best policy."""
    for found in studies:
        off: list[tuple[float, str]] = []
        agreed = total = 0
        for one in schedules:
            cells = found[one["name"]]
            served = {policy: over_seeds(cell["served_ms"]) for policy, cell in cells.items()}
            virtual = {policy: over_seeds(cell["simulated_ms"]) for policy, cell in cells.items()}
            for step, (_, share) in enumerate(one["steps"]):
                for policy in cells:
                    ratio = virtual[policy][step] / served[policy][step]
                    off.append((ratio - 1, f"{policy}, {one['name']}, {share:.0%}"))
                best = min(cells, key=lambda policy: virtual[policy][step])
                total += 1
                agreed += served[best][step] <= 1.05 * min(served[policy][step] for policy in cells)
        values = [value for value, _ in off]
        worst = max(off, key=lambda pair: abs(pair[0]))
        yield (
            f"{found['model']}: simulated is {np.median(values):+.0%} off in the middle of {len(off)} means "
            f"({min(values):+.0%} to {max(values):+.0%}), most for {worst[1]}; in {agreed} of {total} steps the policy "
            "that is simulated best is live within 5 % of the best."
        )


def fill(data: Data) -> Mapping[str, object]:
    studies, settings = data["studies"], data["settings"]
    within = f"{settings['slo_ms']:g} ms under `adaptive`, found by trying"
    peak = f"the largest rate\n  whose 99th percentile stays within {within}"
    return {
        "peak": "given on the command line" if settings["given"] else peak,
        "models": joined(section(found, data["schedules"]) for found in studies),
        "differences": bullets(differences(studies, data["schedules"])),
    }


def draw(data: Data, folder: Path) -> None:
    """A plot for each model whose latencies are stored."""
    from loadtest.common import plots

    for found in data["studies"]:
        if any("run" not in cell for one in data["schedules"] for cell in found[one["name"]].values()):
            continue
        rows = [
            [
                plots.Panel(
                    f"{policy}: {one['name']}",
                    [(count, share * found["peak"]) for count, share in one["steps"]],
                    {policy: cell["run"]["simulated"]},
                    {policy: cell["run"]["live"]},
                )
                for policy, cell in found[one["name"]].items()
            ]
            for one in data["schedules"]
        ]
        plots.live_over_simulated(found["model"], rows, folder / f"steps-{found['model']}.png")


PAGE = Page("steps", __file__, fill, missed, draw)
