"""The page of the simulated DISB: published figures beside ours, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.common import markdown, plots
from loadtest.common.markdown import ms, table

_SEQ_C_TO_E, _STREAMS_C_TO_E = "1.51 to 1.86", "2.65 to 3.31"
#: Published, over real time alone: mean latency of real-time requests, and throughput of all requests. By the name of
#: a column and the workload. Of C to E the text gives ranges for what it compares with.
LATENCY: Mapping[str, Mapping[str, str]] = {
    "seq": {"A": "1.95", "B": "1.12", **dict.fromkeys("CDE", _SEQ_C_TO_E), "REAL": "1.35"},
    "streams": {"A": "1.84", "B": "1.70", **dict.fromkeys("CDE", _STREAMS_C_TO_E), "REAL": "3.35"},
    "reef": {"A": "1.005", "B": "1.01", **dict.fromkeys("CDE", "< 1.015"), "REAL": "< 1.02"},
}
THROUGHPUT: Mapping[str, Mapping[str, str]] = {
    "seq": {"A": "1.46", "B": "0.96", **dict.fromkeys("CDE", "1.34 to 2.10"), "REAL": "3.6"},
    "streams": {"A": "1.66", "B": "0.76", **dict.fromkeys("CDE", "3.94 to 8.19"), "REAL": "8.3"},
    "reef": {"A": "1.60", "B": "1.14", "C": "near GPUStreams", "D": "3.00", "E": "2.96", "REAL": "7.7"},
}
#: Published, c and us: evicting a queue of 4 kernels, and one without a bound, taken here as that of the whole model.
PREEMPTION = ((4, 307), (31, 424))
ALONE = ("rt_only", "rt_workers")
NAMES = {"seq": "SEQ", "streams": "GPUStreams", "reef": "REEF", "reef_n": "REEF-N"}

#: What the figures of these columns say.
FOUND_OF = {"rt_only", "rt_workers", "seq", "streams", "reef", "reef_1", "reef_n"}
FOUND = """\
- `seq` is 1 to 3 % away from what is published in A and B; its latency in E is below the published range, and its
  throughput under REAL too low. `streams` is close to the published throughput, one figure of which it is fitted to,
  except in B. It slows real time less than published in A, B, E and REAL: the model slows all units alike.
- Throughput of `reef`, of which nothing was fitted: as published in B, below it in A and REAL, above it in D and E. One
  speed of padding cannot give both A and B as published: 60 ResNet requests a second beside VGG mean that padding has
  0.59 of its own speed in A, 31 mean 0.41 in B. Here it has 0.41. In D and E several best-effort requests pad at once,
  as far as the sum of their pairs allows, where REEF pads a kernel with one other. In E real-time requests also run
  beside one another, which leaves more time in normal mode. A would reach 1.58 where units share the GPU better, see
  the assumptions below.
- Latency of `reef`: 0.4 % over real time alone in A and B, below what is published; 2 to 3.5 % in C to REAL, above it.
  Padding may slow real time by 2 % here, the default of `rt_slowdown`, and that is used up. Nothing is killed, so up to
  five kernels that run when a real-time request comes share the GPU with it until they end. In D requests follow one
  another without a gap, so that each is also late by what those before it have lost.
- With a bound of 1 %, `reef_1`, real time is slowed by less than 2 % in each workload, for at most 3 % of the
  throughput. Preemption alone costs little: 0.5 % in D without padding (below).
- In E and REAL real-time requests wait for one another in `rt_only` and run side by side in `reef`: latencies below 1.
- `reef_n` is what is left where nothing can be recalled or withdrawn: in D, E and REAL real time loses 11 to 20 % on
  the same workers, and without padding D has 2.6 times the throughput of real time alone. The paper gives only
  preemption times of its REEF-N.
"""
QUEUE_FOUND = """\
- More than one kernel in the queue hides the launches, as published: 15.6 to 13.6 ms here, 14.3 to 12.3 in the paper.
  The difference is what a launch was fitted to. Here a queue of 2 is enough, because hardly a kernel is shorter than a
  launch.
