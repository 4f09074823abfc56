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

from app.bench.run import in_loop
from experiments.writing import live, models
from experiments.writing.page import AT, PAGE
from loadtest.common.experiment import Experiment, Run
from loadtest.common.page import Data


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


EXPERIMENT = Experiment(PAGE, "experiments.writing.writing", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
