"""The page: what each figure stands for, how it was taken, and what came out, or an empty place for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import tables
from .data import COUNTS, HIGH, LOW, PIXELS, QOS_MS, TOKENS, Found

NOTHING = "Not measured yet."

HEAD = """\
# On a GPU

Figures 6, 8, 9 and 11 of Ebird (ICCD'19) and the effect of each part of the engine, measured on one GPU by
`python -m loadtest.gpu`. Theirs: a Titan RTX with 72 SMs, CUDA 10.1, engines in C++. What has no figure here was not
measured.
"""
UNRUN = "**Nothing on this page has been measured: the program is written and has not run on a GPU.**"
REHEARSED = "**A REHEARSAL ON A CPU. Every figure below is of a toy network on threads and means nothing.**"

ASSUMED = f"""\
## How, and what is assumed

- Networks have random weights from a seed and their published shape; {PIXELS} x {PIXELS} images, {TOKENS} tokens.
  Images are sent as bytes and normalised by the model. Inputs are random. BERT gets no mask: every token counts.
- "fp32" is torch's default: convolutions may use TF32, matrix products do not; the facts below say what was set.
  "bf16" casts weights and activations. Layouts and algorithms are what torch chooses; nothing is compiled.
- The clocks and all settings of the card are as they were found. Each measurement is warm: graphs are captured and
  every size has run before. Tables show medians and, in brackets, least and most.
- Part 1 has a process for each measurement. The engine is driven without HTTP and scheduler there: a closed loop
  pushes the next unit of a worker as soon as one has ended, each of its rows is copied to the device anew, one by
  one, and its results land in pinned memory. Rates are from the first report that counts to the last, by the host's
  clock.
- Part 2 is over HTTP on the same machine, binary payload, one row a request, Poisson arrivals. All policies have the
  same engine: the same workers, push depth and CUDA graphs, named below; so the ratios are those of the policies
  alone. The baseline is `window`, which on Starling's engine copies inputs as they come and runs units at once: what
  Ebird gains by that over the paper's TF-Serving is not part of the ratios here. `--workers 32` gives all policies
  the one worker of TF-Serving, and leaves `ebird` out, which needs a worker of one row. The delay of `window` and
  `static` is a third of T(32), which is what the paper's 30 ms are for ResNet-152 on its GPU.
- One process reads all requests. Where a rate is limited by it and not by the GPU, policies cannot differ much; T(32)
  of the profile tells: 32 over it is what the device alone could do.
"""

SIX_A = """\
## Figure 6a: one copy or many

{rows} rows of {size} from pinned memory to the device, on one stream, in 1 to {rows} copies. Bare: torch alone.
Slots: the engine's, with an in-event behind each copy. Events around all of it, launches included. Ebird: less than 1
ms of difference in all, 3.9 us a request.
"""
SIX_B = """\
## Figure 6b: one batch or many workers

N workers of M rows at once, N x M = {rows}: total time. Bare: a stream each, torch alone; events around all. Engine:
a device of N workers, from the first push to the last report, results in pinned memory; the host's clock. torch has
32 streams of a priority and the hardware as many queues, and a worker has two: beyond 16 workers they share. Ebird:
flat up to 64 workers, worse at 128 and 256.
"""
ELEVEN = """\
## Figure 11: memory

MiB of the device for {model} in fp32 after every graph has been captured and all workers have run at once. "tensors":
all that is allocated but graphs' pools and workspaces, so weights, slots and indices; "x one": against the first
line. Ebird: 15.2 % more for six workers, which have a copy of the weights each there. Asked for here: at most 1.15 x
one, workspaces apart; with the pools counted, and without. "driver" is read after the allocator has returned what it
held free; a server keeps that, up to "peak reserved".
"""
EFFECTS = """\
## What each part brings

Rows per second in a closed loop. Workers: push depth 2, graphs. Graphs: against the same without, push depth 2.
Depth: against depth 2. Sharing: total time of a unit on each of six streams, one set of weights against a copy each.
"""
NINE = f"""\
## Figure 9: throughput under QoS

The largest Poisson rate at which 99 % of the requests are answered within {QOS_MS:.0f} ms, to 5 %, and what was wrong
at the next. Ebird: 34.4 % more than the baseline on average, 49.3 % at most.
"""
EIGHT = f"""\
## Figure 8: {COUNTS[0]} requests at the low rate, {COUNTS[1]} at the high

{LOW} and {HIGH} of the baseline's largest rate of Figure 9; the paper gives no rates. Mean latencies over all seeds,
all contenders at the same instants; the plot shows one seed. Ebird: 44.6 to 70.9 % lower at the low rate, 7.4 to 53.1
% at the high.
"""
ENERGY = """\
## Energy

Joules a request at stable rates, from `starling_energy_joules_total` of the server before and after. The counter is
the whole GPU's: power that is drawn idle is part of it, and falls on fewer requests at the low rate.
"""


def page(known: Found, rehearsed: bool, plots: Sequence[str]) -> str:
    """`known`: what was found by measurement, and "facts"; `plots`: names of those that stand beside the page."""
    parts = [HEAD]
    measured = [name for name in known if name != "facts"]
    if rehearsed:
        parts.append(REHEARSED)
    elif not measured:
        parts.append(UNRUN)
    parts += [ASSUMED, "## Tests on the GPU", _tests(known.get("tests"))]
    parts += _section(known, "figure6a", lambda runs: tables.figure6a(runs[0]), SIX_A.format(**_six_a(known)))
    parts += _plot("figure6", "Copies and workers", plots)
    parts += _section(known, "figure6b", tables.figure6b, SIX_B.format(rows=_first(known, "figure6b", "rows", 256)))
    parts += _section(known, "figure11", tables.figure11, ELEVEN.format(model="BERT-large"))
    parts += _plot("figure11", "Memory of one worker and of six", plots)
    parts += _section(known, "effects", tables.effects, EFFECTS)
    parts += _plot("effects", "Rows per second by workers", plots)
    parts += _section(known, "live", tables.peaks, NINE + tables.engines(known.get("live")), left=False)
    parts += _plot("figure9", "Throughput under QoS", plots)
    parts += _section(known, "live", tables.bursts, EIGHT, left=False)
    parts += _plot("figure8", "Latency against request number", plots)
    parts += _section(known, "live", tables.energy, ENERGY)
    facts: dict[str, dict[str, str]] = known.get("facts", {})
    if facts:
        parts.append("## Where and when")
    for part, told in facts.items():
        parts.append(f"{part}:\n\n" + "\n".join(f"- {key}: {value}" for key, value in told.items()))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _section(known: Found, name: str, make: Callable[[list[Found]], str], text: str, left: bool = True) -> list[str]:
    found = known.get(name)
    if found is None:
        return [text, NOTHING]
    runs = found["runs"]
    parts = [text, make(runs) if runs else NOTHING]
    if left and found["left_out"]:
        parts.append("Left out: " + "; ".join(found["left_out"]) + ".")
    if left and found["failed"]:
        # what a program says may hold paths of the machine, in lines of their own: the last line names the error
        parts.append("Failed: " + "; ".join(text.splitlines()[-1][-300:] for text in found["failed"]) + ".")
    return parts


def _tests(found: Found | None) -> str:
    if found is None:
        return NOTHING
    lines = [f"`pytest -m cuda tests/engine`: {found['last'] or 'no result'}."]
    return "\n".join([*lines, *(f"- {name}" for name in found["failed"])])


def _plot(name: str, title: str, plots: Sequence[str]) -> list[str]:
    return [f"![{title}]({name}.png)"] if f"{name}.png" in plots else []


def _six_a(known: Found) -> dict[str, Any]:
    size = _first(known, "figure6a", "row_bytes", 3 * PIXELS * PIXELS * 4)
    return {"rows": _first(known, "figure6a", "rows", 256), "size": f"{size / 1024:.0f} KiB"}


def _first(known: Found, name: str, key: str, otherwise: int) -> int:
    runs = known.get(name, {}).get("runs") or [{}]
    return int(runs[0].get(key, otherwise))


def write(known: Found, rehearsed: bool, folder: Path) -> list[Path]:
    """gpu.md, and where something was measured gpu.json and the plots. Returns their paths."""
    from . import plots

    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    if any(name != "facts" for name in known):
        made = plots.draw(known, folder)
        store = folder / "gpu.json"
        text = json.dumps({"rehearsed": rehearsed, "known": known}, ensure_ascii=False)
        store.write_text(text + "\n", encoding="utf-8")
        made.append(store)
    written = folder / "gpu.md"
    written.write_text(page(known, rehearsed, [path.name for path in made]), encoding="utf-8")
    return [*made, written]


def join(paths: Sequence[Path]) -> tuple[Found, bool]:
    """What several runs found, a later one's before an earlier one's; whether any of it was a rehearsal."""
    known: Found = {"facts": {}}
    rehearsed = False
    for path in paths:
        stored = json.loads(path.read_text(encoding="utf-8"))
        rehearsed = rehearsed or stored["rehearsed"]
        known["facts"] |= stored["known"].pop("facts", {})
        known |= stored["known"]
    return known, rehearsed
