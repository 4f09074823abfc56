"""Calls a model as a device would: under inference_mode, on other threads than the main one; and compares what is made
of a model, as its stages, with the model as it was.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from app.contract import Array, Model, SampleRow
from app.errors import ConfigError
from app.models.base import copied, one_line, returned
from app.models.checks.row_check import Comparison, Run, by_row, tolerance_of
from app.models.checks.samples import keywords, longest, rows_of, stack

log = logging.getLogger("starling.models")

_T = TypeVar("_T")


def call_directly(model: Model) -> Run:
    """A `Run` that calls the model as it was loaded, on this thread."""
    info = model.info

    def run(rows: Sequence[SampleRow], size: int) -> list[Array]:
        # As on a device: one row is read where it was written, rows of a batch are gathered, as inference tensors.
        with torch.inference_mode(size > 1):
            arguments = stack(info.inputs, rows, size)
        with torch.inference_mode(), only_exceptions():
            result = model.call(*arguments, **keywords(model, rows, size))
        values = returned(result, info.returned, size, longest(rows))
        return [copied(value, spec, size) for spec, value in zip(info.outputs, values, strict=False)]

    return run


def compare_with_whole(
    model: Model, parts: Model, what: str, sizes: Sequence[int], spans: Sequence[Mapping[str, int]], hint: str = ""
) -> None:
    """Raise ConfigError, with this hint, unless the parts of a model (`what`: "stages") answer as it does, in batches
    of these sizes and lengths.

    A model that raises is not compared, and a warning is logged.
    """
    info, tolerance = model.info, tolerance_of(model)
    for lengths in spans if spans[0] != spans[-1] else spans[:1]:
        for size in sizes:
            rows = (rows_of(model, lengths) * size)[:size]
            drawn = torch.get_rng_state()
            try:
                expected = call_directly(model)(rows, size)
            except Exception as error:
                text = "model %s: its %s are not compared with the whole, which raises: %s"
                log.warning(text, info.name, what, one_line(error))
                return
            how = f"in {what}, in a batch of {size} rows" + f" of lengths {dict(lengths)}" * bool(lengths)
            torch.set_rng_state(drawn)  # of a model that samples, the row check decides
            try:
                got = call_directly(parts)(rows, size)
            except Exception as error:
                raise ConfigError(f"expected {what} that run, got {one_line(error)} {how}") from error
            compare = Comparison(info.outputs, tolerance, by_row(info.outputs, expected, rows), "whole")
            wrong = compare.difference(range(size), by_row(info.outputs, got, rows), [how] * size)
            if wrong is not None:
                raise ConfigError(f"expected {what} that answer as the whole does, got {wrong}{hint}")


def on_thread(name: str, function: Callable[..., _T], *args: Any) -> _T:
    """Call a function on a new thread of this name, and wait for it. Raises what it raises."""
    made: Future[_T] = Future()

    def run(made: Future[_T]) -> None:
        try:
            made.set_result(function(*args))
        except BaseException as error:
            made.set_exception(error)
        del made  # here and below, else an error would form a cycle with its frames

    # a daemon: a model that hangs must not keep a process that has been told to end
    threading.Thread(target=run, args=[made], name=name, daemon=True).start()
    try:
        return made.result()
    finally:
        del made


@contextmanager
def only_exceptions() -> Iterator[None]:
    """Turn what is no Exception into RuntimeError: `sys.exit`, a cancelled task or a panic of a library in Rust in a
    model's code must end neither the process nor a task of the server's.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(one_line(error)) from error
