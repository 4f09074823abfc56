"""Invariant: no model serves whose rows depend on their batch, unless told so; one that raises on made-up rows does."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
import torch
from fakes import MS, FakeDevice, Fate, virtual, virtual_loop

from app.contract import SampleRow
from app.engine.profiling import tables
from app.errors import ConfigError
from app.scheduler.types import Fault

from ..rig import Rig, answers, make_model, rows_of, serving, tensor
from .test_idle import BUDGET, measured, origins, settled

SEQUENCE = tensor("x", "FP32", ("tokens", 40), 2)
IDS = tensor("ids", "INT64", ("tokens", 40))
SCORE = tensor("y", "FP32", 2)


def mean(x: torch.Tensor) -> torch.Tensor:
    """Over padding too."""
    return x.mean(1)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@virtual
async def test_rows_that_depend_on_their_batch_are_refused():
    async with serving() as rig:
        for call, inputs, message in (
            (
                lambda x: x.softmax(0),
                None,
                "a row's answer depends on the other rows of its batch: output 'y'",
            ),
            (mean, [SEQUENCE], r"depends on how far it is padded: .* padded to length 16 \(axis 'tokens', its own"),
        ):
            model = make_model(call, *([inputs] if inputs else []), name="bad", row_check="refuse", max_batch=4)
            with pytest.raises(ConfigError, match=message):
                await rig.engine.start(model)
        assert [gauges.stats.model for gauges in rig.engine.snapshot().models] == ["m"]
        assert len(rig.device.freed) == 2
        await rig.engine.start(make_model(name="good", row_check="refuse"))


@virtual
async def test_warn_and_off(caplog: pytest.LogCaptureFixture):
    async with serving(make_model(mean, [SEQUENCE], row_check="warn", max_batch=4)):
        (warning,) = warnings_of(caplog)
        assert warning.startswith("model m: a row's answer depends on how far it is padded: output 'y': ")
    caplog.clear()
    async with serving(make_model(mean, [SEQUENCE], row_check="off", max_batch=4)):
        assert warnings_of(caplog) == []


@virtual
async def test_samples_are_what_is_measured_with():
    seen: set[float] = set()

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.update(x[:, 0].tolist())
        return x * 2 + 1

    rows = [SampleRow((np.full(2, value, np.float32),)) for value in (7, 8, 9)]
    async with serving(make_model(call, samples=rows, row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await settled(rig)
        assert origins(rig) == ["measured"]
        assert rig.served.example is rows[0]
    assert seen == {7, 8, 9}


# models that raise on made-up rows


class Picky:
    """y = 2 x + 1, but only for values from 10 on. `across`: and what it answers depends on its batch."""

    def __init__(self, across: bool = False) -> None:
        self.across = across

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if (x < 10).any():
            raise ValueError("too small")
        return x * 2 + 1 + (x.sum() - x[0].sum() if self.across else 0)


async def ask_each(rig: Rig, *values: float) -> None:
    for value in values:
        assert np.array_equal((await rig.ask(value)).outputs[0], answers(rows_of(value)))


@virtual
async def test_it_serves_and_the_log_says_what_is_missing(caplog: pytest.LogCaptureFixture):
    async with serving(make_model(Picky(), row_check="refuse")) as rig:
        (warning,) = warnings_of(caplog)
        assert warning.startswith("model m: it raises on made-up rows: ValueError: too small; it serves, but with ")
        assert 'give real rows: [warmup] file = "sample.json" in model.toml' in warning
        await ask_each(rig, 10, 11, 12, 13, 14, 15)
        assert origins(rig) == ["guess"]
        assert rig.served.statistics()["starling"]["batch_scale"] == pytest.approx(1, abs=0.1)
        rig.assert_settled()


@virtual
async def test_it_is_measured_and_checked_with_the_first_rows_that_come(caplog: pytest.LogCaptureFixture):
    async with serving(make_model(Picky(), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        assert "until real rows have come" in warnings_of(caplog)[0]
        rig.engine.profiling.begin()
        await ask_each(rig, 10, 11, 10, 10, 12)
        await rig.loop.passes(1000 * MS)
        assert (origins(rig), measured(rig)) == (["guess"], [])  # four that differ are waited for
        await ask_each(rig, 13)
        await settled(rig)
        assert origins(rig) == ["measured"]
        assert rig.served.statistics()["starling"]["batch_ms"]["4"] == 1.4
        assert len(warnings_of(caplog)) == 1
        assert rig.served.profiled.on_rows is None
        assert (len(rig.served.profiled.rows), rig.served.example) == (4, None)  # rows of callers are shown to nobody
        await ask_each(rig, 14)
        rig.assert_settled()


@virtual
async def test_under_steady_traffic_its_tables_are_solved_from_live_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "solve_aside", tables.control.solve)  # no process of its own
    model = make_model(Picky(), policy="adaptive")
    async with serving(model, device=FakeDevice(virtual_loop(), 4, batch_ns=lambda size: 120 * MS)) as rig:
        for turn in range(600):  # never idle for as long as measuring asks for
            await asyncio.gather(*(rig.ask(10.0 + value) for value in range(turn % 4 + 1)))
        await rig.loop.passes(2000 * MS)
        solved, _ = rig.engine.scheduler.control_of(rig.served.program)
        assert origins(rig) == ["guess"]
        assert solved is not None


@virtual
async def test_a_model_that_is_going_is_not_measured_with_the_rows_that_come_last():
    async with serving(make_model(Picky(), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await ask_each(rig, 10, 11, 12)
        last = asyncio.ensure_future(rig.ask(13))
        await rig.loop.turn()
        await asyncio.gather(last, rig.engine.stop(rig.served))
        await settled(rig)
        assert measured(rig) == []


@virtual
async def test_what_the_first_rows_show_is_a_warning(caplog: pytest.LogCaptureFixture):
    async with serving(make_model(Picky(across=True), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await ask_each(rig, 10, 11, 12, 13)
        await settled(rig)
        assert warnings_of(caplog)[1].startswith(
            "model m: a row's answer depends on the other rows of its batch: output"
        )
        await ask_each(rig, 14)


@virtual
async def test_a_client_that_repeats_itself_is_enough_in_the_end():
    async with serving(make_model(Picky(), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await ask_each(rig, *[10] * 63)
        assert rig.served.profiled.on_rows is not None
        await ask_each(rig, 10)
        await settled(rig)
        assert (origins(rig), rig.served.profiled.on_rows) == (["measured"], None)


@virtual
async def test_rows_that_made_the_model_raise_are_not_taken():
    async with serving(make_model(Picky(), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        for value in (1, 2, 3, 4):
            with pytest.raises(Exception, match="too small"):
                await rig.ask(value)
        await ask_each(rig, 10, 11, 12)
        assert rig.served.profiled.on_rows is not None
        await ask_each(rig, 13)
        await settled(rig)
        assert {row.arrays[0][0] for row in rig.served.profiled.rows} == {10, 11, 12, 13}


@virtual
async def test_first_rows_that_fail_when_they_are_run_again(caplog: pytest.LogCaptureFixture):
    model = make_model(Picky(), row_check="refuse")
    async with serving(model, profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await ask_each(rig, 10, 11, 12)
        rig.device.fate = lambda pushed: Fate(fault=Fault.MODEL if pushed.job.unit_id < 0 else None)
        await ask_each(rig, 13)
        await settled(rig)
        assert "model m: its first rows cannot be run again: as told" in warnings_of(caplog)
        assert origins(rig) == ["guess"]
        await ask_each(rig, 14)


@virtual
async def test_a_model_that_goes_while_its_first_rows_run(caplog: pytest.LogCaptureFixture):
    async with serving(make_model(Picky(), row_check="refuse"), profile_budget_s=BUDGET) as rig:
        rig.engine.profiling.begin()
        await ask_each(rig, 10, 11, 12, 13)
        while not measured(rig):
            await rig.loop.passes(MS)
        await rig.engine.stop(rig.models.pop())
        await settled(rig)
        assert len(warnings_of(caplog)) == 1


@virtual
async def test_rows_of_variable_length_are_copied_as_they_came(caplog: pytest.LogCaptureFixture):
    def total(ids: torch.Tensor) -> torch.Tensor:
        if (ids == 1).any():
            raise ValueError("no such id")
        return ids.sum(1).float()[:, None] * torch.ones(2) / ids.shape[1]

    async with serving(
        make_model(total, [IDS], [SCORE], row_check="refuse", max_batch=4), profile_budget_s=BUDGET
    ) as rig:
        rig.engine.profiling.begin()
        for length in (3, 5, 7, 9):
            with rig.served.lease(1, lengths={"tokens": length}) as lease:
                lease.write(0, np.arange(2, 2 + length)[None])
                await lease.run()
        await settled(rig)
        assert rig.served.profiled.rows[0].arrays[0].tolist() == [2, 3, 4]
        assert "padded to length 9 (axis 'tokens', its own length is " in warnings_of(caplog)[1]
        assert rig.served.profiled.profile.extra["lengths"] == {"tokens": 9}
