"""Measures how steady this machine is: `python -m experiments.policies.drift` runs one row of `mlp` back to back.

There is no server. It prints the median time of each second, then the least and the greatest of these.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

import torch

from app.models.loading import load
from app.models.repository import Repository


def seconds(model: str, rows: int, count: int) -> list[float]:
    """Median milliseconds of a batch of ones, for each of `count` seconds."""
    (source,) = Repository("bench").sources(model)
    loaded = load(source)
    inputs = [torch.ones(rows, *spec.bounds) for spec in loaded.info.inputs]
    medians: list[float] = []
    with torch.inference_mode():
        for _ in range(count):
            times: list[float] = []
            begin = time.perf_counter()
            while time.perf_counter() - begin < 1:
                at = time.perf_counter()
                loaded.call(*inputs)
                times.append((time.perf_counter() - at) * 1e3)
            medians.append(median(times))
    return medians


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.policies.drift", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="[30]")
    parser.add_argument("--rows", type=int, default=1, help="in the batch [1]")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = seconds("mlp", chosen.rows, chosen.seconds)
    print(" ".join(f"{one:.2f}" for one in found))
    print(f"medians of a second: {min(found):.2f} to {max(found):.2f} ms, x {max(found) / min(found):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
