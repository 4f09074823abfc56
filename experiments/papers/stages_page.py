"""The page of DVABatch's and Late Batching's experiments: published figures beside ours, and the assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

#: Published reductions of the mean and of the 99 % latency, in percent, at low, medium and high load.
PUBLISHED = {
    ("ZeroBatch", "mean_ms"): (16.1, 39.0, 57.7), ("DelayBatch", "mean_ms"): (35.4, 47.3, 48.5),
    ("ZeroBatch", "p99_ms"): (16.9, 27.4, 53.7), ("DelayBatch", "p99_ms"): (45.2, 45.1, 29.2),
}  # fmt: skip
PEAKS = {"BertBase": "+46.8 %", "BertLarge": "1.37 x"}

HEAD = """\
# Stages and cells: DVABatch's and Late Batching's experiments, simulated

Run by Starling's scheduler in virtual time on modelled devices. Nothing on this page was measured on a GPU: latencies
follow from the models, ratios from the policies and the models together. ZeroBatch and DelayBatch are `no_wait` and
`window` on the whole model, which hand a second batch over before the first has ended, as Triton does. `no_wait` forms
a batch when the device is free. DVABatch is `dva_input` for the Berts and `dva_load` for the others, with {pairs}
buffer pairs: so many batches at once on a GPU that runs them side by side while they leave room. "One at a time" is the
same without that. `adaptive` is Starling's own policy on the same stages, one unit at a time, and with "whole" on the
model in one piece. All get the same arrivals.
"""

ASSUMED = """\
## Assumptions

- Stage i of b rows takes a fixed time for launches plus row time x share x max(b, fill), where `fill` rows fill the
  GPU. Row times are operations at 60 TFLOP/s (mixed precision); the paper gives none, but with 14 TFLOP/s (full
  precision) most networks would fail at the first steps of its stepping load. Stages of equal shares, as in the paper.
- Each stage has one executor, which runs one unit at a time; those of different stages run at once, as many as there
  are buffer pairs. A unit keeps row time x share x b of its time's worth of the GPU busy, the rest is free: units do
  not slow one another while these shares add up to less than the whole, and all alike beyond.
- In Unet and LinkNet the first half of the stages needs large batches and the second half does not (the paper's Figure
  6 for Unet; that LinkNet is alike is assumed). The other networks prefer one size throughout.
- Times of the Berts are in proportion to the longest row of the batch. Lengths are `{rte}`, to resemble
  RTE, which the paper only draws. Clusters end at {buckets} tokens.
- ZeroBatch and DelayBatch have up to {ahead} batches at the device, which runs them one after the other.
- `dva_input`'s window is what the first stage takes at the largest batch, counted from the last batch that was formed
  and is still under way. Counted from the first row that waits it would be several times what a request takes at low
  load, where the paper is below ZeroBatch.
- The largest batch is {max_batch}, the QoS {qos_ms:.0f} ms. The peak is the largest Poisson rate at which 99 % of
  {requests:,} requests, or those of 2.5 s if that is more, keep it. Loads are shares of DelayBatch's peak. DelayBatch's
  window is the one of {delays} ms with the highest peak. `dva_load` has no window.
- Other numbers of stages: the launches of the whole are divided among them, and each cut costs {boundary_ms:g} ms.
- A step of the LSTM cell takes {cell_ms:g} ms up to {cell_fill} rows and grows in proportion beyond, up to
  {cell_batch} rows; the paper gives neither. "WMT-like" lengths are `{wmt}`. Of the buckets' widths
  that with the highest throughput is taken. A batch is padded to its own longest row, not to its bucket's bound, in
  favour of the baseline.