- `withdrawn` takes 46 us at 4, the median, where 31 are published, and grows by a launch with each kernel: about 420 us
  at 64. From 128 on it grows less, because a request has only 307 kernels. In REEF the kernel that runs is killed; here
  its rest is waited for, 33 us in half of all cases and 0.23 ms in the worst.
- `waited for` takes 7 times as long at 4. That is more than 4 kernels take alone, because they run beside the real-time
  request as its padding. For its REEF-N, which takes its queue back by a flag, the paper gives 71 to 288 us.
- VGG's own latency hardly depends on a queue, because it has a stream of its own, of a higher priority: only the kernel
  that runs is its equal. Where c kernels are one unit, the model takes all of them for one such kernel.
- The model has no CPU. What the paper saves by a longer queue is work of the host: here that is the scheduler's steps,
  two for each unit however many are handed over ahead. Stages of c kernels divide them by c, and a worker that goes on
  by itself needs two in all.
"""
HEAD = """\
# DISB on a modelled GPU

REEF's benchmark, run by Starling's scheduler in virtual time on a model of the paper's GPU and its five models. Nothing
on this page was measured on a GPU: what follows from the model and what from the scheduler cannot be told apart in one
figure, only in comparisons between columns. Latencies of real-time requests run from the launch; a client has one
request at a time, and of the instants that pass meanwhile the newest is launched and the others are dropped.
"""
COLUMNS = """\
Each column is a preset of the scheduler's classes. `rt_only` is what all others are compared with, as in the paper: the
real-time clients alone, one request at a time. In `reef` and `reef_n` each best-effort client has a worker and one more
is kept for real time; a real-time request is one unit. In `reef` a best-effort worker goes on from kernel to kernel by
itself until it is recalled, and units whose pair allows it run beside real time. In `reef_n` a worker is handed two
units of 2 kernels, nothing is recalled or withdrawn, and nothing runs beside real time but what had been handed over.
On so many workers real-time requests run beside one another, too, where the paper's run one at a time. A table of its
own therefore compares their latencies with `rt_workers`, the real-time clients alone on the same workers.
"""
QUEUE = """\
REEF limits the kernels that its device holds, because those are in a real-time request's way. In the paper a queue of
1 kernel makes a ResNet request take 14.3 ms and one of 4 kernels 12.3 ms, more change less than 0.3 %; preemption takes
31 us at 4 and grows in proportion, up to 424 us where nothing bounds the queue; and the CPU is used 31 % at 4 and 17 %
at 256. Here ResNet requests are best effort in a closed loop, and VGG requests come at random 50 times a second, for
{queue_s:g} virtual seconds, without padding; so 99 % is nearly the worst. Preemption lasts from the arrival of a VGG
request, on a stream of its own, until no best-effort kernel runs or stands in its way.
c kernels are handed over in four ways:

- `withdrawn`: as c units, of which those that have not begun are taken back (`reef` on a device that can). The stream
  passes over each in {launch_us:g} us, as REEF's kernels read a flag and end.
- `waited for`: as c units, of which none is taken back (`reef_n`).
- `a stage`: as one unit, the next one when it has ended (`reef` where a stage has c kernels).
- `recalled`: as stages of c kernels of one unit, which ends with the stage that runs (`reef`, workers that go on).

![Preemption by kernels handed over](disb-simulated-queue.png)
"""
VARIED = """\
What nobody has published is assumed. Each line changes one of these assumptions, for `reef` in the first {varied_s:g}
virtual seconds. `no padding`: the scheduler is told of no pair. `blocks make way`: a best-effort kernel that runs when
a real-time unit begins has at once only what that one leaves. `clients that are late`: a client that launches with an
answer does so after the next unit has been chosen.
"""
ASSUMED = """\
## Assumptions

- Models have the kernels and the latency of REEF's Table 1:

{networks}

- A model's kernels have the quantiles of a lognormal distribution with sigma {spread:g}, in an order drawn from a seed.
  The paper has no list of them; it says that VGG's take 10 to 255 us.
