"""The process of one block: it imports torch, waits for its order on standard input, and measures.

It ends without cleaning up: tearing down a device that has failed may hang or crash, and the figures are stored.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

from app import process
from experiments.gpu.blocks import Block

#: What most blocks import, ahead of the order. It is slow, and must come after `process.prepare`.
_SLOW = ("experiments.gpu.policies", "experiments.gpu.over_http")
_LINES, _LINE = 80, 400


class _Kept(logging.Handler):
    """Keeps the engine's log with the figures: what ran without graphs, and what was measured."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = block

    def emit(self, record: logging.LogRecord) -> None:
        kept = self._block.found.setdefault("logged", [])
        line = f"{record.levelname}: {record.getMessage()}"[:_LINE]
        if len(kept) < _LINES and line not in kept:
            kept.append(line)


def main() -> None:
    process.prepare()
    for name in _SLOW:
        import_module(name)
    order = json.loads(sys.stdin.readline() or "null")
    if order is None:  # the run has ended
        return
    seconds = order["end"] - time.monotonic()
    block = Block(order["device"], order["quick"], seconds, Path(order["path"]))
    block.keep()
    logging.getLogger("starling").addHandler(_Kept(block))
    logging.getLogger("starling").setLevel(logging.INFO)
    try:
        _measure(block, order["module"])
    except BaseException as exc:
        traceback.print_exc()
        block.keep(failed=f"{type(exc).__name__}: {exc}"[:1000])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _measure(block: Block, module: str) -> None:
    import torch

    from app.engine.streams import cuda

    cuda.prepare()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    import_module(module).measure(block)
    block.keep()


if __name__ == "__main__":
    main()
