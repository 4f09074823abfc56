"""The bare torch loop: a shipped model, one batch, no server. What there is to reach in rows per second.

`python -m loadtest.bench.torch_loop MODEL BATCH THREADS`: says `{}` when warm; for each line on stdin, a number of
seconds, it runs for so long and says `{"rows": n, "seconds": s}`. Ends with its stdin.
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

MAX_S = 120.0  # a loop ends by itself, whatever it is told


def main() -> None:
    name, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the server does
    # The server's own loader: the very model that is served, in eval mode.
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
    """Call over and over for `seconds`."""
    done = 0
    started_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        call(*rows)
        done += len(rows[0])
    return {"rows": done, "seconds": elapsed_s}


if __name__ == "__main__":
    main()