- The paper gives 13.6 ms for ResNet in its table and 12.3 ms in the study of its queue. Here it is 13.6 ms.
- A unit is on its stream {launch_us:g} us after it was handed over, and begins when those before it have ended. That is
  what a queue of one kernel costs ResNet in the paper, by kernel. A worker that goes on by itself takes the next stage
  at once.
- While k units run as equals, each takes 1 + {shared:g} (k - 1) times as long as alone, whatever their models. The
  factor was fitted, in shorter runs, to one published figure: GPUStreams' throughput under REAL.
- A best-effort kernel that begins while a real-time unit runs is padding. It has {left:g} of the work that the units
  would do together beyond the real-time ones. That is fitted to one published figure: VGG with ResNet as its padding
  does 1.41 times the work of VGG alone.
- Padding slows a real-time unit by what its pair says, the sum of all that pad it. The pairs are made up: their mean is
  {slower:.1%} and the most three times that, as published of REEF's padding, in order of the best-effort model's mean
  kernel over the real-time model's, because REEF pads with kernels that end sooner. The scheduler is told of them, and
  keeps the sum within its bound of 2 %:

{pairs}

- A best-effort kernel that runs when a real-time unit begins shares with it as an equal until the kernel ends. Nothing
  is killed, as REEF does in less than 3 us.
- REAL is made from a seed to match the figures of the recorded trace (see experiments/disb/workloads/README.md). The
  paper used another version of it than DISB's repository has today.