"""


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def reduction(found: Mapping[str, Any], name: str, base: str, load: str, figure: str) -> float:
    """By which share a figure of `name` is below that of `base`."""
    return 1 - found["loads"][name][load][figure] / found["loads"][base][load][figure]


def overall(studies: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    rows = []
    for (base, figure), published in PUBLISHED.items():
        for name in ("DVABatch", "DVABatch, one at a time", "no_wait", "adaptive"):
            ours = [np.mean([reduction(found, name, base, load, figure) for found in studies]) for load in loads]
            rows.append(
                [f"{'mean' if figure == 'mean_ms' else '99 %'}, {name} below {base}",
                 " / ".join(f"{value:g} %" for value in published), " / ".join(f"{100 * one:.1f} %" for one in ours)]
            )  # fmt: skip
    return table(("over six networks, at low / medium / high load", "published", "simulated"), rows)


def latencies(studies: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    rows = []
    for found in studies:
        for name, runs in found["loads"].items():
            told = f"{name} ({found['delay_ms']:g} ms)" if name == "DelayBatch" else name
            cells = [f"{ms(runs[load]['mean_ms'])} / {ms(runs[load]['p99_ms'])}" for load in loads]
            peak = f"{found['peaks'][name]:.0f}" if name in found["peaks"] else ""
            rows.append([found["network"]["name"], told, *cells, peak])
    return table(("", "", *(f"{load}: mean / 99 %, ms" for load in loads), "peak, rows/s"), rows)


def peaks(studies: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for found in studies:
        base, name = found["peaks"]["DelayBatch"], found["network"]["name"]
        ours = [percent(found["peaks"][one] / base - 1) for one in ("DVABatch", "adaptive")]
        steps = [f"{found['stepping'][one]:.0f}" for one in ("DelayBatch", "DVABatch", "adaptive")]
        rows.append([name, PEAKS.get(name, "the same"), *ours, *steps])
    heads = ("published", "DVABatch", "adaptive", "stepping: DelayBatch", "DVABatch", "adaptive")
    return table(("peak against DelayBatch", *heads), rows)


def counts(studies: Sequence[Mapping[str, Any]], key: str, title: str) -> str:
    """Mean latencies by the number of buffer pairs or of stages."""
    known = [found for found in studies if key in found]
    rows = [[found["network"]["name"], *(ms(value) for value in found[key].values())] for found in known]
    return table((title, *(known[0][key] if known else ())), rows)


def gain(studies: Sequence[Mapping[str, Any]], name: str, base: str, loads: Sequence[str]) -> float:
    """The mean reduction of the mean latency over the networks that have both, and these loads."""
    known = [found for found in studies if name in found["loads"]]
    return float(np.mean([reduction(found, name, base, load, "mean_ms") for found in known for load in loads]))


def waits(studies: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    """What each T_comp_wait would make of the mean latencies. The Berts, which stretch nothing, keep theirs."""
    tried = next(found["waits"] for found in studies if "waits" in found)
    rows = []
    for wait in tried:
        below: dict[str, list[float]] = {
            base: [
                float(np.mean([1 - _mean_ms(found, wait, load) / found["loads"][base][load]["mean_ms"]
                               for found in studies]))
                for load in loads
            ]
            for base in ("ZeroBatch", "DelayBatch")
        }  # fmt: skip
        told = (" / ".join(f"{100 * one:.1f} %" for one in gains) for gains in below.values())
        rows.append([wait, percent(-float(np.mean([*below.values()]))), *told])
    heads = ("mean latency, all", "below ZeroBatch, low / medium / high", "below DelayBatch")
    return table(("T_comp_wait / T(1)", *heads), rows)


def _mean_ms(found: Mapping[str, Any], wait: str, load: str) -> float:
    return float(found["waits"][wait][load] if "waits" in found else found["loads"]["DVABatch"][load]["mean_ms"])


def case3(found: Sequence[Mapping[str, Any]]) -> str:
    shared, apart = ([one for one in found if one["one_step"] is together] for together in (True, False))
    rows = [
        [f"{one['complete_wait']:g}", f"{one['mean_t']:g} T", f"{other['mean_t']:g} T"]
        for one, other in zip(shared, apart, strict=True)
    ]
    return table(("T_comp_wait / T(1)", "one step for an end and an arrival", "a step for each"), rows)


def best_counts(studies: Sequence[Mapping[str, Any]], key: str) -> str:
    known = {found["network"]["name"]: found[key] for found in studies if key in found}
    return ", ".join(f"{name} {min(times, key=lambda count: times[count])}" for name, times in known.items())


def claims(studies: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    """Each figure of the paper beside ours."""
    named = {found["network"]["name"]: found for found in studies}
    bases = ("ZeroBatch", "DelayBatch")

    def peak(name: str) -> str:
        found = named.get(name)
        return "-" if found is None else percent(found["peaks"]["DVABatch"] / found["peaks"]["DelayBatch"] - 1)

    others = [one for name, one in named.items() if name not in PEAKS]
    same = [one["peaks"]["DVABatch"] / one["peaks"]["DelayBatch"] - 1 for one in others]
    rows = [
        ["mean latency, all networks, loads and both baselines", "-46.4 %",
         percent(-float(np.mean([gain(studies, "DVABatch", base, loads) for base in bases])))],
        ["mean latency, against ZeroBatch", "-16.1 / -39.0 / -57.7 %",
         " / ".join(percent(-gain(studies, "DVABatch", "ZeroBatch", [load])) for load in loads)],
        ["mean latency, against DelayBatch", "-35.4 / -47.3 / -48.5 %",
         " / ".join(percent(-gain(studies, "DVABatch", "DelayBatch", [load])) for load in loads)],
        ["peak, BertBase", "+46.8 %", peak("BertBase")],
        ["peak, BertLarge", "1.37 x", peak("BertLarge")],
        ["peak, the others", "the same", f"{percent(min(same))} to {percent(max(same))}" if same else "-"],
        ["split alone, high load, against DelayBatch (Unet, LinkNet)", "-15.0 %",
         percent(-gain(studies, "split alone", "DelayBatch", ["high"])) if others else "-"],
        ["best number of buffer pairs", "2 for all", best_counts(studies, "pairs")],
        ["best number of stages", "BertBase 2, LinkNet 4, ResNet152 4", best_counts(studies, "stages")],
    ]  # fmt: skip
    return table(("", "published", "simulated"), rows)


def doubted(doubts: Sequence[Mapping[str, Any]], loads: Sequence[str]) -> str:
    rows = []
    for found in doubts:
        cells = []
        for load in loads:
            gains = found["reductions"][load]
            cells.append(f"{100 * np.mean(gains):.1f} % ({100 * min(gains):.1f} to {100 * max(gains):.1f})")
        rows.append([found["doubt"], *cells])
    return table(("mean latency of DVABatch below ZeroBatch", *loads), rows)


def cells(found: Mapping[str, Any]) -> str:
    rows = []
    for share, one in found["shares"].items():
        cells = [f"{float(share):.2f}"]
        for figure in ("p50_ms", "p99_ms"):
            buckets, late, adaptive = (one[system][figure] for system in ("buckets", "late", "adaptive"))
            cells += [ms(buckets), ms(late), percent(late / buckets - 1), ms(adaptive)]
        rows.append(cells)
    return table(("load", "p50 buckets", "late", "", "adaptive", "p99 buckets", "late", "", "adaptive"), rows)


def throughput(datasets: Sequence[Mapping[str, Any]]) -> str:
    published = {"fixed 20": "about the same", "WMT-like": "+25 to 33 %"}
    rows = []
    for found in datasets:
        most = found["most"]
        row = [found["dataset"], f"{most['buckets']:,.0f} (width {found['width']})"]
        for policy in ("late", "adaptive"):
            row += [f"{most[policy]:,.0f}", percent(most[policy] / most["buckets"] - 1)]
        rows.append([*row, published[found["dataset"]]])
    return table(("sequences/s at most", "buckets", "late", "", "adaptive", "", "published"), rows)


def parts(data: Mapping[str, Any]) -> list[str]:
    settings, studies = data["settings"], data["studies"]
    loads = list(settings["loads"])
    delays = ", ".join(f"{delay:g}" for delay in settings["delays_ms"])
    buckets = ", ".join(map(str, settings["buckets"]))
    made = [
        HEAD.format(**settings), "## DVABatch", claims(studies, loads), WHY, overall(studies, loads),
        "![Mean latencies](stages.png)", latencies(studies, loads), peaks(studies),
        STEPPING.format(steps=settings["stepping"]),
        "### How long a batch may be stretched", WAITS.format(**settings), waits(studies, loads),
        CASE3, case3(data["case3"]),
        "### Buffer pairs and stages", COUNTS, counts(studies, "pairs", "buffer pairs, mean ms at high load"),
        counts(studies, "stages", "stages, mean ms at high load"),
        "### With other assumptions", DOUBTED, doubted(data["doubts"], loads),
        "## Late Batching", throughput(data["cells"]), LATE.format(**settings),
    ]  # fmt: skip
    for found in data["cells"]:
        made += [f"### {found['dataset']}", cells(found)]
    return [
        *made, ASSUMED.format(**{**settings, "delays": delays, "buckets": buckets}), markdown.facts_list(data["facts"]),
    ]  # fmt: skip


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    from loadtest.common import plots

    folder.mkdir(parents=True, exist_ok=True)
    names = [found["network"]["name"] for found in data["studies"]]
    shown = ("ZeroBatch", "DelayBatch", "no_wait", "DVABatch", "adaptive")
    series = {name: [found["loads"][name]["high"]["mean_ms"] for found in data["studies"]] for name in shown}
    plots.bars(names, series, "mean latency at high load, ms", folder / "stages.png")
    return ["stages.png", markdown.write(parts(data), folder / "stages.md")]


WHY = """\
Where ours is different, why:

