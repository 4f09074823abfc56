"""The models a server has, in their versions and states: `contract.Catalog`.

Rules
1. State changes on the event loop only, so changes between two awaits are atomic.
2. Changes of one model run one at a time, in the order of the requests.
3. Loads of different models take turns, so that they do not compete for memory. A slow load keeps its turn for a few
   seconds only; then others load beside it.
4. A route to a version exists exactly while the version can be called, so a replacement leaves no gap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from app.contract import IndexEntry, Model, ModelSource, Served
from app.errors import BadRequest, ConfigError, NotFound, NotReady
from app.models.base import one_line
from app.models.checks.trial import REPLACES_NONE
from app.models.loading import load as load_model
from app.models.repository import Repository
from app.models.version import LOADING, UNAVAILABLE, UNLOADING, Version
from app.user_code import own_trace

#: Retry hints, in seconds. A load usually takes a few; a failed or unloaded model waits for an operator.
RETRY_LOADING_S = 2
RETRY_UNAVAILABLE_S = 30

_TURN_S = 3.0  # most loads are over by then; a download is not
_LOADERS = 8  # the most models that load at once

_LONGEST_NAME = 100  # characters of an unknown name that an error repeats

_log = logging.getLogger("starling.models")
_T = TypeVar("_T")


def _log_error(source: ModelSource, what: str, error: BaseException) -> None:
    """Log an error with the frames of the model's own code, or with all frames if it is unexpected."""
    trace = own_trace(error) or (None if isinstance(error, ConfigError) or error.__cause__ else error)
    _log.error("model %s version %s: %s", source.name, source.version, what, exc_info=trace)


class _Serving(dict[tuple[str, str | None], Served]):
    """See contract.Catalog. `missing` returns the error for a name and version that are not there."""

    def __init__(self, missing: Callable[[str, str | None], Exception]) -> None:
        super().__init__()
        self._missing_error = missing

    def __missing__(self, key: tuple[str, str | None]) -> Served:
        raise self._missing_error(*key)