- Each figure is of one run with one seed, of the first {seconds:g} virtual seconds of the workload.
"""


def ratios(data: Mapping[str, Any], value: Any, published: Mapping[str, Mapping[str, str]], digits: int = 2) -> str:
    """A row for each workload: `value` of a cell over that of the first column, beside what is published."""
    columns = [name for name in data["settings"]["columns"] if name not in ALONE]
    values = {(one["workload"], one["column"]): value(one) for one in data["cells"]}
    headings = ["over `rt_only`"]
    for name in columns:
        headings += [f"`{name}`", *([f"{NAMES[name]}, published"] if name in published else [])]
    rows = []
    for workload in data["settings"]["workloads"]:
        row = [workload]
        for name in columns:
            row.append(f"{values[workload, name] / values[workload, ALONE[0]]:.{digits}f}")
            row += [published[name].get(workload, "")] if name in published else []
        rows.append(row)
    return table(headings, rows)


def on_the_same_workers(data: Mapping[str, Any]) -> str:
    """Mean latency of what has a worker for each best-effort client, over real time alone on these."""
    names = [name for name in data["settings"]["columns"] if name.startswith("reef")]
    values = {(one["workload"], one["column"]): latency(one) for one in data["cells"]}
    rows = [
        [workload, *(f"{values[workload, name] / values[workload, ALONE[1]]:.3f}" for name in names)]
        for workload in data["settings"]["workloads"]
    ]
    return table([f"over `{ALONE[1]}`", *(f"`{name}`" for name in names)], rows)


def latency(cell: Mapping[str, Any]) -> float:
    found: float = cell["classes"]["realtime"]["mean_ms"]
    return found


def throughput(cell: Mapping[str, Any]) -> float:
    found: float = cell["classes"]["all"]["throughput"]
    return found


def figures(data: Mapping[str, Any]) -> str:
    rows = []
    for cell in data["cells"]:
        realtime, bulk = cell["classes"]["realtime"], cell["classes"].get("best_effort")
        rows.append(
            [cell["workload"], f"`{cell['column']}`", ms(realtime["mean_ms"]), ms(realtime["p99_ms"]),
             f"{ms(cell['wait_p50_ms'])} / {ms(cell['wait_p99_ms'])}", f"{realtime['throughput']:.1f}",
             f"{realtime['dropped']:,}", "" if bulk is None else f"{bulk['throughput']:.1f}"]
        )  # fmt: skip
    headings = (
        "", "", "real time: mean, ms", "99 %, ms", "until its first unit, 50 / 99 %, ms", "answers/s", "dropped",
        "best effort: answers/s",
    )  # fmt: skip
    return table(headings, rows)


def queues(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [f"`{one['way']}`", str(one["kernels"]), f"{one['execution_ms']:.2f}",
         f"{1000 * one['preempt_p50_ms']:.0f} / {1000 * one['preempt_p99_ms']:.0f}", f"{one['realtime_mean_ms']:.2f}",
         f"{one['steps']:.0f}"]
        for one in found
    ]  # fmt: skip
    headings = (
        "", "c", "ResNet alone, ms", "preemption, 50 / 99 %, us", "VGG, mean ms", "scheduler's steps for a ResNet",
    )  # fmt: skip
    return table(headings, rows)


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> str:
    """Preemption by c, a line for each way, and what is published."""
    with plots.saved_grid(path, 1, 1, (6.4, 4.4), layout="constrained") as (_, grid):
        axes = grid[0, 0]
        for way in dict.fromkeys(one["way"] for one in found):
            lines = [one for one in found if one["way"] == way]
            kernels = [one["kernels"] for one in lines]
            (line,) = axes.plot(kernels, [1000 * one["preempt_p50_ms"] for one in lines], marker="o", label=way)
            axes.plot(kernels, [1000 * one["preempt_p99_ms"] for one in lines], ":", color=line.get_color())
        axes.plot(*PREEMPTION, "k*", markersize=10, label="REEF, published")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("kernels handed over, c")
        axes.set_ylabel("preemption, us: median, and 99 % dotted")
        axes.legend()
    return path.name


def variations(found: Sequence[Mapping[str, Any]]) -> str:
    workloads = list(dict.fromkeys(one["workload"] for one in found))
    cells = {(one["variation"], one["workload"]): one for one in found}
    rows = []
    for name in dict.fromkeys(one["variation"] for one in found):
        of = [cells[name, workload] for workload in workloads]
        rows.append([name, *(f"{one['latency']:.3f}" for one in of), *(f"{one['throughput']:.2f}" for one in of)])
    kinds = ("real-time latency", "throughput")
    return table(["over real time alone", *(f"{one}: {kind}" for kind in kinds for one in workloads)], rows)


def pairs(given: Sequence[tuple[str, str, float]]) -> str:
    """A row for each real-time model."""
    names = list(dict.fromkeys(one for one, _, _ in given))
    parts = {(one, other): part for one, other, part in given}
    rows = [[one, *(f"{parts[one, other]:.2%}" for other in names)] for one in names]
    return table(["slowed by", *names], rows)


def networks(given: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["name"], str(one["kernels"]), f"{one['total_ms']:g}", "{:.0f} to {:.0f}".format(*one["kernel_us"])]
        for one in given
    ]
    return table(("model", "kernels", "ms", "a kernel here, us"), rows)


def assumed(data: Mapping[str, Any]) -> str:
    settings = data["settings"]
    given = {**settings, "networks": networks(settings["networks"]), "pairs": pairs(sorted(settings["pairs"]))}
    return ASSUMED.format(**given)


def parts(data: Mapping[str, Any]) -> list[str]:
    settings = data["settings"]
    columns = table(("column", "what it is"), [[f"`{name}`", text] for name, text in settings["columns"].items()])
    return [
        HEAD, "## Columns", columns, COLUMNS,
        "## Mean latency of real-time requests", ratios(data, latency, LATENCY, 3), on_the_same_workers(data),
        "## Throughput of all requests", ratios(data, throughput, THROUGHPUT),
        *([FOUND] if FOUND_OF.issubset(settings["columns"]) else []), "## Figures", figures(data),
        "## Kernels handed over", QUEUE.format(**settings), queues(data["queues"]), QUEUE_FOUND,
        "## What the assumptions do", VARIED.format(**settings), variations(data["varied"]), assumed(data),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    page = markdown.write(parts(data), folder / "disb-simulated.md")
    return [page, draw(data["queues"], folder / "disb-simulated-queue.png")]
