"""Work on models that takes long and goes one after the other: measuring, and solving tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from app.engine.profiling.profiled_model import ProfiledModel

log = logging.getLogger("starling.engine")


class OneByOne:
    """Calls `work` with each model and its further arguments, in a task that there is while any is wanted.

    An error is logged as `failed`, and the next model follows. Used on the event loop.
    """

    def __init__(self, name: str, work: Callable[..., Awaitable[None]], failed: str) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._wanted: list[tuple[ProfiledModel, tuple[Any, ...]]] = []  # the first one is being worked on
        self._task: asyncio.Task[None] | None = None
        self._begun = False

    def __contains__(self, model: ProfiledModel) -> bool:
        """Whether the model is being worked on, or waits for its turn."""
        return any(one is model for one, _ in self._wanted)

    def begin(self) -> None:
        """Nothing is worked on before."""
        self._begun = True
        self._work_if_wanted()

    def want(self, model: ProfiledModel, *args: Any) -> None:
        self._wanted.append((model, args))
        self._work_if_wanted()

    def forget(self, model: ProfiledModel) -> None:
        """The model is going, and what waits must not keep it."""
        self._wanted = [one for one in self._wanted if one[0] is not model]

    async def close(self) -> None:
        """What is being done is not waited for."""
        self._wanted = []
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _work_if_wanted(self) -> None:
        if self._begun and self._wanted and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        while self._wanted:
            one = model, args = self._wanted[0]
            try:
                await self._work(model, *args)
            except Exception:
                log.exception("model %s: %s", model.name, self._failed)
            if self._wanted and self._wanted[0] is one:
                self._wanted.pop(0)
        self._task = None
