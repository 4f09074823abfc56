"""A small catalog of models that are only described, and the ASGI client that hands it to an application as state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
from lifespan import with_state
from specs import spec as spec

from app.contract import IndexEntry, Model, ModelInfo, SampleRow, TensorSpec
from app.errors import BadRequest, NotFound, NotReady
from app.http.auth import Auth
from app.http.keys import keys_of

LOCKED = Auth(keys_of("api_key", "sesame", None))
KEY = {b"x-api-key": b"sesame"}


@dataclass
class FakeServed:
    """What the API reads of a served model; nothing runs."""

    info: ModelInfo
    model: Model
    example: SampleRow | None = None

    def statistics(self) -> dict[str, Any]:
        return {"name": self.info.name, "version": self.info.version, "inference_count": 3}


def served(
    name: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    version: str = "1",
    decode: Callable[[str, bytes], Mapping[str, Any]] | None = None,
    present: Callable[[Mapping[str, Any]], Any] | None = None,
) -> FakeServed:
    info = ModelInfo(name, version, "pytorch", inputs, outputs)
    return FakeServed(info, Model(info, lambda *tensors: tensors, decode, present))


@dataclass
class FakeCatalog:
    """Versions by model name; a version that is None is known but not ready."""

    models: dict[str, dict[str, FakeServed | None]]
    entries: list[IndexEntry] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    load_error: Exception | None = None

    @property
    def serving(self) -> FakeCatalog:
        return self

    def __getitem__(self, key: tuple[str, str | None]) -> FakeServed:
        name, version = key
        versions = self._known(name)
        if version is None:
            ready = self.versions(name)
            version = ready[-1] if ready else max(versions)
        if version not in versions:
            raise NotFound(f"model {name!r} has no version {version!r}")
        found = versions[version]
        if found is None:
            raise NotReady(f"model {name!r} version {version} is loading", retry_after_s=7)
        return found

    def versions(self, name: str) -> list[str]:
        return [version for version, found in self._known(name).items() if found is not None]

    def ready(self) -> list[FakeServed]:
        return [self[name, version] for name in self.models for version in self.versions(name)]

    def index(self) -> list[IndexEntry]:
        return self.entries

    async def load(self, name: str) -> None:
        if self.load_error is not None:
            raise self.load_error
        self._known(name)
        if name == "broken":
            raise BadRequest("model.toml: inputs: expected a list")
        self.loaded.append(name)

    async def unload(self, name: str) -> None:
        self._known(name)
        self.unloaded.append(name)

    def _known(self, name: str) -> dict[str, FakeServed | None]:
        if name not in self.models:
            raise NotFound(f"unknown model {name!r}")
        return self.models[name]


def client(app: Any, **state: Any) -> httpx.AsyncClient:
    """A client whose requests carry `state` as the lifespan's state, as a server would."""
    state.setdefault("auth", Auth(control=True))
    state.setdefault("settings", SimpleNamespace(body_timeout_s=5.0))
    transport = httpx.ASGITransport(with_state(app, state), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")
