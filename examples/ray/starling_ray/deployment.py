"""Starling as a Ray Serve deployment: our engine inside each replica, Ray's router and autoscaler in front.

    from ray import serve
    from starling_ray import starling_app

    serve.run(starling_app(models="/srv/models", max_batch=16, num_replicas=2))

Ray is imported when a deployment is made.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from starlette.types import Receive, Scope, Send

from app.collector import Collector
from app.contract import Batching
from app.errors import not_installed
from app.machine import memory_limit
from app.settings import Settings
from starling_ray.metrics import Forwarder
from starling_ray.replica import Replica, replica_settings, set_process

_SPARE_S = 5.0  # time beyond the drain limit for the engine itself to end


def starling_app(**given: Any) -> Any:
    """An application for `serve.run`. Keyword arguments are settings of the server and options of the deployment.

    Settings have their names in `starling serve`; STARLING_* variables are not read. Options are those of
    `serve.deployment`: `num_replicas`, `autoscaling_config`, `ray_actor_options`, ... Raises ConfigError, also if Ray
    is not installed. If a model cannot serve, the deployment fails with the reason.
    """
    serve = _ray_serve()
    known = deployment_options(serve)
    options = {name: value for name, value in given.items() if name in known}
    values = {name: value for name, value in given.items() if name not in known}
    # `threads` depends on the replica's machine, and is checked there.
    settings = replica_settings({name: value for name, value in values.items() if name != "threads"})
    cores = (options.get("ray_actor_options") or {}).get("num_cpus", 1)  # Ray's default is 1
    deployment = serve.deployment(**{**_defaults(settings), **options})(_replica_class(serve))
    return deployment.bind(values, cores)


def build(arguments: Mapping[str, Any]) -> Any:
    """`starling_app` for `serve run starling_ray:build models=demo` and for `args:` of a config file.

    A shell gives text. Options of the deployment are parsed as JSON if possible; settings accept text.
    """
    known = deployment_options(_ray_serve())
    return starling_app(**{name: _read(value) if name in known else value for name, value in arguments.items()})


def _read(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:  # such as num_replicas=auto
        return value


def deployment_options(serve: ModuleType) -> frozenset[str]:
    """The parameters of `serve.deployment` in the installed version of Ray."""
    return frozenset(inspect.signature(serve.deployment).parameters) - {"_func_or_class"}


def _defaults(settings: Settings) -> dict[str, Any]:
    """Defaults for options whose defaults in Ray suit models without their own queue.

    By default Ray sends a replica 5 requests at a time and queues the others, too few for a batch. The engine must see
    all requests: it batches them, and refuses (429) what its queues cannot hold.
    """
    given = settings.model_dump(include={"max_batch", "max_queue"}, exclude_none=True)  # model.toml is read later
    return {
        "name": "starling",
        "max_ongoing_requests": 2 * Batching(**given).max_queue,
        "graceful_shutdown_timeout_s": settings.drain_limit_s + _SPARE_S,
    }


class DeferredApp:
    """Ray needs an application before the replica has started: this one passes each request on to `target`."""

    target: Replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.target(scope, receive, send)


def _replica_class(serve: ModuleType) -> type:
    """The deployment's class. Its base is made by Ray at run time. It is pickled by value for the replicas."""

    class Starling(serve.ingress(lambda: DeferredApp())()):  # type: ignore[misc]  # Ray makes the class
        """One replica. Its constructor returns when the models are loaded, so that Ray sends no request earlier."""

        async def __init__(self, values: Mapping[str, Any], cores: float) -> None:  # type: ignore[misc]  # Ray awaits it
            settings = replica_settings(values, cores)
            set_process(settings)
            self._replica = Replica()
            collector = Collector(memory_limit())
            await self._replica.start(settings, collector)
            collector.begin()
            # Last: if the start fails, the destructor of the base would wait for a lifespan that never began.
            await super().__init__()
            self.app.target = self._replica
            self._forwarder = Forwarder()

        async def check_health(self) -> None:
            """Called by Ray every `health_check_period_s`. If it raises, Ray replaces the replica.

            It also forwards the metrics, because Ray calls no other method of every replica periodically.
            """
            if (why := self._replica.failed()) is not None:
                raise RuntimeError(why)
            await asyncio.to_thread(self._forwarder.forward, self._replica.families())  # reads some 500 lines a model

    return Starling


def _ray_serve() -> ModuleType:
    try:
        return importlib.import_module("ray.serve")
    except ModuleNotFoundError:
        raise not_installed("ray", "'ray[serve]'") from None
