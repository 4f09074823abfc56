"""What the figures should be at least, and what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiments.gpu.blocks import Data

HTTP, BOUND = 0.9, 0.9
UNIT_US = 60.0
BESIDE, SLACK_MS = 1.2, 0.1
BOUNDARIES = 0.03
BELOW_WINDOW = 0.7
CELLS = 1.5


class Target(NamedTuple):
    """`met`: None where the figures say nothing about it, for the reason in `found`."""

    text: str
    found: str
    met: bool | None


def targets(blocks: Data) -> list[Target]:
    """Each target, as far as the blocks that were run decide it."""
    found: list[Target] = []
    for judge in (_http, _unit, _classes, _boundaries, _policies, _cells):
        try:
            found += judge(blocks)
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):  # a block was cut off, or left out
            found.append(Target(judge.__doc__ or "", "not measured", None))
    return found


def missed(data: Data) -> list[str]:
    return [f"{one.text}: {one.found}" for one in targets(data["blocks"]) if one.met is False]


def _http(blocks: Data) -> Iterator[Target]:
    """rows/s over HTTP at least 0.9 of the engine's, where the card is the bound"""
    engine = blocks["engine"]
    most = max(one["closed"]["rows_s"] for one in engine["policies"].values())
    runs = blocks["http"]["runs"]["Starling"]
    share = sum(run["requests_s"] for run in runs) / len(runs) / most
    bound = most / engine["bare_rows_s"]
    if bound < BOUND:
        yield Target(
            _http.__doc__ or "", f"{share:.2f}; the card is not the bound: the engine does {bound:.2f} of the bare network's",
            None,
        )  # fmt: skip
    else:
        yield Target(_http.__doc__ or "", f"{share:.2f}", share >= HTTP)


def _unit(blocks: Data) -> Iterator[Target]:
    """a unit of an empty graph at most 60 us in the host"""
    spent = blocks["empty"]["graphs"]["cpu_us"]
    yield Target(_unit.__doc__ or "", f"{spent:.0f} us", spent <= UNIT_US)


def _classes(blocks: Data) -> Iterator[Target]:
    """real time beside bulk in 8 stages: mean at most 1.2 x alone; p99 at most one stage and 0.1 ms beyond alone"""
    of = blocks["classes"]
    alone, beside = of["ways"]["alone"], of["ways"]["reef, 8 stages"]
    ratio = beside["mean_ms"] / alone["mean_ms"]
    yield Target("real time beside bulk in 8 stages at most 1.2 x alone (mean)", f"{ratio:.2f} x", ratio <= BESIDE)
    beyond, stage = beside["p99_ms"] - alone["p50_ms"], of["stage_ms"]["8"]
    yield Target(
        "p99 beside bulk in 8 stages at most one stage and 0.1 ms beyond the median alone",
        f"{beyond:.3f} ms, a stage is {stage:.3f} ms", beyond <= stage + SLACK_MS,
    )  # fmt: skip


def _boundaries(blocks: Data) -> Iterator[Target]:
    """four stages cost at most 3 % of the rows/s of the whole"""
    rates = blocks["classes"]["bulk_alone_rows_s"]
    cost = 1 - rates["4"] / rates["1"]
    yield Target(_boundaries.__doc__ or "", f"{cost:+.1%}", cost <= BOUNDARIES)


def _policies(blocks: Data) -> Iterator[Target]:
    """the mean of `ebird` and of `adaptive` at 30 % at least 30 % below that of `window`"""
    means = {name: one["loads"][0]["mean_ms"] for name, one in blocks["engine"]["policies"].items() if one.get("loads")}
    for name in ("ebird", "adaptive"):
        if name in means:
            share = means[name] / means["window"]
            text = f"the mean of `{name}` at 30 % of the peak at least 30 % below that of `window`"
            yield Target(text, f"{share - 1:+.0%}", share <= BELOW_WINDOW)


def _cells(blocks: Data) -> Iterator[Target]:
    """cells at least 1.5 x the rows/s of whole padded batches"""
    for name, one in blocks["cells"]["models"].items():
        ratio = one["cells"]["closed"]["rows_s"] / max(one["whole_rows_s"].values())
        yield Target(
            f"{name} by steps at least 1.5 x the best padded batches' rows/s", f"{ratio:.2f} x", ratio >= CELLS
        )
