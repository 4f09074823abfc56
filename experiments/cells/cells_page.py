"""The page of `cells`: recurrent models by their cell against the same weights served whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

CELLS = "cells"
PEAK = 1.10  # of the better baseline's, with lengths that differ
P50_VARIED, AT = 0.65, 0.7  # of the best baseline's at this share of its peak
P50_ALIKE, FROM, TO = 0.80, 0.3, 0.8  # with one length, at these shares
JOIN = 3  # steps
STEP = 0.10  # of a step

HEAD = """\
# Recurrent models by their cell

The model `lstm` (an embedding, two LSTM layers of 512, a head) under Poisson arrivals over HTTP: by its cell, so that
rows join and leave between steps (Late Batching), and the same weights served whole by the same server. "packed" runs
rows of any length together, as `pack_padded_sequence` has it. "padded" runs each row as long as the longest of its
batch; rows of different buckets share no batch. The width of the buckets is the one of {widths} that serves the most
rows a second.

- One worker of {largest} rows with {threads} compute thread{s}; policy `{policy}` by cells, `{whole_policy}` whole.
  {bodies} requests of one row from a seed, binary. The answers of all three are the plain module's (the largest
  difference is {worst:.0e}), and under load each is compared with the first to the same request.
- "at most" is a closed loop: {in_flight} requests in flight over their mean latency, without the first third. The
  peak is the largest Poisson rate with a 99th percentile of at most {p99_ms:.0f} ms in a run of {try_s:g} s that begins
  with an idle server: one that is overloaded by a few percent still keeps it, and that is the same for all.
- Rates are shares of the better baseline's peak. Runs of each model at each rate: {repeats}, of {seconds:g} s, the
  models in turn with the same arrivals; the table has the median of the runs' percentiles. Latencies are the client's,
  from the intended instant.
- Load generator, event loop and worker share the machine's cores.
"""
STEPS = """\
## Joining and leaving

A row of length 1 arrives in the middle of a batch of {long_rows} rows of length {long}: how long until it is answered.
In the server's process without HTTP; whole means that the batch runs to its end by the very same cell.
"""
COST = """\
## What a step costs beyond the cell

CPU time of the process for a step of {rows} rows, without HTTP: the engine against a bare loop over the cell, in turn,
one thread. "together": all rows begin together and make {steps} steps. "in turn": at each step one row leaves and
another joins, so that a step also pays for a request. The policy is `late`, which runs all rows together. The target is
at most {target:.0%} of a step of `lstm`, whose layers are two.
"""


_WHY = """Why cells lose here: the GPU of the paper takes as long for a step of 64 rows as for one of one row, so that
rows which join cost nothing. A CPU's core takes longer for each row (`bare loop` above), so that rows which run
together slow one another down, the long ones for as long as they run. And what a whole batch multiplies at once for all
steps of a layer, steps multiply a few rows at a time, reading all weights each time. What cells do give is that a short
row does not wait for a long one, and that no bucket has to be chosen. In the simulator, with steps of a GPU's shape,
they gain what the paper says ([stages](stages.md))."""


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %"


def varied(found: Mapping[str, Any]) -> bool:
    """Whether rows differ in length."""
    return len(found["whole"]) > 1


def best_p50(found: Mapping[str, Any], load: Mapping[str, Any]) -> float:
    return min(load[model]["p50_ms"] for model in found["whole"])


def peak_ratio(found: Mapping[str, Any]) -> float:
    """The peak by cells over that of the better baseline."""
    peaks = found["peaks"]
    return float(peaks[CELLS] / max(peaks[model] for model in found["whole"]))


def missed(data: Mapping[str, Any]) -> list[str]:
    """The targets that are not reached, in words."""
    lines = [line for found in data["datasets"] for line in _missed_live(found)]
    steps = median(steps for steps, _ in data["steps"]["join"]["cells"])
    if steps > JOIN:
        lines.append(f"a row of length 1 is answered after {steps:g} steps, target {JOIN}")
    for cost in data["steps"]["costs"][:1]:
        for way in ("together", "in_turn"):
            beyond = cost[way] / cost["bare"] - 1
            if beyond > STEP:
                lines.append(f"a step costs {percent(beyond)} beyond the cell, {way.replace('_', ' ')}")
    return lines


def _missed_live(found: Mapping[str, Any]) -> list[str]:
    name, lines = found["dataset"], []
    if varied(found) and peak_ratio(found) < PEAK:
        lines.append(f"{name}: peak {percent(peak_ratio(found) - 1)}, target {percent(PEAK - 1)}")
    for load in found["loads"]:
        ratio, share = load[CELLS]["p50_ms"] / best_p50(found, load), load["share"]
        if varied(found) and share == AT and ratio > P50_VARIED:
            lines.append(f"{name}, {share:g} of the peak: p50 {ratio:.2f} x, target {P50_VARIED}")
        if not varied(found) and FROM <= share <= TO and ratio > P50_ALIKE:
            lines.append(f"{name}, {share:g} of the peak: p50 {ratio:.2f} x, target {P50_ALIKE}")
    return lines


def shown(model: str) -> str:
    """A model's name for people: `padded40` is padded, in buckets of 40."""
    width = model.removeprefix("padded")
    return f"padded, width {width}" if width != model else model


