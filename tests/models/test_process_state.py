"""Invariant: what a model's code sets for the whole process is put back, and a warning names the model."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import random
import sys
import threading

import numpy as np
import pytest
import torch

from app.engine.cpu.device import CpuDevice
from app.engine.executor import Job, Stop
from app.engine.profiling.warmup import warm_up
from app.models.checks.calling import on_thread
from app.models.loading import load
from app.models.process_state import OF_BATCHES, SETTINGS, ProcessState, uncollected

from .folders import TOML, source_of, write_model

IMPORTS = """
import gc, locale, logging.config, multiprocessing, os, random, socket, sys, warnings
import numpy as np
import torch
"""
CALL = "def build():\n    def call(x):\n        {}\n        return {}\n    return call\n"
OTHER = logging.getLogger("a.library")  # which dictConfig turns off, like all
UVICORNS = logging.getLogger("uvicorn.error")  # of malformed requests; there may be no "uvicorn" before a loop names it
LEVELS = "the levels of the server's log to {"
CHANGES = {
    "torch.set_default_dtype(torch.float64)": "torch's default dtype to torch.float64",
    "torch.set_default_device('meta')": "torch's default device to meta",
    "torch.set_num_threads(3)": "torch's number of threads to 3",
    "torch.set_grad_enabled(not torch.is_grad_enabled())": "torch's gradient mode to ",
    "torch.use_deterministic_algorithms(True)": "torch's deterministic mode to 2",
    "torch.set_float32_matmul_precision('medium')": "torch's precision of products to medium",
    "np.seterr(all='raise')": "numpy's handling of errors to {'divide': 'raise'",
    "os.chdir('/')": "the working folder to /",
    "locale.setlocale(locale.LC_ALL, 'C.UTF-8' if 'UTF' not in locale.setlocale(locale.LC_ALL) else 'C')": "the locale",
    "sys.setrecursionlimit(4321)": "the recursion limit to 4321",
    "warnings.simplefilter('error', ImportWarning)": "warnings that are errors to ",
    "logging.disable(logging.DEBUG)": "the level of logging.disable to 10",
    "logging.basicConfig(force=True)": "the handlers of the log to [<StreamHandler",
    "logging.getLogger().handlers[0].setFormatter(None)": "the handlers of the log to [",
    "logging.getLogger().handlers[0].setLevel(50)": "the handlers of the log to [",
    "logging.config.dictConfig({'version': 1})": LEVELS,
    "[logging.getLogger(name).setLevel(40) for name in logging.root.manager.loggerDict]": LEVELS,
    "[vars(logging.getLogger(name)).update(propagate=False) for name in logging.root.manager.loggerDict]": LEVELS,
    "logging.getLogger().setLevel(5)": "the level of the log to 5",
    "torch.set_autocast_enabled('cpu', True)": "torch's autocast to True",
    "gc.disable()": "the garbage collection to False",
    "sys.setswitchinterval(0.5)": "the interval between threads to 0.5",
    "socket.setdefaulttimeout(7)": "the timeout of sockets to 7",
    "multiprocessing.set_start_method('spawn')": "the start method of processes to spawn",
}
SEEDS = {
    "torch.manual_seed(7)": "torch's seed to 7",
    "np.random.seed(7)": "numpy's seed to the same",
    "random.seed(7)": "random's seed to the same",
}


@pytest.fixture(autouse=True)
def _as_before():
    with torch.inference_mode(False):
        state = ProcessState(SETTINGS)
        yield
        changed = state.put_back(always=True)
    assert changed == []


def write(tmp_path, code):
    return source_of(write_model(tmp_path / "bad", TOML + "[batching]\nmax_batch = 2\n", IMPORTS + code), "bad")


def opened(tmp_path, code):
    """A device, and its executor of this model."""
    device = CpuDevice((2,), 1, 1)
    return device, device.open(load(write(tmp_path, code)), 8)


@pytest.mark.parametrize(("change", "said"), CHANGES.items(), ids=CHANGES)
@pytest.mark.parametrize("code", ["{}\ndef build():\n    return abs\n", "def build():\n    {}\n    return abs\n"])
def test_what_a_load_sets_is_put_back(tmp_path, caplog, change, said, code):
    load(write(tmp_path, code.format(change)))
    assert f"source 'model.py:build' set {said}" in caplog.text
    assert "put back; where its calls need it, set it there, and for that long; a level of the log, for its own " in (
        caplog.text
    )
    assert not OTHER.disabled
    assert UVICORNS.propagate
    assert UVICORNS.isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(("change", "said"), (CHANGES | SEEDS).items(), ids=CHANGES | SEEDS)
def test_what_a_batch_sets_is_put_back_after_each(tmp_path, caplog, change, said):
    device, executor = on_thread("warm-up", opened, tmp_path, CALL.format(change, "x"))
    before = ProcessState(OF_BATCHES)
    on_thread("warm-up", warm_up, device, executor)
    assert f"model bad: a batch set {said}" in caplog.text
    assert caplog.text.count("a batch set") == 1
    assert [setting.name for setting in executor.unruly] == [said.partition(" to ")[0]]
    drawn = random.getstate(), np.random.get_state()[1].tolist()
    on_thread("worker-0", run_one, executor)
    assert before.put_back() == []
    assert (random.getstate(), np.random.get_state()[1].tolist()) == drawn


def test_a_model_that_seeds_torch_when_it_is_built_is_not_taken_for_a_batch_that_ran_meanwhile(tmp_path):
    before = ProcessState(OF_BATCHES)
    load(write(tmp_path, "def build():\n    torch.manual_seed(7)\n    return abs\n"))
    assert before.put_back() == []
    before = ProcessState(OF_BATCHES)
    torch.manual_seed(8)
    assert [(setting.name, now.seed) for setting, now in before.put_back()] == [("torch's seed", 8)]


def run_one(executor):
    with torch.inference_mode():
        state = ProcessState()
        job = Job(1, executor, [0], 1)
        assert executor.report_next(job, executor.run(job, Stop())).cause is None
        assert state.put_back() == []


def test_what_torchs_compiler_sets_is_no_models_doing(tmp_path, caplog):
    before = sys.getrecursionlimit()
    try:
        sets = "sys.setrecursionlimit(2000)"
        device, executor = opened(tmp_path, f"{sets}\n{CALL.format(sets, 'x')}")
        warm_up(device, executor)
    finally:
        sys.setrecursionlimit(before)
    assert executor.unruly == ()
    assert "set the recursion limit" not in caplog.text


def test_the_start_method_of_processes_can_be_set_by_each_load(tmp_path, caplog):
    load(write(tmp_path, "multiprocessing.Lock()\ndef build():\n    return abs\n"))
    assert "set" not in caplog.text
    for _ in range(2):
        load(write(tmp_path, "multiprocessing.set_start_method('spawn')\ndef build():\n    return abs\n"))


def test_the_start_method_that_was_set_before_is_put_back():
    multiprocessing.set_start_method("spawn", force=True)
    try:
        state = ProcessState()
        multiprocessing.set_start_method("forkserver", force=True)
        state.put_back()
        assert multiprocessing.get_start_method() == "spawn"
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_a_pause_of_the_collector_is_no_models_doing() -> None:
    """A capture pauses it, while other models are built and batches fail: it would be enabled then, or never again."""
    before = ProcessState()
    with uncollected():
        amid = ProcessState()
        assert (before.put_back(always=True), gc.isenabled()) == ([], False)
    assert (amid.put_back(always=True), gc.isenabled()) == ([], True)


def test_drawing_numbers_is_no_seeding(tmp_path, caplog):
    drawn = "x + 0 * (random.random() + np.random.rand() + torch.rand(1))"
    device, executor = opened(tmp_path, CALL.format("pass", drawn))
    warm_up(device, executor)
    assert executor.unruly == ()
    assert "set" not in caplog.text


def test_what_made_a_batch_fail_is_put_back(tmp_path, caplog):
    """Its model need not be the one that has set it: `bad` sets it for some rows alone."""
    device, executor = opened(tmp_path, CALL.format("assert torch.get_default_dtype() is torch.float32", "x"))
    reported, threads = [], torch.get_num_threads()
    come = threading.Semaphore(0)
    device.start(lambda completion: (reported.append(completion), come.release()))
    try:
        for unit in (1, 2, 3):
            if unit == 2:
                torch.set_default_dtype(torch.float64)
            device.push(0, Job(unit, executor, [0], 1), Stop())
            come.acquire()
    finally:
        torch.set_default_dtype(torch.float32)
        device.close(5)
        torch.set_num_threads(threads)
    assert [one.cause is None for one in reported] == [True, False, True]
    assert "a batch of model bad failed while a model's code had set torch's default dtype" in caplog.text
