"""The page: what each figure shows, how it was measured, and the result, or a note that it was not measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import tables
from .data import COUNTS, HIGH, LOW, PIXELS, QOS_MS, TOKENS, Found

NOTHING = "Not measured yet."
PAIR = {"rows": 512, "layers": 8, "width": 4096}  # of the preemption's bulk batch

HEAD = """\
# On a GPU

Figures 6, 8, 9 and 11 of Ebird (ICCD'19), the cost of stages and cells and the effect of each part of the engine,
measured on one GPU by `python -m loadtest.gpu`. The paper used a Titan RTX with 72 SMs, CUDA 10.1 and an engine in
C++. A section without figures was not measured.
"""
UNRUN = "**Nothing on this page has been measured: the program has not run on a GPU yet.**"
REHEARSED = "**A REHEARSAL ON A CPU. Every figure below is of a tiny network on threads and means nothing.**"

ASSUMED = f"""\
## How, and what is assumed

- Networks have their published shape and random weights from a seed; images are {PIXELS} x {PIXELS}, texts {TOKENS}
  tokens. Images are sent as bytes and normalised by the model. Inputs are random. BERT gets no mask, so every token
  counts.
- "fp32" is torch's default: convolutions may use TF32, matrix products do not; the facts below say what was set.
  "bf16" casts weights and activations. Torch chooses layouts and algorithms; nothing is compiled.
- Clock rates and all other settings of the card are left as they are. Each measurement is warm: graphs have been
  captured and every size has run. Tables show medians and, in brackets, the least and the most.
- In part 1 each measurement has its own process. It drives the engine without HTTP and without a scheduler: a closed
  loop pushes a worker's next unit as soon as one has ended, copies each of its rows to the device again, one by one,
  and writes its results into pinned memory. Rates are measured from the first counted report to the last, by the
  host's clock.
- Part 2 is over HTTP on the same machine, binary payload, one row a request, Poisson arrivals. All policies have the
  same engine: the same workers, push depth and CUDA graphs, named below; so the ratios are those of the policies
  alone. The baseline is `window`, which on Starling's engine copies inputs as they come and runs units at once: what
  Ebird gains by that over the paper's TF-Serving is not part of the ratios here. `--workers 32` gives all policies
  the one worker of TF-Serving, and leaves `ebird` out, which needs a worker of one row. The delay of `window` and
  `static` is a third of T(32), which is what the paper's 30 ms are for ResNet-152 on its GPU.
- One process reads all requests. If it, not the GPU, limits a rate, policies cannot differ much. The profile tells:
  32 / T(32) is what the device alone could do.
"""

SIX_A = """\
## Figure 6a: one copy or many

{rows} rows of {size} are copied from pinned memory to the device on one stream, in 1 to {rows} copies. "Bare" is
torch alone; "slots" is the engine, which records an event behind each copy. Timed with events around all of it,
launches included. Ebird reports less than 1 ms of difference in all, 3.9 us a request.
"""
SIX_B = """\
## Figure 6b: one batch or many workers

Total time of N workers of M rows at once, N x M = {rows}. "Bare" is torch alone with a stream for each worker, timed
with events. "Engine" is a device of N workers, from the first push to the last report, results in pinned memory, timed
by the host. Torch has 32 streams of each priority and the hardware as many queues, and a worker has two streams: more
than 16 workers share them. Ebird reports no loss up to 64 workers, and losses at 128 and 256.
"""
ELEVEN = """\
## Figure 11: memory

MiB of device memory for {model} in fp32, after every graph has been captured and all workers have run at once.
"tensors" is everything allocated except graph pools and workspaces: weights, slots and indices. "x one" compares with
the first line. Ebird reports 15.2 % more memory for six workers, each with its own copy of the weights. The target here
is at most 1.15 x one, without workspaces, both with and without the pools. "driver" is read after the allocator has
returned its free memory; a server keeps that memory, up to "peak reserved".
"""
BOUNDARIES = """\
## Stages and cells: what a boundary costs

One batch at a time on one worker, without a scheduler. "Cut" is a network of {stages} linear layers of {width}, whole
and cut behind each layer: from the push of a batch to its report, and what each cut adds, rows going on as they are.
"Step" is a step of an LSTM of {width} in two layers: from push to report, on the device alone, and on the device when a
row begins with it.
"""
PREEMPTION = """\
## Real time and bulk work: what a batch waits for

Two workers without a scheduler, one of high priority. A bulk batch of {rows} rows goes through {layers} linear layers
of {width}, cut into stages; a real-time batch has one row. "Stops after": at a random moment the bulk batch is told to
make way, and this is how long its stage takes to end, be noticed and be reported; each stage is pushed when the one
before has been reported. "Real-time" is a batch that is pushed at that moment. The last table has real-time batches
while bulk ones follow one another.
"""
EFFECTS = """\
## What each part brings

Rows per second in a closed loop. "Workers" is with graphs at push depth 2. "Graphs" compares with no graphs at push
depth 2. "Push depth" compares with depth 2. The last table is the total time of one unit on each of six streams, with
shared weights and with a copy for each stream.
"""
NINE = f"""\
## Figure 9: throughput under QoS

The largest Poisson rate at which 99 % of the requests are answered within {QOS_MS:.0f} ms, to 5 %, and why the next
higher rate failed. Ebird reports 34.4 % more than its baseline on average, 49.3 % at most.
"""
EIGHT = f"""\
## Figure 8: {COUNTS[0]} requests at the low rate, {COUNTS[1]} at the high

The rates are {LOW} and {HIGH} of the baseline's largest rate of Figure 9; the paper gives no rates. Mean latencies over
all seeds; all policies get the same instants; the plot shows one seed. Ebird reports 44.6 to 70.9 % lower latency at
the low rate, 7.4 to 53.1 % at the high.
"""
ENERGY = """\
## Energy

Joules per request at stable rates, from the server's `starling_energy_joules_total` before and after. The counter
covers the whole GPU including idle power, which falls on fewer requests at the low rate.
"""


def page(known: Found, rehearsed: bool, plots: Sequence[str]) -> str:
    """The page's text. `known`: results by measurement, and "facts". `plots`: file names of the plots beside it."""
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
    shape = {"stages": _first(known, "boundaries", "stages", 4), "width": _first(known, "boundaries", "width", 512)}
    parts += _section(known, "boundaries", tables.boundaries, BOUNDARIES.format(**shape))
    shape = {key: _first(known, "preemption", key, value) for key, value in PAIR.items()}
    parts += _section(known, "preemption", tables.preemption, PREEMPTION.format(**shape))
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
        # a program's output may hold paths of this machine; only the last line, which names the error, is shown
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
    """Write gpu.md and, if anything was measured, gpu.json and the plots. Returns their paths."""
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
    """The merged results of several runs, later ones first, and whether any of them was a rehearsal."""
    known: Found = {"facts": {}}
    rehearsed = False
    for path in paths:
        stored = json.loads(path.read_text(encoding="utf-8"))
        rehearsed = rehearsed or stored["rehearsed"]
        known["facts"] |= stored["known"].pop("facts", {})
        known |= stored["known"]
    return known, rehearsed
