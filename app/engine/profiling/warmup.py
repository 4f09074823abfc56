"""Warm-up: before a model serves, each batch size runs once on its device. The times are the first profile."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from time import perf_counter_ns

import torch

from app.contract import SampleRow
from app.engine.device import Device
from app.engine.executor import Executor, Ran
from app.engine.pool import Pool, Slots
from app.engine.profiling.profiled_model import first_profile, guess
from app.errors import ConfigError
from app.models.checks.calling import only_exceptions
from app.models.checks.row_check import Run
from app.models.checks.samples import full_lengths, longest, short_lengths, stretched
from app.models.checks.trial import fit_row, try_full_length
from app.models.compiled import batches_of_size_one
from app.models.process_state import OF_BATCHES, ProcessState, named
from app.scheduler.estimates.evidence import WARM_UP, Evidence, Point, UnitTime
from app.scheduler.estimates.profile import Profile

log = logging.getLogger("starling.engine")


_BUDGET_NS = 10_000_000_000  # after it only powers of two run, and the times between are interpolated


def warm_up(device: Device, executor: Executor) -> tuple[Profile, tuple[SampleRow, ...]]:
    """Run every batch size once and check the outputs. Returns the times, and the rows that were run. Slow.

    Uses the first slots: only for a pool without calls. Raises ConfigError when the model does not return what
    it declares, raises at some sizes only or on a sample; Unfit when it raises on made-up rows at any size.
    """
    model = executor.model
    inputs, max_batch = model.info.client_inputs, model.info.batching.max_batch
    run = run_on(device, executor)
    begin = perf_counter_ns()
    row = fit_row(model, run)  # its first batches pay for first use, so that the times do not
    warning = try_full_length(model, row, run)
    if warning is not None:
        log.warning("model %s: %s", model.info.name, warning)
    for short, size in batches_of_size_one(model, row):
        with suppress(Exception):  # the model may not take rows so short
            run([short], size)
    rows = model.checks.samples or (row,)
    evidence = Evidence(guess(max_batch))
    for size in range(1, max_batch + 1):
        over = perf_counter_ns() - begin > _BUDGET_NS
        if not over or size == max_batch or size & (size - 1) == 0:
            ran = _run(device, executor, rows, size)
            evidence.add(Point(1, size), UnitTime(ran.busy_ns, ran.by_stage_ns), WARM_UP)
    full = full_lengths(inputs)
    if full != row.lengths and warning is None and executor.keeps_memory:
        # else the first such batch would wait for memory
        _run(device, executor, [stretched(inputs, row, full)], max_batch)
    log.debug("model %s: warmed up in %.2f s", model.info.name, (perf_counter_ns() - begin) / 1e9)
    return first_profile(executor, evidence.profile(), longest(rows)), tuple(rows)


def run_on(device: Device, executor: Executor) -> Run:
    """A `Run` on the placed model, for a pool without calls."""
    return lambda rows, size: run_rows(device, executor, rows, size).outputs


def run_rows(device: Device, executor: Executor, rows: Sequence[SampleRow], size: int) -> Ran:
    """Write the rows into the first slots, run them as a batch of `size`. Blocks.

    Raises what the model raises, and ConfigError when it does not return what it declares.
    """
    slots = range(len(rows))
    write_rows(executor.pool, slots, rows)
    # as on a worker, which stays in this mode: its end would put back what a batch sets of the thread
    with torch.inference_mode(), only_exceptions(), _as_before(executor):
        return device.trial(executor, slots, size)


@contextmanager
def _as_before(executor: Executor) -> Iterator[None]:
    """Put back settings that a batch changes, because all models of the process share them, now and when it serves."""
    state = ProcessState.unless_one_builds(OF_BATCHES)
    executor.seeds.begin()
    try:
        yield
    finally:
        changed = [*(() if state is None else state.put_back()), *executor.seeds.end()]
        new = [(setting, value) for setting, value in changed if setting not in executor.unruly]
        if new:
            executor.unruly = (*executor.unruly, *(setting for setting, _ in new))
            log.warning(
                "model %s: a batch set %s, which every model of the server would have: it is put back after each",
                executor.model.info.name, named(new),
            )  # fmt: skip


def lay_out(executor: Executor, slots: Slots, rows: Sequence[SampleRow], length: int) -> None:
    """Write rows of this length into the slots; 0: their own length. Not for the event loop."""
    inputs = executor.model.info.client_inputs
    if length:
        rows = [stretched(inputs, row, short_lengths(inputs, length)) for row in rows]
    write_rows(executor.pool, slots, rows)


def write_rows(pool: Pool, slots: Slots, rows: Sequence[SampleRow]) -> None:
    """Write the rows into the slots, again from the first if there are more slots. Not for the event loop."""
    for slot, row in zip(slots, cycle(rows), strict=False):
        pool.set_lengths((slot,), row.lengths)
        pool.parameters[slot] = row.parameters
        for index, values in enumerate(row.arrays):
            pool.write(range(slot, slot + 1), index, values[None])


def _run(device: Device, executor: Executor, rows: Sequence[SampleRow], size: int) -> Ran:
    """Run a batch of these rows."""
    try:
        return run_rows(device, executor, list(islice(cycle(rows), size)), size)
    except ConfigError:
        raise
    except Exception as exc:
        raise ConfigError(f"a batch of {size} rows: {type(exc).__name__}: {exc}") from exc
