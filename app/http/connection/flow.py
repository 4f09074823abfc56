"""How far a connection is read ahead of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from uvicorn.protocols.http.flow_control import FlowControl


class PipelineFlow(FlowControl):
    """uvicorn's flow control, which goes on reading only when no request that has been read waits for its turn.

    uvicorn reads on after each answer, so that a client which sends far ahead of the answers has all of its requests
    kept here.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Collection[object]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()
