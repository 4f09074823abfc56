"""Starling as a deployment of Ray Serve: our engine inside each replica, Ray's router and autoscaler in front.

    from ray import serve
    from app.integrations.ray_serve import starling_app

    serve.run(starling_app(models="/srv/models", max_batch=16, num_replicas=2))

Nothing here is imported by the server. Ray is imported when a deployment is made.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from app import process
from app.errors import not_installed
from app.http.body import Receive, Scope, Send
from app.integrations.ray_metrics import Forwarder
from app.integrations.replica import Replica, replica_settings, set_process
from app.settings import Settings

_MAX_QUEUE = 1024  # the default of `max_queue`, which model.toml may change
_SPARE_S = 5.0  # of a replica's end over the drain limit, for the engine itself to end


def starling_app(**given: Any) -> Any:
    """An application for `serve.run`. Its keyword arguments are settings of the server and options of the deployment.

    Settings are those of `starling serve` under their names; variables STARLING_* are not read. Options are those of
    `serve.deployment`: `num_replicas`, `autoscaling_config`, `ray_actor_options`, ... Raises ConfigError, also where
    Ray is not installed. A model that cannot serve makes the deployment fail, with the reason.
    """
    serve = _ray_serve()
    known = deployment_options(serve)
    options = {name: value for name, value in given.items() if name in known}
    values = {name: value for name, value in given.items() if name not in known}
    # `threads` depends on the replica's machine, and is looked at there.
    settings = replica_settings({name: value for name, value in values.items() if name != "threads"})
    cores = (options.get("ray_actor_options") or {}).get("num_cpus", 1)  # Ray's default is 1
    deployment = serve.deployment(**{**_defaults(settings), **options})(_replica_class(serve))
    return deployment.bind(values, cores)


def build(arguments: Mapping[str, Any]) -> Any:
    """`starling_app` for `serve run app.integrations.ray_serve:build models=demo` and for `args:` of a config file.

    A shell gives text: options of the deployment are read as JSON where they are; settings take text anyway.
    """
    known = deployment_options(_ray_serve())
    return starling_app(**{name: _read(value) if name in known else value for name, value in arguments.items()})


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:  # such as num_replicas=auto
        return value


def deployment_options(serve: ModuleType) -> frozenset[str]:
    """The names that `serve.deployment` knows, in the version of Ray that is installed."""
    return frozenset(inspect.signature(serve.deployment).parameters) - {"_func_or_class"}


def _defaults(settings: Settings) -> dict[str, Any]:
    """Options where Ray's own defaults are made for models without a queue of their own.

    Ray sends a replica 5 requests at a time, of which no batch could be made, and keeps the others. The engine must see
    them all: it batches them, and refuses (429) what its queues cannot take, before Ray holds anything back.
    """
    return {
        "name": "starling",
        "max_ongoing_requests": 2 * (settings.max_queue or _MAX_QUEUE),
        "graceful_shutdown_timeout_s": settings.drain_limit_s + _SPARE_S,
    }


class DeferredApp:
    """The application that Ray wants to have before there is one: it passes everything on to what is behind it."""

    target: Replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.target(scope, receive, send)


def _replica_class(serve: ModuleType) -> type:
    """The deployment's class. Made here, because its base is; it travels to the replicas by value."""

    class Starling(serve.ingress(lambda: DeferredApp())()):  # type: ignore[misc]  # Ray makes the class
        """One replica. Its constructor returns when the models are loaded, so that Ray sends it no request before."""

        async def __init__(self, values: Mapping[str, Any], cores: float) -> None:  # type: ignore[misc]  # Ray awaits it
            settings = replica_settings(values, cores)
            set_process(settings)
            self._replica = Replica()
            await self._replica.start(settings)
            process.tune_garbage_collector()
            # Afterwards: the destructor of the base waits for a lifespan that has not begun where the start has failed.
            await super().__init__()
            self.app.target = self._replica
            self._forwarder = Forwarder()

        async def check_health(self) -> None:
            """Asked by Ray every `health_check_period_s`; a replica that raises is replaced.

            The metrics go along, because this is the one thing that Ray calls on every replica from time to time.
            """
            if (why := self._replica.failed()) is not None:
                raise RuntimeError(why)
            self._forwarder.forward(self._replica.families())

    return Starling


def _ray_serve() -> ModuleType:
    try:
        return importlib.import_module("ray.serve")
    except ModuleNotFoundError:
        raise not_installed("ray", "'ray[serve]'") from None
