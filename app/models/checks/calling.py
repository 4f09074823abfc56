"""Calls a model as a device would: under inference_mode, on other threads than the main one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from app.contract import Array, Model, SampleRow
from app.models.base import copied, one_line, returned
from app.models.checks.row_check import Run
from app.models.checks.samples import keywords, longest, stack

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
