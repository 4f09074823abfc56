"""Batches of plain rows, as they run before a model serves."""

from __future__ import annotations

from collections.abc import Mapping

from app.engine.device import Device
from app.engine.executor import Executor
from app.engine.profiling.warmup import run_rows
from app.models.checks.samples import example_row


def try_batch(device: Device, executor: Executor, size: int, lengths: Mapping[str, int]) -> None:
    """Run a batch of plain rows of these lengths."""
    run_rows(device, executor, [example_row(executor.model.info.client_inputs, lengths)] * size, size)
