"""Makes the units that workers are handed: of rows that start, and of rows with which a worker continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.scheduler.forming.multi_step import continues_without, steps_left, steps_of
from app.scheduler.forming.share import Share
from app.scheduler.policies import Cut, Offer, Policy
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import longest_of
from app.scheduler.types import ONE_STEP, Course, DeviceSpec, Forecast, Formed, Klass, Operation, Row, Unit
from app.scheduler.workers import Workers

_BEST_EFFORT = Klass.BEST_EFFORT  # looked up once, used per unit


class Units:
    """Of one device."""

    def __init__(
        self, device: DeviceSpec, ledger: Ledger, workers: Workers, share: Share, policies: Mapping[int, Policy]
    ) -> None:
        self._multi_step = device.multi_step
        self._ledger = ledger
        self._workers = workers
        self._share = share
        self._policies = policies
        self._next = 0

    def start(self, offer: Offer, cut: Cut, now: int) -> Unit:
        """Take the rows of a cut from their set, and hand them to a worker as one unit."""
        ready, state, batches = offer.ready, offer.state, offer.state.batches
        program, stage, bucket = ready.key
        if cut.divide and batches is not None:
            batches.divide(offer.first(offer.neighbours().here), cut.divide)
        rows = ready.take_similar(cut.rows, cut.shorter) if cut.shorter >= 0 else ready.take(cut.rows, offer.room)
        size = max(cut.size, len(rows))
        worker, begins, running = self._workers.place(offer.usable, size, state.capacity[stage], now)
        latency = offer.estimates.latency[stage]
        length = longest_of(rows) if latency.by_length else 0
        operation = Operation.NEW if batches is None else batches.launch(rows, stage, bucket, now, cut.joins)
        self._ledger.start(rows, state)
        if cut.divide:
            operation = Operation.SPLIT
        forecast = Forecast(latency.predict(size, running, length, begins - now), begins, running, length)
        unit = Unit(
            self._next, worker, program, stage, rows, size, cut.reason, now, forecast, ONE_STEP, operation, ready.klass
        )
        if batches is not None and self._multi_step and cut.reason is not Formed.RETRY:
            unit.course = self._course(unit, state)
            if unit.course.steps > 1:
                self._predict_steps(unit, state)
        self._next += 1
        self._workers.take(unit)
        if unit.klass is _BEST_EFFORT:
            self._share.started(unit)
        return unit

    def _course(self, unit: Unit, state: ProgramState) -> Course:
        """How far the worker is to run a unit by itself."""
        rows, stage = unit.rows, unit.stage
        steps = steps_of(rows, unit.size, stage, state, self._policies[unit.program], unit.worker)
        if unit.klass is _BEST_EFFORT:
            steps = self._share.steps(steps, unit.size, stage, state, unit.started)
        continue_without = continues_without(rows, stage, state)
        return Course(steps, continue_without=continue_without) if steps > 1 or continue_without else ONE_STEP

    def _predict_steps(self, unit: Unit, state: ProgramState) -> None:
        """Extend the forecast of the first step or stage to all of them."""
        stage, steps, forecast = unit.stage, unit.course.steps, unit.forecast
        first, *later = state.estimates.latency[stage : stage + steps]
        if not forecast.predicted:
            return
        size, running, length = unit.size, forecast.running, forecast.length
        if state.program.stages[stage].repeats:
            forecast.predicted += (steps - 1) * first.compute(size, running, length)
            return
        forecast.times = (forecast.predicted, *(one.compute(size, running, length) for one in later))
        forecast.predicted = sum(forecast.times)

    def continued(self, unit: Unit, rows: list[Row], now: int) -> Unit:
        """Other rows of a real-time unit have ended at a cell, and its worker has continued with `rows`: their unit."""
        state = self._ledger.states[unit.program]
        latency, stage = state.estimates.latency[unit.stage], state.program.stages[unit.stage]
        batches = state.batches
        assert batches is not None  # of a program with a cell
        for row in rows:
            batches.wait(row)
        self._ledger.start((), state)
        steps = max(1, min(steps_left(row, stage) for row in rows))
        length = longest_of(rows) if latency.by_length else 0
        predicted = steps * latency.compute(len(rows), unit.forecast.running, length)
        following = replace(
            unit,
            rows=rows,
            size=len(rows),
            started=now,
            forecast=replace(unit.forecast, predicted=predicted, length=length),
            course=Course(steps, continue_without=unit.course.continue_without),
            operation=batches.launch(rows, unit.stage, 0, now, None),
        )
        self._workers.continued(following, now)
        return following
