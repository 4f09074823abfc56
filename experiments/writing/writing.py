"""Decoders step by step against whole batches of `generate`: `python -m experiments.writing.writing`.

The shapes of T5-small and GPT-2-small with random weights, served by one server: by steps, so that rows join and leave
between two tokens, and as opaque models that run `generate` on a batch, for several sizes and widths of buckets.
Writes docs/bench/writing.md and .json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from experiments.writing import live, models
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data, Page
from loadtest.generator.run import in_loop


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="*", default=list(models.KINDS), help="of models")
    parser.add_argument("--closed-s", type=float, default=30.0, help="of a closed loop [30]")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run at one rate [30]")
    parser.add_argument("--rounds", type=int, default=3, help="of each [3]")
    parser.add_argument("--shares", type=float, nargs="*", default=[AT], help="of the best whole model's rate")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the one worker [1]")
    parser.add_argument("--seed", type=int, default=0)


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    settings = {
        "threads": chosen.threads, "closed_s": chosen.closed_s, "seconds": chosen.seconds, "rounds": chosen.rounds,
        "in_flight": live.IN_FLIGHT, "largest": live.LARGEST, "lengths": live.LENGTHS,
    }  # fmt: skip
    figures: Data = {"settings": settings, "kinds": {}}
    for kind in chosen.kinds:
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            weights, served, requests = (Path(folder, name) for name in ("weights", "models", "requests"))
            for made in (served, requests):
                made.mkdir()
            models.save_weights(weights, kind)
            names = live.write_models(served, weights, kind)
            paths = live.write_requests(requests, chosen.seed)
            with live.serve(served, chosen.threads) as server:
                run.say(f"{kind}: ready after {server.wait_ready(limit_s=live.LOADING_S):.0f} s")
                figures["kinds"][kind] = in_loop(live.measure(server, names, paths, chosen, run.say))
        run.keep(figures)
    return figures


#: Times the rows a second of the best whole batch; of one at a time; of its p50, whole texts and first pieces.
FASTER, THAN_ALONE, P50, FIRST = 2.0, 5.0, 0.65, 0.3
AT = 0.7  # share of that peak


def ratios(found: Data) -> tuple[float, float]:
    """Rows a second over those of the best whole model and of one at a time."""
    rates = {name: median(values) for name, values in found["rates"].items()}
    return rates[live.CELLS] / rates[found["best"]], rates[live.CELLS] / rates[found["alone"]]


def medians(found: Data) -> dict[str, float]:
    """By what is measured (`steps`, `first`): its p50 over that of whole texts of the best model, at `AT`."""
    load: Data = next((load for load in found["loads"] if load["share"] == AT), {})
    return {name: load[name]["p50_ms"] / load["whole"]["p50_ms"] for name in ("steps", "first") if name in load}


def missed(data: Data) -> list[str]:
    lines = []
    for kind, found in data["kinds"].items():
        faster, than_alone = ratios(found)
        if faster < FASTER:
            lines.append(f"{kind}: {faster:.2f} x the rows a second of {found['best']}, target {FASTER:g}")
        if than_alone < THAN_ALONE:
            lines.append(f"{kind}: {than_alone:.2f} x the rows a second of one at a time, target {THAN_ALONE:g}")
        shares, where = medians(found), f"of {found['best']} at {AT:g} of its peak"
        if (share := shares.get("steps", 0.0)) > P50:
            lines.append(f"{kind}: p50 {share:.2f} x that {where}, target {P50:g}")
        if (share := shares.get("first", 0.0)) > FIRST:
            lines.append(f"{kind}: p50 to the first piece {share:.2f} x that {where}, target {FIRST:g}")
    return lines


PAGE = Page("writing", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.writing.writing", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
