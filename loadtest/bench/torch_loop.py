"""A loop of bare torch without a server: the rows per second that serving could reach at most.

`python -m loadtest.bench.torch_loop MODEL BATCH THREADS [DEVICE]` prints `{}` when it is warm. For each number of
seconds on stdin it runs that long and prints `{"rows": n, "seconds": s}`. It ends with its stdin.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.contract import ModelSource
from app.models.checks.samples import example_row
from app.models.loading import load
from app.process import keep_freed_memory
from loadtest import models as zoo

MAX_S = 120.0  # the longest that one loop may run


def main() -> None:
    name, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    device = torch.device(sys.argv[4] if len(sys.argv) > 4 else "cpu")
    torch.set_num_threads(threads)
    keep_freed_memory()  # as the server does
    # The server's own loader, so that it is the same model, in eval mode.
    model = load(ModelSource(name, 1, Path(zoo.__file__).parent / name))
    torch.manual_seed(0)
    rows = [several(torch.from_numpy(values), batch).to(device) for values in example_row(model.info.inputs).arrays]
    if isinstance(model.call, nn.Module):
        model.call.to(device)
    with torch.inference_mode():
        for _ in range(5):
            model.call(*rows)
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(model.call, rows, min(float(line), MAX_S))), flush=True)


def several(row: torch.Tensor, batch: int) -> torch.Tensor:
    """A batch of one input: random numbers where it has floats, else the row again and again."""
    return torch.randn(batch, *row.shape) if row.is_floating_point() else row.expand(batch, *row.shape).contiguous()


def measure(call: Callable[..., Any], rows: list[torch.Tensor], seconds: float) -> dict[str, float]:
    """Call the model again and again for `seconds`."""
    done = 0
    started_s = time.perf_counter()
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        call(*rows)
        if rows[0].is_cuda:
            torch.cuda.synchronize()  # a call has only launched its kernels
        done += len(rows[0])
    return {"rows": done, "seconds": elapsed_s}


if __name__ == "__main__":
    main()
