"""Starling as one replica: an ASGI application in a process behind another program's server and router.

It is the same application as behind uvicorn, without the fast path of `http/connection/`: all requests are ASGI. The
engine runs in the event loop that calls `start`, which must also be the one that answers requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Receive, Scope, Send

from app import process
from app.collector import Collector
from app.errors import ConfigError
from app.http.asgi import HttpApp
from app.lifecycle import Lifecycle
from app.machine import cpu_cores
from app.observe import logs
from app.settings import Settings, settings_from

_IN_FRONT = "whoever is in front has the connections"
_ONE_REPLICA = "a request to load or unload a model would reach one replica"
#: Settings that a replica cannot have, and why.
SERVERS_OWN = {
    **dict.fromkeys(("host", "port", "tls_cert", "tls_key", "keep_alive_s", "max_connections"), _IN_FRONT),
    **dict.fromkeys(("model_control", "admin_key", "admin_key_file"), _ONE_REPLICA),
    "drain_grace_s": "the router learns first when a replica ends",
    "record": "the replicas would all write one file",
}


def replica_settings(given: Mapping[str, Any], cores: float | None = None) -> Settings:
    """The settings of a replica with `cores` cores; None leaves `threads` as given. Raises ConfigError.

    Replicas share a machine, so by default a replica computes with all its cores, not with all but one.
    """
    for name, instead in SERVERS_OWN.items():
        if name in given:
            raise ConfigError(f"{name}: not a setting of replicas: {instead}")
    values = dict(given)
    if cores is not None and values.get("threads") is None:
        values["threads"] = min(max(1, int(cores)), cpu_cores())
    return settings_from(values)


def set_process(settings: Settings) -> None:
    """Apply the process-wide settings of `starling serve`, for a process that only has a replica."""
    process.prepare()
    logs.configure(settings.log_level, settings.log_format, settings.access_log)


class Replica:
    """ASGI application. Call `start` before the first request. `stop`, or the end of the lifespan, ends the engine.

    Ending does not wait: unfinished requests are answered 503. The router in front must drain first.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._lifecycle: Lifecycle | None = None
        self._app: HttpApp | None = None
        self._state: Mapping[str, Any] = {}

    async def start(self, settings: Settings, collector: Collector | None = None) -> None:
        """Load the models; returns when each has been tried. The caller then begins the `collector`.

        Raises ConfigError if a required one does not serve.
        """
        from app.main import create_app  # imports torch, so `set_process` must run first

        async with AsyncExitStack() as stack:  # ends what has begun, if anything raises
            lifecycle = Lifecycle()
            app = create_app(settings, lifecycle, collector=collector)
            self._state = await stack.enter_async_context(app.running())
            await lifecycle.loaded.wait()
            if (why := lifecycle.ready()) is not None:
                raise ConfigError(why)
            self._lifecycle, self._app = lifecycle, app
            self._stack = stack.pop_all()

    async def stop(self) -> None:
        await self._stack.aclose()

    def failed(self) -> str | None:
        """Why the replica must be replaced: device lost, or engine stuck. None: it works."""
        return None if self._lifecycle is None else self._lifecycle.live()

    def families(self) -> Iterable[Metric]:
        """The present metrics with our names, read from the page that Prometheus gets."""
        metrics = self._state.get("metrics")
        page = "" if metrics is None else metrics()[0].decode()
        return (one for one in text_string_to_metric_families(page) if one.name.startswith("starling_"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        assert self._app is not None, "start comes before the first request"
        scope = {**scope, "path": _path_below_mount(scope), "state": dict(self._state)}
        await self._app(scope, receive, _without_request_id(send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Startup does nothing: `start` has started the engine before. Shutdown stops it."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _path_below_mount(scope: Scope) -> str:
    """The path without the prefix under which the router mounts this application."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path.removeprefix(prefix) if prefix and path.startswith(f"{prefix}/") else path


def _without_request_id(send: Send) -> Send:
    """A `send` that removes X-Request-ID from the answer: the router in front adds it itself."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"x-request-id"]
            message = {**message, "headers": headers}
        await send(message)

    return sending
