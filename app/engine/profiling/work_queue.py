"""Long work on models, one after the other: measuring, and solving tables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from app.engine.profiling.profiled_model import ProfiledModel

log = logging.getLogger("starling.engine")


class WorkQueue:
    """Runs coroutines one at a time, in the order of `want`, each in a task. Errors are logged with the text `failed`.

    Used on the event loop.
    """

    def __init__(self, failed: str) -> None:
        self.begun = asyncio.Event()  # no work starts before it is set
        self.tasks: dict[asyncio.Task[None], ProfiledModel] = {}
        self._failed = failed
        self._turn = asyncio.Lock()

    def __contains__(self, model: ProfiledModel) -> bool:
        """Whether the model is being worked on, or waits for its turn."""
        return any(one is model for one in self.tasks.values())

    def want(self, model: ProfiledModel, work: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(model, work))
        self.tasks[task] = model
        task.add_done_callback(self.tasks.pop)

    async def forget(self, model: ProfiledModel | None = None) -> None:
        """Cancel all work on the model; None: on all models. Returns when no task refers to it any more."""
        tasks = [task for task, one in self.tasks.items() if model is None or one is model]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, model: ProfiledModel, work: Callable[[], Awaitable[None]]) -> None:
        await self.begun.wait()
        async with self._turn:
            try:
                await work()
            except Exception:
                log.exception("model %s: %s", model.name, self._failed)
