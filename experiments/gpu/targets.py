"""What the figures should be at least, and what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from experiments.gpu.blocks import Data

HTTP, BOUND = 0.9, 0.9
UNIT_US = 60.0
BESIDE, SLACK_MS = 1.2, 0.1
BOUNDARIES = 0.03
BELOW_WINDOW = 0.7
CELLS = 1.5

#: Of figures that are not there, or not complete.
ABSENT = (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError)


class Target(NamedTuple):
    """`met`: None where the figures do not decide it, for the reason in `found`."""

    text: str
    found: str
    met: bool | None


def targets(blocks: Data) -> list[Target]:
    """Each target, as far as the blocks that were run decide it."""
    found: list[Target] = []
    for text, judge in _JUDGES.items():
        judged: list[Target] = []
        try:
            judged.extend(Target(f"{text}: {name}" if name else text, *rest) for name, rest in judge(blocks))
        except ABSENT:  # its block was cut off, or left out
            judged.append(Target(text, "not measured", None))
        found += judged or [Target(text, "not measured", None)]
    return found


def missed(data: Data) -> list[str]:
    return [f"{one.text}: {one.found}" for one in targets(data["blocks"]) if one.met is False]


#: What it is about; what was found, and whether that is enough.
Judged = Iterator[tuple[str, tuple[str, bool | None]]]


def _http(blocks: Data) -> Judged:
    engine = blocks["engine"]
    most = max(one["closed"]["rows_s"] for one in engine["policies"].values())
    runs = blocks["http"]["runs"]["Starling"]
    share = sum(run["requests_s"] for run in runs) / len(runs) / most
    bound = most / engine["bare_rows_s"]
    if bound < BOUND:
        yield "", (f"{share:.2f}; the card is not the bound: the engine does {bound:.2f} of the bare network's", None)
    else:
        yield "", (f"{share:.2f}", share >= HTTP)


def _unit(blocks: Data) -> Judged:
    spent = blocks["empty"]["graphs"]["cpu_us"]
    yield "", (f"{spent:.0f} us", spent <= UNIT_US)


def _beside(blocks: Data) -> Judged:
    ways = blocks["classes"]["ways"]
    ratio = ways["reef, 8 stages"]["mean_ms"] / ways["alone"]["mean_ms"]
    yield "", (f"{ratio:.2f} x", ratio <= BESIDE)


def _preempted(blocks: Data) -> Judged:
    of = blocks["classes"]
    beyond = of["ways"]["reef, 8 stages"]["p99_ms"] - of["ways"]["alone"]["p50_ms"]
    stage = of["stage_ms"]["8"]
    yield "", (f"{beyond:.3f} ms, a stage takes {stage:.3f} ms", beyond <= stage + SLACK_MS)


def _boundaries(blocks: Data) -> Judged:
    rates = blocks["classes"]["bulk_alone_rows_s"]
    cost = 1 - rates["4"] / rates["1"]
    yield "", (f"{cost:+.1%}", cost <= BOUNDARIES)


def _policies(blocks: Data) -> Judged:
    means = {name: one["loads"][0]["mean_ms"] for name, one in blocks["engine"]["policies"].items() if one.get("loads")}
    for name in ("ebird", "adaptive"):
        if name in means:
            share = means[name] / means["window"]
            yield f"`{name}`", (f"{share - 1:+.0%}", share <= BELOW_WINDOW)


def _cells(blocks: Data) -> Judged:
    for name, one in blocks["cells"]["models"].items():
        ratio = one["cells"]["closed"]["rows_s"] / max(one["whole_rows_s"].values())
        yield name, (f"{ratio:.2f} x", ratio >= CELLS)


_JUDGES: dict[str, Callable[[Data], Judged]] = {
    f"rows/s over HTTP at least {HTTP} of the engine's, where the card is the bound": _http,
    f"CPU time of a call of an empty model at most {UNIT_US:.0f} us": _unit,
    f"real time beside bulk in 8 stages: mean at most {BESIDE} x alone": _beside,
    f"real time beside bulk in 8 stages: p99 at most one stage and {SLACK_MS} ms beyond the median alone": _preempted,
    f"four stages cost at most {100 * BOUNDARIES:.0f} % of the rows/s of the whole": _boundaries,
    f"a policy's mean at 30 % of the peak at least {100 * (1 - BELOW_WINDOW):.0f} % below that of `window`": _policies,
    f"cells at least {CELLS} x the rows/s of the best padded batches": _cells,
}
