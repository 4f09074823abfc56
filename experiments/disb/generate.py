"""Writes the workloads of DISB into experiments/disb/workloads: `python -m experiments.disb.generate`.

A to E are those of REEF's Table 2, 60 s each; B-repository is B as DISB's repository has it, both clients in a closed
loop. REAL is not the recorded Apollo trace but one drawn from a seed to match its figures: by client the number of
requests, the mean gap and its coefficient of variation, and that one client sends bursts of four.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "workloads"
MODELS = ("resnet152", "densenet201", "vgg19", "inceptionv3", "distilbert")
SEED = 2022
TIME_S = 60
REAL_S = 38  # as recorded; the last instants lie beyond it and are never launched

Json = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """What is known of one client of the Apollo trace. `burst`: requests at a time, `burst_ms` from first to last."""

    model: str
    requests: int
    gap_ms: float
    cv: float
    burst: int = 1
    burst_ms: float = 0.0


APOLLO = (
    Client("resnet152", 375, 104, 0.12),
    Client("densenet201", 202, 193, 0.22),
    Client("vgg19", 560, 52, 1.59, burst=4, burst_ms=15),
    Client("inceptionv3", 374, 104, 0.23),
    Client("distilbert", 173, 224, 0.39),
)


def instants(client: Client, random: np.random.Generator) -> list[int]:
    """Milliseconds with the client's mean gap and coefficient of variation, exact but for rounding."""
    count = client.requests - 1
    gaps = np.zeros(count)
    within = np.arange(1, client.requests) % client.burst != 0
    if client.burst > 1:
        gaps[within] = client.burst_ms / (client.burst - 1)
    between = count - int(within.sum())
    # the gaps between bursts take what is left of the whole time and of the whole variance
    mean = (count * client.gap_ms - gaps.sum()) / between
    variance = count * (client.cv * client.gap_ms) ** 2 - ((gaps[within] - client.gap_ms) ** 2).sum()
    deviation = float(np.sqrt(variance / between - (mean - client.gap_ms) ** 2))
    gaps[~within] = _standard(random.gamma((mean / deviation) ** 2, size=between)) * deviation + mean
    first = random.uniform(0, client.gap_ms)
    return [int(instant) for instant in np.rint(np.r_[first, first + gaps.cumsum()])]


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = (values - values.mean()) / values.std()
    return scaled


def task(model: str, klass: str, load: Json) -> Json:
    short = {"realtime": "rt", "best_effort": "be"}[klass]
    client = {"model_name": model, "batch_size": 1, "class": klass}
    return {"id": f"{model}_{short}", "load": load, "client": client}


def realtime(model: str, kind: str, frequency: float) -> Json:
    load = {"type": kind, "frequency": frequency}
    return task(model, "realtime", load | {"priority": 0} if kind == "periodic" else load)


def workloads() -> dict[str, Json]:
    """By name, what is written."""
    closed = {"type": "continuous"}
    resnet = [task("resnet152", "best_effort", closed)]
    all_five = [task(model, "best_effort", closed) for model in MODELS]
    random = np.random.default_rng(SEED)
    apollo = [task(client.model, "realtime", {"type": "trace", "trace": instants(client, random)}) for client in APOLLO]
    tasks = {
        "A": [realtime("vgg19", "periodic", 100), *resnet],
        "B": [realtime("vgg19", "periodic", 220), *resnet],
        "B-repository": [task("vgg19", "realtime", closed), *resnet],
        "C": [realtime("vgg19", "periodic", 100), *all_five],
        "D": [*(realtime(model, "periodic", 20) for model in MODELS), *all_five],
        "E": [*(realtime(model, "poisson", 20) for model in MODELS), *all_five],
        "REAL": [*apollo, *all_five],
    }
    return {name: {"time": REAL_S if name == "REAL" else TIME_S, "tasks": found} for name, found in tasks.items()}


def text(workload: Json) -> str:
    """JSON with a line for each task."""
    lines = ",\n".join("  " + json.dumps(one) for one in workload["tasks"])
    return f'{{"time": {workload["time"]}, "tasks": [\n{lines}\n]}}\n'


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for name, workload in workloads().items():
        (FOLDER / f"{name}.json").write_text(text(workload), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
