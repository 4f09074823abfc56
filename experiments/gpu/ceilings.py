"""What the card does at best: copies, matrix products; its clocks, its driver, the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import partial
from typing import Any

import torch

from experiments.gpu.blocks import Block
from experiments.gpu.card import HostCard, card_of, mean_ms
from loadtest.common import machine

_ASKED = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"


def measure(block: Block) -> None:
    card = card_of(block)
    stream = card.stream()
    megabytes, side = (4, 128) if block.quick else (4096, 8192)
    block.keep(
        card=card.name, python=platform.python_version(), torch=torch.__version__, cuda=torch.version.cuda or "none",
        cpu=machine.cpu_model(), cores=len(os.sched_getaffinity(0)),
    )  # fmt: skip
    _speeds(block, card, stream, megabytes, side)
    if block.cuda:  # now, because clocks are lower while nothing runs
        asked = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader", "--id=0"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
        block.keep(smi=dict(zip(_ASKED.split(","), said.split(", "), strict=False)))


def _speeds(block: Block, card: HostCard, stream: Any, megabytes: int, side: int) -> None:
    a = torch.randint(0, 255, (megabytes << 20,), dtype=torch.uint8, device=card.device)
    b, host = torch.empty_like(a), card.pinned(megabytes << 16)
    part = a[: megabytes << 16]
    card.sync()
    speeds = {}
    for name, nbytes, target, source in (
        ("device to device", 2 * a.nbytes, b, a),
        ("host to device", host.nbytes, part, host),
        ("device to host", host.nbytes, host, part),
    ):
        ms = mean_ms(card, stream, partial(target.copy_, source, non_blocking=True), 10)
        speeds[name] = round(nbytes / ms / 1e6, 1)
    block.keep(copies_gb_s=speeds)
    products = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        with card.on(stream):
            x, y = (torch.randn(side, side, device=card.device, dtype=dtype) for _ in range(2))
        product = partial(torch.matmul, x, y)
        ms = mean_ms(card, stream, product, 10)
        products[str(dtype)[6:]] = round(2 * side**3 / ms / 1e9, 1)
    block.keep(tflop_s=products)