class Registry:
    """Owns the loading threads and every model it has started. Use `async with`, or call `close` at the end.

    Constructed on the loop's thread with `models`, those of the repository, required and in state LOADING; `load_all`
    does the work. `start` tries a model and opens it to calls; `stop` takes no more, waits for those accepted and frees
    everything. `load` runs on a thread. `on_change` is called after each change, when the registry no longer refers to
    what it has stopped.
    """

    def __init__(
        self,
        start: Callable[[Model], Awaitable[Served]],
        stop: Callable[[Served], Awaitable[None]],
        repository: Repository,
        models: Mapping[str, Sequence[ModelSource]],
        load: Callable[[ModelSource], Model] = load_model,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._start_model, self._stop_model = start, stop
        self._repository = repository
        self._load_model = load
        self._on_change = on_change
        self._versions: dict[str, dict[int, Version]] = {
            name: {source.version: Version(source, required=True) for source in sources}
            for name, sources in models.items()
        }
        self.serving = _Serving(self._missing)  # NotReady has state, reason and a retry hint
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._alive: list[Served] = []
        self._closed = False
        self._loading = asyncio.Lock()  # the turn to load
        self._loader = ThreadPoolExecutor(_LOADERS, thread_name_prefix="model-load")

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # lookup

    def versions(self, name: str) -> list[str]:
        return [str(number) for number, one in sorted(self._known(name).items()) if one.served is not None]

    def ready(self) -> list[Served]:
        return [one.served for one in self._all() if one.served is not None]

    def index(self) -> list[IndexEntry]:
        return [one.entry() for one in self._all()]

    # changes

    async def load_all(self) -> None:
        """Load every model the repository had at construction. One that fails is logged and keeps its reason."""
        await asyncio.gather(*map(self._first_load, self._versions))

    async def _first_load(self, name: str) -> None:
        with suppress(BadRequest, NotFound):  # logged where it happened, and shown in the index
            await self.load(name)

    async def load(self, name: str) -> None:
        """See `contract.Catalog.load`. Returns when the new versions serve and the replaced ones have drained.

        Versions that the repository no longer holds are stopped, unless some version failed to load: a failed load
        takes nothing away. Cancelling the caller does not cancel the load.
        """
        await self._own(self._reload(name))

    async def unload(self, name: str) -> None:
        """Finish the requests that were accepted, then free all versions. Readiness does not wait for the model any
        more, even if it was not loaded. Cancelling the caller does not cancel the unload.
        """
        self._known(name)
        await self._own(self._remove(name))

    async def close(self) -> None:
        """Cancel loads, stop every model that was started (which drains it) and end the loading thread.

        A model being loaded in the thread cannot be interrupted; its result is dropped. Callers that wait for a load
        get CancelledError. Call it while the engine still works.
        """
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.serving.clear()
        for one in self._all():
            one.served = None
            one.state, one.reason = UNAVAILABLE, "the server is stopping"
        await asyncio.gather(*(self._stop(served) for served in list(self._alive)))
        self._loader.shutdown(wait=False, cancel_futures=True)

    # carrying changes out

    async def _reload(self, name: str) -> None:
        async with self._turn(name):
            async with self._loading:
                work = self._owned(self._replace(name))
                await asyncio.wait([work], timeout=_TURN_S)
            await work

    async def _replace(self, name: str) -> None:
        sources = await self._in_thread(self._repository.sources, name)
        if not sources:
            self._vanish(name)
            raise self._unknown(name)
        versions = self._versions.setdefault(name, {})
        started, failures = await self._start_all(versions, sources)
        before = [one.served for one in versions.values()]
        for number, served in started.items():
            one = versions[number]
            one.served, one.reason = served, served.model.note
            one.unchecked = served.untried is not None and served.model.checks.row_check != "off"
        for number in () if failures else versions.keys() - {source.version for source in sources}:
            del versions[number]
        self._route(name)  # no await since `started` was complete: the switch is atomic
        still = [one.served for one in versions.values()]
        for old in before:
            if old is not None and old not in still:
                await self._stop(old)
        if failures:
            raise BadRequest(f"model {name!r} cannot be loaded: {'; '.join(failures)}")

    async def _start_all(
        self, versions: dict[int, Version], sources: Sequence[ModelSource]
    ) -> tuple[dict[int, Served], list[str]]:
        """Start each version beside the one that serves now. Logs failures; returns what started and what failed."""
        started: dict[int, Served] = {}
        failures: list[str] = []
        for source in sources:
            one = versions.setdefault(source.version, Version(source, required=False))
            one.source = source
            if one.served is None:
                one.state, one.reason = LOADING, ""
            try:
                served = await self._start(source)
                if served.untried is not None:
                    older = [old.served for number, old in versions.items() if number <= source.version]
                    await self._let_serve_untried(served, [*older, *started.values()])
                    _log_error(source, f"serves untried: {served.untried}", served.untried)
                started[source.version] = served
            except Exception as error:
                # A model's code may raise anything; the other models must still load.
                reason = str(error) if isinstance(error, ConfigError) else one_line(error)
                _log_error(source, reason, error)
                failures.append(f"version {source.version}: {reason}")
                if one.served is None:
                    one.state, one.reason = UNAVAILABLE, reason
                else:
                    one.reason = f"serves as it was; loading it again failed: {reason}"
        return started, failures

    async def _let_serve_untried(self, served: Served, replaced: Sequence[Served | None]) -> None:
        """Stop an untried version, and raise ConfigError, if it would replace a version that works."""
        untried = served.untried
        if served.model.checks.allow_untried or all(old is None or old.untried is not None for old in replaced):
            return
        await self._stop(served)
        raise ConfigError(f"{untried}. {REPLACES_NONE}") from untried

    def _vanish(self, name: str) -> None:
        """The model is no longer in the repository: versions that serve do so until unloaded; no other is loaded."""
        for one in self._versions.get(name, {}).values():
            if one.served is None:
                one.state, one.reason = UNAVAILABLE, "no longer in the repository"
                _log.error("model %s version %s: %s", name, one.source.version, one.reason)

    async def _start(self, source: ModelSource) -> Served:
        model = await self._in_thread(self._load_model, source)
        try:
            served = await self._start_model(model)
        except BaseException:
            model.close()
            raise
        if model.note:
            _log.warning("model %s version %s: %s", source.name, source.version, model.note)
        self._alive.append(served)
        return served

    async def _remove(self, name: str) -> None:
        async with self._turn(name):
            versions = self._known(name)
            retired: list[tuple[Version, Served]] = []
            for one in versions.values():
                one.required = False
                if one.served is not None:
                    retired.append((one, one.served))
                    one.served, one.state, one.reason = None, UNLOADING, ""
                else:
                    one.state, one.reason = UNAVAILABLE, "unloaded"
            self._route(name)
            for one, served in retired:
                await self._stop(served)
                one.state, one.reason = UNAVAILABLE, "unloaded"

    async def _stop(self, served: Served) -> None:
        try:
            await self._stop_model(served)
        except Exception:
            # no request reaches it any more, so a leak of memory is no reason to fail the caller
            _log.exception("model %s version %s did not stop cleanly", served.info.name, served.info.version)
        served.model.close()
        self._alive.remove(served)

    def _route(self, name: str) -> None:
        for key in [key for key in self.serving if key[0] == name]:
            del self.serving[key]
        for number, one in sorted(self._versions[name].items()):
            if one.served is not None:
                self.serving[name, str(number)] = one.served
                self.serving[name, None] = one.served  # the highest comes last

    def _turn(self, name: str) -> asyncio.Lock:
        """The lock that orders changes of one model: it wakes its waiters in order. Freed when unused."""
        return self._turns.setdefault(name, asyncio.Lock())

    async def _own(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run in a task of the registry, so that a caller who disconnects does not leave a change half done."""
        if self._closed:
            work.close()
            raise NotReady("the server is stopping")
        return await asyncio.shield(self._owned(work))

    def _owned(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the caller gets it; if the caller has gone, asyncio must not warn
        self._on_change()

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._loader, function, *args)

    def _all(self) -> list[Version]:
        return [one for _, versions in sorted(self._versions.items()) for _, one in sorted(versions.items())]

    def _known(self, name: str) -> dict[int, Version]:
        versions = self._versions.get(name)
        if versions is None:
            raise self._unknown(name)
        return versions

    def _unknown(self, name: str) -> NotFound:
        if name in self._versions:
            return NotFound(f"model {name!r} is no longer in the repository")
        shown = repr(name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "...")
        # Triton's clients and their examples compare the beginnings of both messages.
        models = ", ".join(sorted(self._versions)) or "none"
        return NotFound(f"Request for unknown model: {shown} is not found; models: {models}")

    def _missing(self, name: str, version: str | None) -> NotFound | NotReady:
        """The error if there is no route: the name or version is unknown, or does not serve now."""
        versions = self._versions.get(name)
        if versions is None:
            return self._unknown(name)
        ones = [one for number, one in sorted(versions.items(), reverse=True) if version in (None, str(number))]
        if not ones:
            known, shown = ", ".join(map(str, sorted(versions))), repr(version)[1:-1]
            return NotFound(f"Request for unknown model: {name!r} version {shown} is not found; versions: {known}")
        one = next((one for one in ones if one.state == LOADING), ones[0])
        what = f"model {name!r} version {one.source.version}"
        if one.state == LOADING:
            return NotReady(f"{what} is loading", retry_after_s=RETRY_LOADING_S)
        reason = f": {one.reason}" if one.reason else ""
        return NotReady(f"{what} is {one.state.lower()}{reason}", retry_after_s=RETRY_UNAVAILABLE_S)
