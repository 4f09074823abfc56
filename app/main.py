"""The composition root: builds the application from all parts."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import torch
from fastapi import FastAPI

from app import __version__
from app.collector import Collector
from app.contract import Batching, Model, Served
from app.engine.device import Device
from app.engine.engine import Engine
from app.engine.record_file import RecordFile
from app.engine.streams import cuda
from app.engine_setup import ANY_SIZE, device_of, engine_of, memory_of
from app.errors import as_config_error
from app.http.asgi import HttpApp
from app.http.auth import Auth
from app.http.body import Limits
from app.http.cors import Cors
from app.http.errors import install_error_handlers
from app.http.keys import keys_of
from app.http.openapi.document import OPEN_PATHS, Document, docs_router
from app.http.resources import Resources
from app.http.routes.control import router as control
from app.lifecycle import Lifecycle
from app.machine import cpu_cores, helper_threads, memory_limit, resident_bytes
from app.models.folder_watch import FolderWatch
from app.models.loading import load as load_model
from app.models.registry import Registry
from app.models.repository import Repository
from app.models.sources.imports import compiling_aside
from app.observe.prometheus import of_server, render
from app.observe.tracing.setup import tracer_of
from app.scheduler.policies import policy_class
from app.settings import MIB, Settings
from app.ui import page
from app.ui.history import Machine
from app.ui.hub import Hub

log = logging.getLogger("starling")

_BUILD = {"version": __version__, "python": platform.python_version(), "torch": torch.__version__}
_OVERRIDES = ("policy", "max_batch", "max_delay_ms", "max_queue")


def create_app(
    settings: Settings,
    lifecycle: Lifecycle | None = None,
    *,
    collector: Collector | None = None,
    on_ready: Callable[[Registry], None] | None = None,
) -> HttpApp:
    """The server as an ASGI application. `on_ready` is called when loading has been tried for every model. `collector`
    is given by who owns the process, and begins it then.

    Raises ConfigError if the models, the GPU or the key files cannot be found, or the record cannot be written. A fault
    of a single model is not raised: the repository index shows it.
    """
    server = _Server(settings, lifecycle or Lifecycle(), collector or Collector(None), on_ready)
    # app/http/openapi/ makes the OpenAPI document: FastAPI does not know the inference routes, and its own pages load
    # scripts from another host.
    app = FastAPI(lifespan=server.lifespan, openapi_url=None)
    app.include_router(control)
    open_paths = _add_pages(app, settings, server.resources.auth)
    install_error_handlers(app, server.resources.rejected)
    return HttpApp(app, server.resources, open_paths)


class _Server:
    """What is made before the server starts, so that a mistake in the settings ends the command; and its lifespan."""

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        collector: Collector,
        on_ready: Callable[[Registry], None] | None,
    ) -> None:
        """Raises as `create_app`."""
        self._settings, self._lifecycle, self._collector, self._on_ready = settings, lifecycle, collector, on_ready
        with as_config_error():
            policy_class(settings.policy or Batching().policy)
        auth = Auth(
            keys_of("api_key", settings.api_key, settings.api_key_file),
            keys_of("admin_key", settings.admin_key, settings.admin_key_file),
            control=settings.model_control,
            origins=settings.cors_origins,
        )
        lifecycle.tick_callbacks.append(auth.reread)
        https = settings.tls_cert is not None
        tracer = tracer_of(settings.otlp_endpoint, __version__, os.environ, https=https)
        self._gpu = cuda.device_index(settings.device)
        self._repository = Repository(settings.repository, settings.model)
        # Raises before anything starts if the folder cannot be read or has no model.
        self._models = self._repository.scan(required=not settings.loads_later)
        self._memory = memory_of(settings, len(self._models), on_gpu=self._gpu is not None)
        with as_config_error("record"):
            self._record = None if settings.record is None else RecordFile(settings.record)
        self.resources = Resources(
            _limits(settings, self._memory.bodies),
            auth=auth,
            connections=lambda: lifecycle.connections(),
            access_log=settings.access_log,
            tracer=tracer,
            cors=Cors(settings.cors_origins) if settings.cors_origins else None,
            root_path=settings.root_path,
        )

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        """Start the engine, load the models, and stop in reverse order. Yields what routes find in `request.state`."""
        settings, lifecycle, collector, resources = self._settings, self._lifecycle, self._collector, self.resources
        async with AsyncExitStack() as stack:
            if resources.tracer is not None:
                stack.push_async_callback(asyncio.to_thread, resources.tracer.close)  # first, so that it ends last
            device = device_of(settings, self._gpu)
            sink = None if self._record is None else stack.enter_context(self._record).sink
            engine = await stack.enter_async_context(
                engine_of(settings, device, lifecycle, sink, self._memory, collector.look)
            )
            stack.callback(collector.close)
            lifecycle.tick_callbacks.append(collector.tick)
            registry = await stack.enter_async_context(self._registry(engine))
            lifecycle.catalog, lifecycle.stuck, lifecycle.abort = registry, engine.stuck, engine.abort
            lifecycle.device = device.name
            if settings.watch:
                watch = FolderWatch(self._repository, registry)
                lifecycle.tick_callbacks.append(watch.begin)
                stack.push_async_callback(watch.close)
            loading = asyncio.create_task(_load_all(registry, engine, lifecycle, self._on_ready), name="load-models")
            stack.push_async_callback(_cancel, loading)
            about = _about(device, resources.auth, None if self._gpu is None else cuda.memory(self._gpu)[1])
            hub = Hub(engine, registry, lifecycle, about, resources.errors, partial(_machine, self._gpu))
            stack.callback(hub.close)
            if settings.pages:
                lifecycle.tick_callbacks.append(hub.record)
            build = {**_BUILD, "device": device.name}
            yield {
                "catalog": registry,
                "auth": resources.auth,
                "health": lifecycle,
                "settings": settings,
                "metrics": lambda: render(
                    engine.snapshot(), of_server(lifecycle, build, resources.bodies.held, resources.rejected, collector)
                ),
                "engine": engine,
                "hub": hub,
            }

    def _registry(self, engine: Engine) -> Registry:
        # flags and variables override every model.toml
        overrides = {name: value for name in _OVERRIDES if (value := getattr(self._settings, name)) is not None}
        return Registry(
            engine.start,
            partial(_stop, engine, self._collector),
            self._repository,
            self._models,
            partial(_load, self._collector, overrides=overrides),
            self._collector.models_changed,
        )


def _add_pages(app: FastAPI, settings: Settings, auth: Auth) -> frozenset[str]:
    """Add the pages for people. Returns the paths that need no key."""
    if not settings.pages:
        return frozenset()
    app.include_router(page.router)
    keyed, admin = auth.keys is not None, auth.control == "admin"
    app.include_router(docs_router(Document(keyed=keyed, admin=admin, root_path=settings.root_path)))
    return page.OPEN_PATHS | OPEN_PATHS


def _about(device: Device, auth: Auth, device_memory: int | None) -> dict[str, Any]:
    """Facts about the server for the live page. The capacity of a worker is None if it takes any batch."""
    capacities = [None if worker.capacity >= ANY_SIZE else worker.capacity for worker in device.spec.workers]
    return {
        "version": __version__,
        "started": time.time(),
        "device": device.name,
        "workers": capacities,
        "cores": cpu_cores(),
        "memory": memory_limit(),
        "device_memory": device_memory,
        "control": auth.control,
    }


def _machine(gpu: int | None) -> Machine:
    return Machine(time.process_time(), resident_bytes(), 0 if gpu is None else cuda.memory(gpu)[0])


def _limits(settings: Settings, inflight: int) -> Limits:
    """`inflight`: the bytes that all bodies together may hold, which also limits one body."""
    return Limits(
        body=min(int(settings.max_body_mib * MIB), inflight),
        json=int(settings.max_json_mib * MIB),
        inflight=inflight,
        body_timeout_s=settings.body_timeout_s,
        connections=settings.max_connections,
        threads=helper_threads(),
    )


def _load(collector: Collector, *given: Any, **options: Any) -> Model:
    with collector.building(), compiling_aside():
        return load_model(*given, **options)


async def _stop(engine: Engine, collector: Collector, served: Served) -> None:
    try:
        await engine.stop(served)
    finally:
        collector.unloaded([served.model.call, *served.model.stages.calls])


async def _load_all(
    registry: Registry, engine: Engine, lifecycle: Lifecycle, on_ready: Callable[[Registry], None] | None
) -> None:
    await registry.load_all()
    lifecycle.loaded.set()
    if on_ready is not None:
        on_ready(registry)
    engine.profiling.begin()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        log.error("loading models failed", exc_info=task.exception())