- T_comp_wait, which the paper does not give, decides the mean latency over all: a reduction of 31 % at T(1) and of 45 %
  at a tenth of it, see [below](#how-long-a-batch-may-be-stretched). A batch that waits for latecomers waits for whole
  stages of theirs, and keeps its buffer pair meanwhile. At a tenth hardly any batch is stretched, and DVABatch has the
  latencies of splitting alone, but for Unet at high load.
- One unit at a time, `dva_load` has the latencies of `no_wait`: what it gains beyond them comes from the executors,
  which run parts of batches side by side.
- At low load we gain more than published, against either baseline. How far ahead Triton hands batches over decides how
  bad ZeroBatch is, and the paper does not say.
- The peaks of the Berts gain more than published, because here a padded token costs as much as a real one, with no part
  of a batch's time that does not depend on length. The Berts are also the only ones that gain in the paper; here more
  stages at once hide the launches of the others, up to a tenth.
- Splitting alone gains more than published: the halves of Unet and LinkNet prefer 24 and 2 rows here, and parts of a
  batch run side by side in different stages.
- Buffer pairs: two are the most that two stages can use. With four stages more pairs help here; what many pairs cost
  the paper's executors in synchronisation has no model.
- Stages: two are the best here for all three, in the paper for BertBase; twenty are too many in both. With four,
  LinkNet takes one and a half times as long as with two, and ResNet152 twice: two buffer pairs keep two executors busy
  at most, and what a cut costs is assumed alike for all.
"""
WAITS = """\
The paper stretches a batch while its age is below T_comp_wait, and gives no value. Here it is a part of T(1), the time
that one row takes through all stages (`complete_wait`); the tables above have {complete_wait:g}. The Berts
stretch nothing.
"""
CASE3 = """\
The paper's third worked example stretches a batch of age T, a quarter of T(1): from 8 T to 5.25 T. So it needs more
than 0.25. And it needs rows that come at the very instant at which a stage ends to be seen together with that end; the
simulator has that as an option (`one_step`), as its rule is a step for each end. Mean latency of the four rows:
"""
STEPPING = """\
On the right the paper's stepping load, {steps[0]:g} to {steps[1]:g} requests a second in {steps[2]} steps of
{steps[3]:,} requests: the rate of the last step up to which 99 % keep the QoS. A step is 281 requests a second wide;
LinkNet, and BertBase where lengths are looked at, pass the last one.
"""
COUNTS = """\
Mean latency of DVABatch at the high load. The paper's executors pay for many buffer pairs with the overhead of their
synchronisation, which has no model here; more pairs only let more batches share the GPU.
"""
DOUBTED = """\
The mean over the six networks, in brackets the least and the most. Loads here are shares of 0.9 of what the device can
do at best, and runs are a quarter as long. DelayBatch is left out. At medium and high load that is more than ZeroBatch
can serve of the Berts: reductions near 100 % say no more than that, and raise the means.
"""
LATE = """\
The rates at most are of {sequences:,} requests, as many as in the paper, that arrive at three times what the device can
do at best; the latencies below are of a tenth as many. Short runs understate many buckets, whose last batches are not
full: of 6,000 requests the gain of `late` on WMT-like lengths was 83 %. `adaptive` serves 5 % less at most than `late`,
because its steps have no more rows than are nearly as fast as any; up to 0.8 of the buckets' throughput both do the
same. With a fixed length there is one bucket, and only the waiting for the batch before is saved; the published
reduction is 25 to 40 %. Loads are shares of the throughput of the buckets, whose width is the best for throughput.
"""