def rates(found: Mapping[str, Any]) -> str:
    rows = [
        [shown(model), f"{most:.0f}", f"{found['peaks'][model]:.0f}" if model in found["peaks"] else ""]
        for model, most in found["most"].items()
    ]
    return table(("rows/s", "at most", "peak"), rows)


def latencies(found: Mapping[str, Any]) -> str:
    models = [CELLS, *found["whole"]]
    rows = []
    for load in found["loads"]:
        cells = [f"{ms(load[model]['p50_ms'])} / {ms(load[model]['p99_ms'])}" for model in models]
        tails = min(load[model]["p99_ms"] for model in found["whole"])
        ratios = (load[CELLS]["p50_ms"] / best_p50(found, load), load[CELLS]["p99_ms"] / tails)
        rows.append([f"{load['share']:g}", f"{load['rate']:.0f}", *cells, " / ".join(f"{one:.2f} x" for one in ratios)])
    names = [f"{shown(model)}: p50 / p99, ms" for model in models]
    return table(("of the peak", "rows/s", *names, "cells over the best"), rows)


def joins(join: Mapping[str, Sequence[Sequence[float]]]) -> str:
    rows = []
    for name, found in join.items():
        steps, times = zip(*found, strict=True)
        rows.append([name, f"{median(steps):g} ({min(steps):g} to {max(steps):g})", ms(median(times))])
    return table(("", "steps", "ms"), rows)


def costs(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for cost in found:
        beyond = [
            f"{cost[way]:,.0f} ({cost[way] - cost['bare']:+,.0f}, {percent(cost[way] / cost['bare'] - 1)})"
            for way in ("together", "in_turn")
        ]
        rows.append([str(cost["layers"]), f"{cost['bare']:,.0f}", *beyond])
    return table(("layers", "bare loop, us", "together, us", "in turn, us"), rows)


def parts(data: Mapping[str, Any]) -> list[str]:
    settings = data["settings"]
    widths = ", ".join(map(str, settings["widths"]))
    many = {**settings, "widths": widths, "worst": data["worst"], "s": "" if settings["threads"] == 1 else "s"}
    made = [HEAD.format(**many)]
    for found in data["datasets"]:
        made += [f"## {found['dataset']}: `{found['spec']}`", rates(found)]
        if varied(found):
            made.append(f"The peak by cells is {percent(peak_ratio(found) - 1)} against the better baseline's.")
        made += [latencies(found), f"The load generator was at most {found['lag_p99_ms']:.1f} ms late (p99 of a run)."]
    lines = missed(data)
    return [
        *made, "![p50 and p99 against the rate](cells.png)",
        STEPS.format(**settings), joins(data["steps"]["join"]),
        COST.format(**settings, target=STEP), costs(data["steps"]["costs"]),
        "## Targets", "\n".join(f"- missed: {line}" for line in lines) or "All are reached.",
        *([_WHY] if lines else []),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip


def draw(datasets: Sequence[Mapping[str, Any]], path: Path) -> None:
    from loadtest.common import plots

    with plots.saved_grid(path, 1, len(datasets), (5 * len(datasets), 3.8)) as (figure, grid):
        for axes, found in zip(grid[0], datasets, strict=True):
            models = [CELLS, *found["whole"]]
            for number, model in enumerate(models):
                at = [load["rate"] for load in found["loads"]]
                for name, dash in (("p50_ms", "-"), ("p99_ms", ":")):
                    values = [load[model][name] for load in found["loads"]]
                    label = f"{shown(model)}, {name.removesuffix('_ms')}"
                    axes.plot(at, values, dash, color=f"C{number}", marker=".", label=label)
            axes.set_title(found["dataset"])
            axes.set_xlabel("rows/s")
            axes.set_yscale("log")
            axes.legend(fontsize=8)
            plots.plain_numbers(axes.yaxis)
        grid[0, 0].set_ylabel("latency, ms")
        figure.tight_layout()


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    draw(data["datasets"], folder / "cells.png")
    return ["cells.png", markdown.write(parts(data), folder / "cells.md")]
