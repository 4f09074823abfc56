from __future__ import annotations

import asyncio
import signal

import pytest

from app import process
from planner.commands.event_loop import in_loop


def test_sigterm_cancels_what_runs_in_a_loop() -> None:
    """And is not lost in the callback that the loop runs as it comes."""
    left = []

    async def waiting() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        finally:
            left.append(True)

    with pytest.raises(SystemExit) as ended, process.ended_by_signals(7):
        in_loop(waiting())
    assert (ended.value.code, left) == (7, [True])
