"""All measurements that need a GPU: `python -m loadtest.gpu`, or in two calls `--part 1` and `--part 2`.

Part 1 runs the tests marked `cuda`, then measures Ebird's Figure 6a, what boundaries between stages and steps cost,
how soon batches make way for others, Figures 11 and 6b and the effects of the engine's parts, each in its own process.
Part 2 measures Figures 9 and 8 and the energy per request over HTTP, where all policies have the same workers, push
depth and CUDA graphs. A part takes less than ten minutes: measurements that do not fit are left out and named on the
page. Page, JSON and plots are written after each measurement, so a call that is cut off keeps what it has measured.
`--page FILE...` merges the JSON of several calls into one page and measures nothing; without a file the page has empty
sections. Exit status: 1 if
something failed, 2 if there is no CUDA device.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.scheduler.policies import default_workers
from loadtest.common.paths import ROOT

from .data import NETWORKS
from .measurements import Engine, largest_of

DOCS = ROOT / "docs" / "bench" / "gpu"
MODELS = ("resnet50", "resnet152", "vgg16", "bert-base")
SERVED = ("resnet152", "bert-base")
PRECISIONS = ("fp32", "bf16")
LIMIT_S = 570.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m loadtest.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "tests, figure6a, figure6b, figure11, boundaries, preemption, effects, live"
    made.add_argument("--quick", action="store_true", help="fewer rounds and seeds: about half the time")
    made.add_argument("--part", type=int, choices=(1, 2), help="one half, for a call of its own [both]")
    made.add_argument("--only", default="", help=f"comma-separated beginnings of names: {names} [all]")
    made.add_argument("--models", default="", help=f"[effects: {','.join(MODELS)}; live: {','.join(SERVED)}]")
    made.add_argument("--precisions", default=",".join(PRECISIONS), help=f"of the effects [{','.join(PRECISIONS)}]")
    made.add_argument("--workers", default="", help="live: capacities of every policy's workers [Ebird's own six]")
    made.add_argument("--push-depth", type=int, default=1, help="live: of every policy [1, the only one ebird has]")
    made.add_argument("--no-graphs", action="store_true", help="live: no policy's server captures CUDA graphs")
    made.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help=f"start no measurement that would end later [{LIMIT_S:g}]"
    )
    made.add_argument("--plan", action="store_true", help="print what would be measured and how long it should take")
    made.add_argument(
        "--page", type=Path, nargs="*", metavar="FILE", help="make a page of these gpu.json; measure nothing"
    )
    made.add_argument("--out", type=Path, default=DOCS, help="folder for page, JSON and plots [docs/bench/gpu]")
    made.add_argument(
        "--rehearse", action="store_true", help=argparse.SUPPRESS
    )  # tiny networks on the CPU, to test the code
    return made


def chosen_of(arguments: list[str]) -> argparse.Namespace:
    """Parse and check the options; argparse exits with status 2 if they are invalid."""
    made = parser()
    chosen = made.parse_args(arguments)
    given = tuple(filter(None, chosen.models.split(",")))
    for name in given:
        if name not in NETWORKS:
            made.error(f"--models: expected names of {', '.join(NETWORKS)}, got {name!r}")
    chosen.effects, chosen.served = given or MODELS, given or SERVED
    chosen.precisions = tuple(chosen.precisions.split(","))
    for precision in chosen.precisions:
        if precision not in PRECISIONS:
            made.error(f"--precisions: expected {' or '.join(PRECISIONS)}, got {precision!r}")
    largest = largest_of(chosen.rehearse)
    workers = [int(text) if text.isdigit() else 0 for text in filter(None, chosen.workers.split(","))]
    if any(not 1 <= capacity <= largest for capacity in workers):
        made.error(f"--workers: expected capacities from 1 to {largest}, got {chosen.workers!r}")
    if chosen.push_depth < 1:
        made.error(f"--push-depth: expected at least 1, got {chosen.push_depth}")
    capacities = tuple(workers) or default_workers("ebird", largest)
    chosen.engine = Engine(capacities, chosen.push_depth, not chosen.no_graphs)
    chosen.out = chosen.out.resolve()
    if chosen.rehearse and chosen.out.is_relative_to(ROOT / "docs"):
        made.error("--out: expected a folder outside of docs/, which rehearsed figures must not enter")
    return chosen


def wanted(chosen: argparse.Namespace) -> list[Any]:
    """The measurements asked for, in order. Figures 8 and 9 and the energy are one: they share servers and rates."""
    from .live import LIVE
    from .measurements import MEASUREMENTS

    starts = [
        {"figure8": "live", "figure9": "live", "energy": "live"}.get(name, name) for name in chosen.only.split(",")
    ]
    return [
        measure
        for measure in [*MEASUREMENTS, LIVE]
        if chosen.part in (None, measure.part) and any(measure.name.startswith(start) for start in starts)
    ]


def run(chosen: argparse.Namespace) -> int:
    """Run the measurements asked for and write the page after each. Returns the exit status."""
    from loadtest.common.experiment import facts

    from . import child, page
    from .measurements import Session

    known: dict[str, Any] = {"facts": {}}
    begin = time.monotonic()
    told = facts(f"python -m loadtest.gpu{f' --part {chosen.part}' if chosen.part else ''}")
    bad = False
    with tempfile.TemporaryDirectory(prefix="starling-gpu-") as repository:
        session = Session(
            chosen.rehearse, chosen.quick, Path(repository), chosen.effects, chosen.served, chosen.precisions,
            begin + chosen.limit_s, lambda text: print(text, file=sys.stderr, flush=True), chosen.engine,
        )  # fmt: skip
        measures = wanted(chosen)
        show_plan(measures, session)
        if chosen.plan:
            return 0
        known["facts"][f"Part {chosen.part}" if chosen.part else "Both parts"] = {
            **told, **child.run("facts", {}, rehearsed=chosen.rehearse, limit_s=120)
        }  # fmt: skip
        for measure in measures:
            session.say(f"{measure.name}: {session.left():.0f} s are left")
            known[measure.name] = measure.run(session)
            bad = bad or bool(known[measure.name]["failed"])
            page.write(known, chosen.rehearse, chosen.out)
    session.say(f"{time.monotonic() - begin:.0f} s in all; {chosen.out}/gpu.md")
    for name in (measure.name for measure in measures):
        for text in known[name]["left_out"] + known[name]["failed"]:
            session.say(f"{name}: {text}")
    return int(bad)


def show_plan(measures: list[Any], session: Any) -> None:
    session.say("part  measurement      about, s")
    for measure in measures:
        session.say(f"{measure.part}     {measure.name:<12} {measure.seconds(session):>12.0f}")
    session.say(f"      {'together':<12} {sum(measure.seconds(session) for measure in measures):>12.0f}")


def main(arguments: list[str]) -> int:
    chosen = chosen_of(arguments)
    if chosen.page is not None:
        from . import page

        try:
            known, rehearsed = page.join(chosen.page)
        except (OSError, ValueError, KeyError) as exc:
            print(f"--page: expected files that loadtest.gpu wrote: {exc}", file=sys.stderr)
            return 1
        if rehearsed and chosen.out.is_relative_to(ROOT / "docs"):
            print("--page: rehearsed figures must not enter docs/", file=sys.stderr)
            return 1
        for path in page.write(known, rehearsed, chosen.out):
            print(f"wrote {path.name}", file=sys.stderr)
        return 0
    import torch

    if not (chosen.rehearse or chosen.plan or torch.cuda.is_available()):
        print("loadtest.gpu: there is no CUDA device here, so nothing was measured", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds what stops the servers
    return run(chosen)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the servers have been stopped on the way here
        sys.exit(130)
