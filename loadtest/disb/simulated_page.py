"""The page of the simulated DISB: published figures beside ours, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.common import markdown
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
NAMES = {"seq": "SEQ", "streams": "GPUStreams", "reef": "REEF", "reef_n": "REEF-N"}

HEAD = """\
# DISB on a modelled GPU

REEF's benchmark, run by Starling's scheduler in virtual time on a model of the paper's GPU and its five models. Nothing
on this page was measured on a GPU: what follows from the model and what from the scheduler cannot be told apart in one
figure, only in comparisons between columns. Latencies of real-time requests run from the launch; a client has one
request at a time, and of the instants that pass meanwhile the newest is launched and the others are dropped.
"""
COLUMNS = """\
`rt_only` is what all others are compared with: the real-time clients alone. `seq` and `streams` are the paper's
baselines, made of today's scheduler: one unit is a whole model, on one worker with priorities, or on a worker for each
client without. In `priority` a stage has {kernels} kernels, there is one worker, and calls have priority 1 or 2: what a
server does today on a CPU. The worker goes on from stage to stage by itself until it is recalled for a call that goes
first. In `handed` it does not. There are no classes yet: nothing best effort runs beside real time, nor beside one
another.
"""
#: What the figures of these columns say.
FOUND_OF = {"rt_only", "seq", "streams", "priority", "handed"}
FOUND = """\
- `seq` is close to what is published where that is one figure, 1 to 9 % away; in E its latency is below the published
  range. `streams` is close to the published throughput, one figure of which it is fitted to, except in B. It slows real
  time less than published in A, B, E and REAL: the model slows all units alike.
- Priorities between stages bring real-time latency to at most 1.024 times that of real time alone, without classes.
  What is left is the rest of one stage.
- They bring no throughput beyond that of `seq`, because one worker runs one unit at a time. What REEF has more comes
  from best-effort requests beside one another, and beside real time.
- Where the scheduler hands over each stage, real-time requests pay for their own launches, too. In D they follow one
  another without a gap, so that each is also late by what those before it have lost.
- In E and REAL real-time requests wait for one another, which is part of `rt_only` as well.
"""
QUEUE = """\
REEF limits the kernels that its device holds, because those are in a real-time request's way. In the paper a queue of
1 kernel makes a ResNet request take 14.3 ms and one of 4 kernels 12.3 ms, more change less than 0.3 %, and preemption
grows in proportion (31 us at 4, with kernels that end themselves when they see a flag). Here so many kernels are a
stage: in `handed` each pays its launch whatever its size, and a real-time request waits for the rest of one. A VGG
request comes at random 20 times a second, ResNet requests are best effort in a closed loop, for {queue_s:g} virtual
seconds. The stages of real-time requests are as large.
"""
ASSUMED = """\
## Assumptions

- Models have the kernels and the latency of REEF's Table 1:

{networks}

- A model's kernels have the quantiles of a lognormal distribution with sigma {spread:g}, in an order drawn from a seed.
  The paper has no list of them; it says that VGG's take 10 to 255 us.
- The paper gives 13.6 ms for ResNet in its table and 12.3 ms in the study of its queue. Here it is 13.6 ms.
- A unit begins {launch_us:g} us after it was handed to an idle worker. That is what a queue of one kernel costs ResNet
  in the paper, by kernel. A worker that goes on by itself takes the next stage at once.
- While k units run, each takes 1 + {shared:g} (k - 1) times as long as alone, whatever their models. The factor was
  fitted, in shorter runs, to one published figure: GPUStreams' throughput under REAL.
- Nothing is killed: a stage that has begun runs to its end.
- REAL is made from a seed to match the figures of the recorded trace (see loadtest/disb/workloads/README.md). The paper
  used another version of it than DISB's repository has today.
- A client that launches with an answer does so before the next unit is chosen. With any turnaround a best-effort unit
  begins first in each such gap: A under `seq` then has {turn_latency:.2f} times the latency and {turn_throughput:.2f}
  times the throughput of real time alone, and drops {turn_dropped:,} instants.
