"""A loop of bare torch without a server: the rows per second that serving could reach at most.

`python -m loadtest.bench.torch_loop MODEL BATCH THREADS` prints `{}` when it is warm. For each number of seconds on
stdin it runs that long and prints `{"rows": n, "seconds": s}`. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from app.contract import ModelSource
from app.models import zoo
from app.models.loaders import load
from app.models.samples import example_row
from app.process import keep_freed_memory

MAX_S = 120.0  # the longest that one loop may run


def main() -> None:
    name, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the server does
    # The server's own loader, so that it is the same model, in eval mode.
    model = load(ModelSource(name, 1, Path(zoo.__file__).parent / name))
    torch.manual_seed(0)
    rows = [torch.randn(batch, *values.shape) for values in example_row(model.info.inputs).arrays]
    with torch.inference_mode():
        for _ in range(5):
            model.call(*rows)
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(model.call, rows, min(float(line), MAX_S))), flush=True)


def measure(call: Callable[..., Any], rows: list[torch.Tensor], seconds: float) -> dict[str, float]:
    """Call the model again and again for `seconds`."""
    done = 0
    started_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        call(*rows)
        done += len(rows[0])
    return {"rows": done, "seconds": elapsed_s}


if __name__ == "__main__":
    main()
