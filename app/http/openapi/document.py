"""/openapi.json: every path, and those of each served model with requests that work.

A loaded model has its paths from the next request for the document on, an unloaded one has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from app import __version__
from app.contract import Catalog, ModelInfo, Served, TensorSpec
from app.http import examples
from app.http.openapi.components import ABOUT, COMPONENTS, KEYS, SCHEMES, TAGS
from app.http.openapi.control_paths import GET, POST, PROBES, REPOSITORY
from app.http.openapi.inference_paths import FRIENDLY, INFERENCE, V1, V2
from app.http.openapi.words import Node, named, ref
from app.http.static_files import Written, written

_FEW = 512  # values of a row up to which examples have more than one


class Document:
    """`keyed`: requests need a key; `admin`: loading and unloading does. `root_path`: the prefix of an ingress."""

    def __init__(self, *, keyed: bool = False, admin: bool = False, root_path: str = "") -> None:
        self._keyed = keyed
        self._admin = admin
        self._root_path = root_path
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
        """The document as plain values; `served` is in order of name and version."""
        newest = {one.info.name: one for one in sorted(served, key=lambda one: int(one.info.version))}
        models: dict[str, Node] = {}
        for name in sorted(newest):
            models |= _of_model(newest[name])
        tags = [{"name": name, "description": _about(newest[name].info)} for name in sorted(newest)]
        document: Node = {
            "openapi": "3.1.0",
            "info": {"title": "Starling", "version": __version__, "description": ABOUT},
            "paths": models | _any_model(list(newest)),
            "tags": [*tags, *({"name": name, "description": text} for name, text in TAGS.items())],
            "components": COMPONENTS,
        }
        if self._root_path:
            document["servers"] = [{"url": self._root_path}]
        if self._keyed:
            document["security"] = KEYS
        if self._keyed or self._admin:
            document["components"] = {**COMPONENTS, "securitySchemes": SCHEMES}
            for path in (path for path in POST if path.startswith(REPOSITORY)):
                document["paths"][path]["post"]["security"] = KEYS
        return document


def _any_model(names: list[str]) -> dict[str, Node]:
    """The paths that hold for any model, with and without a version. `names`: of those that serve."""
    methods = {"get": GET | PROBES, "post": INFERENCE | POST}
    found: dict[str, Node] = {}
    for method, paths in methods.items():
        for path, one in paths.items():
            found[path] = {method: {**one}}
            if "{model}" in path:
                model = {**COMPONENTS["parameters"]["model"], "schema": {"type": "string", "examples": names}}
                found[path]["parameters"] = [model]
            if path.startswith("/v2/models/{model}") or path == V1:
                versioned = {**one, "operationId": f"{one['operationId']}_of_version"}
                parameters = [*found[path]["parameters"], ref("parameters", "version")]
                found[with_version(path)] = {method: versioned, "parameters": parameters}
    return found


def with_version(path: str) -> str:
    """The path of one version of a model."""
    return path.replace("{model}", "{model}/versions/{version}")


def _of_model(served: Served) -> dict[str, Node]:
    """The paths of one model, whose requests have examples that work."""
    info = served.info
    kinds = (V2, V1, FRIENDLY) if examples.in_json(info) else (V2, FRIENDLY)  # V1 is JSON alone
    bodies = _bodies(served)
    found: dict[str, Node] = {}
    for path in kinds:
        generic = INFERENCE[path]
        content: dict[str, Any] = {**generic["requestBody"]["content"]}
        if path in bodies:
            content["application/json"] = {**content["application/json"], "examples": named(bodies[path])}
        post = {
            **generic,
            "tags": [info.name],
            "summary": f"{generic['summary']}: {info.name}",
            "operationId": f"{generic['operationId']}:{info.name}",  # names of models hold no colon
            "requestBody": {"required": True, "content": content},
        }
        found[path.replace("{model}", info.name)] = {"post": post}
    return found


def _bodies(served: Served) -> dict[str, dict[str, Any]]:
    """Named examples by path; none of a model whose row cannot be shown."""
    values = examples.example_values(served)
    if values is None or served.example is None:
        return {}
    one = {
        V2: {"1 row": examples.v2_example(served, values)},
        V1: {"1 row": examples.v1_example(values)},
        FRIENDLY: {"one row": examples.friendly_example(values)},
    }
    if sum(array.size for array in served.example.arrays) <= _FEW and served.info.batching.max_queue > 1:
        one[V2]["2 rows"] = examples.v2_example(served, values, 2)
        one[V1]["2 rows"] = examples.v1_example(values, 2)
        one[FRIENDLY]["a list of 2"] = examples.friendly_example(values, 2)
    return one


def _about(info: ModelInfo) -> str:
    """The model in Markdown."""
    return (
        f"Version {info.version} ({info.platform}). In: {_shapes(info.client_inputs)}. Out: {_shapes(info.outputs)}. "
        f"At most {info.batching.max_queue} rows in a request; batches of up to {info.batching.max_batch}."
    )


def _shapes(specs: Sequence[TensorSpec]) -> str:
    """`x` FP32 [rows, 4]."""
    return ", ".join(f"`{spec.name}` {spec.datatype} [{', '.join(['rows', *spec.axes_shown()])}]" for spec in specs)
