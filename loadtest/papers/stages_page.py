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
a batch when the device is free. DVABatch is `dva_input` for the Berts and `dva_load` for the others. `adaptive` is
Starling's own policy on the same stages, and with "whole" on the model in one piece. All get the same arrivals.
"""

ASSUMED = """\
## Assumptions

- Stage i of b rows takes a fixed time for launches plus row time x share x max(b, fill), where `fill` rows fill the
  GPU. Row times are operations at 14 TFLOP/s; the paper gives none. Stages of equal shares, as in the paper.
- In Unet and LinkNet the first half of the stages needs large batches and the second half does not (the paper's Figure
  6 for Unet; that LinkNet is alike is assumed). The other networks prefer one size throughout.
- Times of the Berts are in proportion to the longest row of the batch. Lengths are `{rte}`, to resemble
  RTE, which the paper only draws. Clusters end at {buckets} tokens.
- ZeroBatch and DelayBatch have up to {ahead} batches at the device.
- One unit at a time: what several stages at once gain on a GPU that is not full is left out. This is against DVABatch.
- The largest batch is {max_batch}, the QoS {qos_ms:.0f} ms. The peak is the largest Poisson rate at which 99 % of
  {requests:,} requests keep it. Loads are shares of DelayBatch's peak. DelayBatch's window is the one of {delays} ms
  with the highest peak. `dva_load` has no window.
- The paper's stepping load is not run; its peaks are compared with those at a stable rate.
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
        for name in ("DVABatch", "no_wait", "adaptive"):
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
            rows.append([found["network"]["name"], told, *cells, f"{found['peaks'][name]:.0f}"])
    return table(("", "", *(f"{load}: mean / 99 %, ms" for load in loads), "peak, rows/s"), rows)


def peaks(studies: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for found in studies:
        base = found["peaks"]["DelayBatch"]
        name = found["network"]["name"]
        ours = [percent(found["peaks"][one] / base - 1) for one in ("DVABatch", "adaptive")]
        rows.append([name, PEAKS.get(name, "the same"), *ours])
    return table(("peak against DelayBatch", "published", "DVABatch", "adaptive"), rows)


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
            buckets, late = one["buckets"][figure], one["late"][figure]
            cells += [ms(buckets), ms(late), percent(late / buckets - 1)]
        rows.append(cells)
    return table(("load", "p50 buckets", "late", "", "p99 buckets", "late", ""), rows)


def throughput(datasets: Sequence[Mapping[str, Any]]) -> str:
    published = {"fixed 20": "about the same", "WMT-like": "+25 to 33 %"}
    rows = [
        [found["dataset"], f"{found['most']['buckets']:,.0f} (width {found['width']})", f"{found['most']['late']:,.0f}",
         percent(found["most"]["late"] / found["most"]["buckets"] - 1), published[found["dataset"]]]
        for found in datasets
    ]  # fmt: skip
    return table(("sequences/s at most", "buckets", "late", "", "published"), rows)


def parts(data: Mapping[str, Any]) -> list[str]:
    settings, studies = data["settings"], data["studies"]
    loads = list(settings["loads"])
    delays = ", ".join(f"{delay:g}" for delay in settings["delays_ms"])
    buckets = ", ".join(map(str, settings["buckets"]))
    made = [
        HEAD, "## DVABatch", overall(studies, loads), "![Mean latencies](stages.png)", latencies(studies, loads),
        peaks(studies), WHY, "### With other assumptions", DOUBTED, doubted(data["doubts"], loads),
        "## Late Batching", throughput(data["cells"]), LATE,
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
    series = {
        name: [found["loads"][name]["high"]["mean_ms"] for found in data["studies"]]
        for name in data["studies"][0]["loads"]
    }
    plots.bars(names, series, "mean latency at high load, ms", folder / "stages.png")
    return ["stages.png", markdown.write(parts(data), folder / "stages.md")]


WHY = """\
The published reductions are not reached here, and the literal presets are often slower than what they are compared
with. Why:

- Most of the published gain is over servers that form batches early or late. `no_wait`, which forms a batch when the
  device is free, has most of it without stages, and little is left to gain.
- `dva_input`'s window is the first stage at the largest batch. With the times assumed here that is several times what
  a request takes at low load. The paper has lower latencies than ZeroBatch at low load, so that its window cannot have
  been so long; it gives no times. What does not depend on the window, the peak, is above the published one.
- `dva_load` lets a batch wait on a device that runs one unit at a time. On a GPU with room for both, latecomers run
  beside it, as in the paper. The bound on the age of a batch, which the paper does not give either, is that of
  [stages](../stages.md): the time that one row takes.
- Splitting pays in Unet at all loads (against ZeroBatch), as published.
- `adaptive` on stages is never slower than on the whole model by more than 1 %, and up to 7 % faster. For the Berts it
  has no clusters: it picks rows by length around the oldest ([lengths](lengths.md)), which is better at each load.
"""
DOUBTED = """\
The mean over the six networks, in brackets the least and the most. Loads here are shares of 0.9 of what the device can
do at best, and runs are a quarter as long.
"""
LATE = """\
Each run is short, and at three times what the device can do at best its requests are spread over the buckets, whose
last batches are not full: the throughput of many buckets is understated, which is why our gain on WMT-like lengths is
above the published one. With a fixed length there is one bucket, and only the waiting for the batch before is saved;
the published reduction is 25 to 40 %. The loads below are shares of the buckets' throughput.
"""
