"""/openapi.json: every route, and those of each served model with its own schemas and examples.

The document is made of FastAPI's description of the routes, and of the models that serve when it is requested: a
loaded model has its paths, an unloaded one has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from app.contract import Catalog, ModelInfo, Served
from app.http.inference_routes import BY_BODY
from app.http.openapi.operations import KINDS, ModelDocs, Node
from app.http.routes.metadata import configuration, metadata, model_list, model_status
from app.http.routes.openapi import REQUEST_ID, TRACEPARENT
from app.http.routes.writing import STEPPING, WRITING
from app.http.static_files import Written, written

_OTHER_TAGS = {
    "inference": "Any model and version, by name.",
    "models": "What is served, and how it is doing.",
    "repository": "Loading and unloading.",
    "server": "",
    "health": "Probes. They need no key.",
}
_Versions = Mapping[str, Sequence[str]]  # ready ones, by model
_SHOWN = 8  # models whose examples stand at the generic paths: the rest have paths of their own


class Document:
    """`base` gives FastAPI's own document; `keyed`: requests need a key; `admin`: loading and unloading does.

    `root_path`: the prefix of an ingress; `traced`: answers name their trace.
    """

    def __init__(
        self,
        base: Callable[[], Mapping[str, Any]],
        *,
        keyed: bool = False,
        admin: bool = False,
        root_path: str = "",
        traced: bool = False,
    ) -> None:
        self._base = base
        self._admin = admin
        self._keyed = keyed
        self._root_path = root_path
        self._traced = traced
        self._known: tuple[list[ModelInfo], Written] | None = None

    def known(self, catalog: Catalog) -> Written | None:
        """The document for the models that serve now, if it is the one that was made last."""
        if self._known is None:
            return None
        before, now = self._known[0], [served.info for served in catalog.ready()]
        same = len(before) == len(now) and all(one is other for one, other in zip(before, now, strict=True))
        return self._known[1] if same else None

    def write(self, served: Sequence[Served]) -> Written:
        """The document for these models. Takes milliseconds for each: not for the event loop."""
        document = written(orjson.dumps(self.make(served)))
        self._known = [one.info for one in served], document
        return document

    def make(self, served: Sequence[Served]) -> Node:
        """The document as plain values, of its own; `served` is in order of name and version."""
        document: Node = orjson.loads(orjson.dumps(self._base()))
        generic = document["paths"]
        models = _by_name(served)
        default = [ModelDocs(versions[-1], generic) for versions in models.values()]
        of_models: dict[str, Node] = {}
        tags: list[Node] = []
        for docs, versions in zip(default, models.values(), strict=True):
            tags.append({"name": docs.tag(None), "description": docs.about()})
            of_models |= docs.paths(None)
            if len(versions) > 1:
                for one in (ModelDocs(version, generic) for version in versions):
                    tags.append({"name": one.tag(one.info.version), "description": one.about()})
                    of_models |= one.paths(one.info.version)
        names = {name: [one.info.version for one in versions] for name, versions in models.items()}
        for path, codec in BY_BODY.items():
            _name_model(generic[path]["post"], next((one.info.name for one in served if codec.takes(one)), None))
        serving = (
            (WRITING, any(one.model.writes for one in served)), (STEPPING, any(one.model.streams for one in served)),
        )  # fmt: skip
        for path in (path for paths, serves in serving if not serves for path in paths):
            del generic[path]
        _add_examples(generic, default, names)
        document["paths"] = {**of_models, **generic}
        document["tags"] = [*tags, *({"name": name, "description": text} for name, text in _OTHER_TAGS.items())]
        if self._root_path:
            document["servers"] = [{"url": self._root_path}]
        if self._traced:
            _trace(document)
        if not self._keyed:
            _open(document, admin=self._admin)
        return document


def _by_name(served: Sequence[Served]) -> dict[str, list[Served]]:
    """Versions by model, lowest first: the last is the one that a path without a version means."""
    found: dict[str, list[Served]] = {}
    for one in served:
        found.setdefault(one.info.name, []).append(one)
    return {name: sorted(found[name], key=lambda one: int(one.info.version)) for name in sorted(found)}


def _name_model(operation: Node, model: str | None) -> None:
    """Examples of a route whose body names the model: for one that serves, or none."""
    media = operation["requestBody"]["content"]["application/json"]
    examples = media.pop("examples")
    if model is not None:
        media["examples"] = {name: {**one, "value": {**one["value"], "model": model}} for name, one in examples.items()}


def _add_examples(generic: Mapping[str, Node], models: Sequence[ModelDocs], names: _Versions) -> None:
    """Examples of models that serve, to the generic paths."""
    answers = _answers(models, names)
    choices = {"model": list(names), "version": sorted({version for found in names.values() for version in found})}
    for path, methods in generic.items():
        for operation in methods.values():
            for one in operation.get("parameters", []):
                if shown := choices.get(one["name"]):
                    one["schema"]["examples"] = shown[:_SHOWN]
            if path in answers:
                operation["responses"]["200"]["content"]["application/json"]["example"] = answers[path]
            if path in KINDS:
                bodies = {name: body for docs in models[:_SHOWN] for name, body in docs.bodies(path).items()}
                operation["requestBody"]["content"]["application/json"] |= {"examples": bodies} if bodies else {}


def _answers(models: Sequence[ModelDocs], names: _Versions) -> dict[str, Any]:
    """Examples of answers by path."""
    found: dict[str, Any] = {"/v2/models": {"models": list(names)}, "/v1/models": model_list(list(names))}
    for docs in models[:1]:
        info = docs.info
        ready = {"name": info.name, "ready": True}
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            found[path] = metadata(info, names[info.name])
            found[f"{path}/config"] = configuration(info)
            found[f"{path}/ready"] = ready
        found["/v1/models/{model}"] = model_status(info.name)
        found["/v2/repository/models/{model}/load"] = {"name": info.name, "load": True}
        found["/v2/repository/models/{model}/unload"] = {"name": info.name, "unload": True}
    index = [
        {"name": name, "version": version, "state": "READY", "reason": ""}
        for name, versions in names.items()
        for version in versions
    ]
    return {**found, "/v2/repository/index": index}


def _trace(document: Node) -> None:
    """Name the header of a trace beside that of the request's id: answers have both or neither."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for answer in operation["responses"].values():
                if REQUEST_ID in answer.get("headers", {}):
                    answer["headers"] = {**answer["headers"], **TRACEPARENT}


def _open(document: Node, *, admin: bool) -> None:
    """Remove what only servers with a key need; `admin`: with a key for loading and unloading alone."""
    if not admin:
        document.get("components", {}).pop("securitySchemes", None)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if not (admin and path.startswith("/v2/repository/models/")):
                operation.pop("security", None)
