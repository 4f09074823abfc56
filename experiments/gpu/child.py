"""The process of one block: it imports torch, waits for its order on standard input, and measures.

It ends without cleaning up: tearing down a device that has failed may hang or crash, and the figures are stored.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from app import process
from app.engine.streams import cuda

process.prepare()
cuda.prepare()

import torch

from experiments.gpu.blocks import BY_NAME, Block


def main() -> None:
    order = json.loads(sys.stdin.readline() or "null")
    if order is None:  # the run has ended
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    block = Block(order["device"], order["quick"], order["seconds"], Path(order["path"]))
    block.keep()
    try:
        import_module(BY_NAME[order["name"]].module).measure(block)
        block.keep()
    except BaseException as exc:
        traceback.print_exc()
        block.keep(failed=f"{type(exc).__name__}: {exc}"[:1000])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
