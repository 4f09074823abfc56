"""Recurrent models by their cell against the same weights served whole: `python -m experiments.cells.cells`.

Live: the model `lstm`, Poisson arrivals, sentences of WMT-like lengths and of 20 tokens each. By its cell rows join and
leave between steps. Whole, it is served packed, and padded with length buckets of the best of several widths. Writes
docs/bench/cells.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from experiments.cells import cells_live
from experiments.cells.cells_live import CELLS
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.generator.run import in_loop

SHARES = (0.2, 0.3, 0.5, 0.7, 0.8, 0.95, 1.1)  # of the peak of the better baseline


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="of a run at one rate [3]")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each model at each rate [2]")
    parser.add_argument("--try-s", type=float, default=6.0, help="of each rate tried for a peak [6]")
    parser.add_argument("--closed-s", type=float, default=3.0, help="of a closed loop [3]")
    parser.add_argument("--rounds", type=int, default=2, help="of closed loops [2]")
    parser.add_argument("--p99-ms", type=float, default=1000.0, help="bound of the 99th percentile at the peak [1000]")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES), help="of the baseline's peak")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the one worker [1]")
    parser.add_argument("--policy", default="late", help="of the model by its cell [late]")
    parser.add_argument("--whole-policy", default="no_wait", help="of the models served whole [no_wait]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    data: Data = {
        "settings": {
            "policy": chosen.policy, "whole_policy": chosen.whole_policy, "threads": chosen.threads,
            "seconds": chosen.seconds, "repeats": chosen.repeats, "try_s": chosen.try_s, "p99_ms": chosen.p99_ms,
            "largest": cells_live.LARGEST, "widths": list(cells_live.WIDTHS), "bodies": cells_live.BODIES,
            "in_flight": cells_live.IN_FLIGHT,
        },
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        models, requests = Path(folder, "models"), Path(folder, "requests")
        models.mkdir()
        requests.mkdir()
        cells_live.write_models(models, chosen.policy, chosen.whole_policy)
        paths = {name: requests / f"{number}.json" for number, name in enumerate(cells_live.DATASETS)}
        rows = {name: cells_live.write_requests(paths[name], cells_live.DATASETS[name], chosen.seed) for name in paths}
        with cells_live.serve(models, chosen.threads) as server:
            run.say(f"ready after {server.wait_ready():.0f} s")
            names = sorted(path.name for path in models.iterdir() if not path.name.startswith("."))
            data["worst"] = max(cells_live.check_answers(server, names, some) for some in rows.values())
            data["datasets"] = in_loop(cells_live.datasets(server, paths, chosen, run.say))
    return data


PEAK = 1.10  # of the better baseline's, with lengths that differ
P50_VARIED, AT = 0.65, 0.7  # of the best baseline's at this share of its peak
P50_ALIKE, FROM, TO = 0.80, 0.3, 0.8  # with one length, at these shares


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %"


def varied(found: Data) -> bool:
    """Whether rows differ in length."""
    return len(found["whole"]) > 1


def peak_ratio(found: Data) -> float:
    """The peak by cells over that of the better baseline."""
    return float(found["peaks"][CELLS] / max(found["peaks"][model] for model in found["whole"]))


def over_best(found: Data, load: Data, figure: str) -> float:
    """Latency by cells over that of the best baseline."""
    return float(load[CELLS][figure] / min(load[model][figure] for model in found["whole"]))


def missed(data: Data) -> list[str]:
    return [line for found in data["datasets"] for line in _missed_live(found)]


def _missed_live(found: Data) -> list[str]:
    name, lines = found["dataset"], []
    if varied(found) and peak_ratio(found) < PEAK:
        lines.append(f"{name}: peak {percent(peak_ratio(found) - 1)}, target {percent(PEAK - 1)}")
    for load in found["loads"]:
        share, ratio = load["share"], over_best(found, load, "p50_ms")
        target = P50_VARIED if varied(found) else P50_ALIKE
        judged = share == AT if varied(found) else FROM <= share <= TO
        if judged and ratio > target:
            lines.append(f"{name}, {share:g} of the peak: p50 {ratio:.2f} x, target {target}")
    return lines


def shown(model: str) -> str:
    """A model's name for people: `padded40` is padded, in buckets of 40."""
    width = model.removeprefix("padded")
    return f"padded, width {width}" if width != model else model


PAGE = Page("cells", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.cells.cells", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
