"""The effect of keeping freed memory: `python -m experiments.costs.heap` profiles `cnn` with and without it in turns.

An empty GLIBC_TUNABLES makes the server leave glibc's defaults alone; that is "without".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from statistics import median

from app.scheduler.estimates.profile import parse
from loadtest.common.paths import ROOT
from loadtest.common.servers import clean_environment

MODEL = f"cnn={ROOT / 'loadtest' / 'bench' / 'models' / 'cnn'}"
KINDS = {"kept": {}, "without": {"GLIBC_TUNABLES": ""}}


def rows_per_s(kind: str, max_batch: int, budget_s: float) -> float:
    """Rows per second of the best batch size. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "app", "profile", "cnn", "--model", MODEL, "--max-batch", str(max_batch),
             "--threads", "1", "--no-suggest", "--budget-s", str(budget_s), "--profile-dir", folder, "--json"],
            check=True, capture_output=True, text=True, env=clean_environment() | KINDS[kind], cwd=ROOT,
        )  # fmt: skip
    return parse(json.loads(ran.stdout)).peak


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs.heap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of a profile [5]")
    chosen = parser.parse_args(arguments)
    for max_batch in (1, 8):
        found: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for index in range(chosen.rounds):
            for kind in list(KINDS)[:: 1 if index % 2 else -1]:
                found[kind].append(rows_per_s(kind, max_batch, chosen.budget))
        for kind, values in found.items():
            spread = f"{min(values):.1f} to {max(values):.1f}"
            print(f"max_batch {max_batch}, {kind}: {median(values):.1f} rows/s ({spread})")
    return 0


if __name__ == "__main__":
    os.environ.pop("GLIBC_TUNABLES", None)
    sys.exit(main(sys.argv[1:]))