- Each figure is of one run with one seed, {time}.
"""


def ratios(data: Mapping[str, Any], value: Any, published: Mapping[str, Mapping[str, str]]) -> str:
    """A row for each workload: `value` of a cell over that of the first column, beside what is published."""
    columns = list(data["settings"]["columns"])
    cells = {(one["workload"], one["column"]): one for one in data["cells"]}
    headings = ["over real time alone"]
    for name in columns[1:]:
        headings += [name, *([f"{NAMES[name]}, published"] if name in published else [])]
    absent = [name for name in published if name not in columns]
    rows = []
    for workload in data["settings"]["workloads"]:
        base = value(cells[workload, columns[0]])
        row = [workload]
        for name in columns[1:]:
            row.append(f"{value(cells[workload, name]) / base:.2f}")
            row += [published[name].get(workload, "")] if name in published else []
        rows.append([*row, *(published[name].get(workload, "") for name in absent)])
    return table([*headings, *(f"{NAMES[name]}, published" for name in absent)], rows)


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
    least = {one["column"]: one["execution_ms"] for one in found}  # of the last, the largest number of kernels
    rows = [
        [f"`{one['column']}`", str(one["kernels"]), f"{one['execution_ms']:.2f}",
         f"{100 * (one['execution_ms'] / least[one['column']] - 1):+.1f} %",
         f"{1000 * one['wait_p50_ms']:.0f} / {1000 * one['wait_p99_ms']:.0f}", f"{1000 * one['longest_stage_ms']:.0f}",
         f"{one['realtime_mean_ms']:.2f}"]
        for one in found
    ]  # fmt: skip
    headings = (
        "", "kernels of a stage", "ResNet alone, ms", "over the longest", "VGG until its first unit, 50 / 99 %, us",
        "ResNet's longest stage, us", "VGG, mean ms",
    )  # fmt: skip
    return table(headings, rows)


def networks(given: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["name"], str(one["kernels"]), f"{one['total_ms']:g}", "{:.0f} to {:.0f}".format(*one["kernel_us"])]
        for one in given
    ]
    return table(("model", "kernels", "ms", "a kernel here, us"), rows)


def assumed(data: Mapping[str, Any]) -> str:
    settings = data["settings"]
    base = {one["column"]: one for one in data["cells"] if one["workload"] == "A"}
    (turned,) = data["turnaround"]
    first = base[next(iter(settings["columns"]))]
    time = "as long as the workload says" if settings["seconds"] is None else f"{settings['seconds']:g} virtual seconds"
    return ASSUMED.format(
        networks=networks(settings["networks"]), spread=settings["spread"], launch_us=settings["launch_us"],
        shared=settings["shared"], turn_latency=latency(turned) / latency(first),
        turn_throughput=throughput(turned) / throughput(first),
        turn_dropped=turned["classes"]["realtime"]["dropped"], time=time,
    )  # fmt: skip


def parts(data: Mapping[str, Any]) -> list[str]:
    columns = table(
        ("column", "what it is"), [[f"`{name}`", text] for name, text in data["settings"]["columns"].items()]
    )
    made = [
        HEAD, "## Columns", columns, COLUMNS.format(kernels=data["settings"]["kernels"]),
        "## Mean latency of real-time requests", ratios(data, latency, LATENCY),
        "## Throughput of all requests", ratios(data, throughput, THROUGHPUT),
        FOUND if FOUND_OF.issubset(data["settings"]["columns"]) else "", "## Figures", figures(data),
    ]  # fmt: skip
    if data["queues"]:
        made += ["## Kernels of a stage", QUEUE.format(**data["settings"]), queues(data["queues"])]
    return [*filter(None, made), assumed(data), markdown.facts_list(data["facts"])]


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    return [markdown.write(parts(data), folder / "disb-simulated.md")]
