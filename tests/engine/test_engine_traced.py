"""Units of calls that are traced: a span for each, and what the calls say of it."""

from __future__ import annotations

import asyncio
from typing import Any

from collected import collecting, told
from fakes import virtual

from app.contract import Answer
from app.errors import ModelFailed
from app.observe.tracing.spans import CallSpan
from app.observe.tracing.tracer import Tracer

from .rig import POISON, Rig, ask, rows_of, serving


class Traced:
    """Calls of a rig as the API makes them, each with a span."""

    def __init__(self, rig: Rig, tracer: Tracer) -> None:
        self._rig = rig
        self._tracer = tracer

    async def ask(self, *values: float, sampled: bool = True) -> Answer:
        flags = b"01" if sampled else b"00"
        headers = {b"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-" + flags}
        served = self._rig.served
        span = self._tracer.begin(headers, self._rig.loop.now)
        with served.lease(len(values)) as lease:
            lease.write(0, rows_of(*values))
            running = lease.run()
            if isinstance(span, CallSpan):
                self._tracer.submitted(span, lease)
            try:
                answer = await running
            except ModelFailed as exc:
                span.failed(served.info, "", exc, exc.status)
                raise
        span.succeeded(served.info, "", answer)
        return answer


async def ran(*calls: Any) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


@virtual
async def test_a_batch_is_a_span_with_links_to_its_calls() -> None:
    with collecting() as collected:
        tracer = Tracer(collected.sender.offer)
        async with serving(tracer=tracer) as rig:
            calls = Traced(rig, tracer)
            await ran(calls.ask(10.0), calls.ask(20.0, 21.0), calls.ask(30.0, sampled=False))
            await ask(rig.served, rows_of(40.0))  # by somebody who traces nothing
            one, other = collected.of_calls()
            (batch,) = collected.of_batches()
    assert [link.context.span_id for link in batch.links] == [one.context.span_id, other.context.span_id]
    for call in (one, other):
        assert [link.context.span_id for link in call.links] == [batch.context.span_id]
        queued, joined = call.events
        assert (queued.name, joined.name) == ("queued", "batch")
        assert told(joined) == {
            "starling.batch.size": 4, "starling.batch.rows": 4, "starling.batch.reason": "full", "starling.worker": 0,
        }  # fmt: skip
        assert joined.timestamp == batch.start_time
        assert told(call)["starling.worker"] == 0
    shown = told(batch)
    assert (shown["starling.batch.rows"], shown["starling.batch.calls"], shown["starling.class"]) == (4, 2, "realtime")
    assert batch.parent is None
    assert batch.context.trace_id != one.context.trace_id
    assert shown["starling.infer_ms"] > shown["starling.input_ms"] > 0
    assert tracer.recorded_calls(range(100)) == []  # nothing is kept of calls that have ended


@virtual
async def test_a_batch_that_fails_and_its_halves() -> None:
    with collecting() as collected:
        tracer = Tracer(collected.sender.offer)
        async with serving(tracer=tracer) as rig:
            calls = Traced(rig, tracer)
            await ran(calls.ask(10.0), calls.ask(POISON))
            well, poisoned = sorted(collected.of_calls(), key=lambda span: told(span)["starling.outcome"], reverse=True)
            batches = collected.of_batches()
    assert [batch.status.status_code.name for batch in batches].count("ERROR") == 2  # the whole, and the half
    assert {told(batch).get("error.type") for batch in batches} == {"ValueError", None}
    assert [told(event)["starling.batch.reason"] for event in well.events[1:]] == ["idle", "retry"]
    assert told(poisoned)["starling.outcome"] == "model_failed"
    assert poisoned.events[-1].name == "exception"
