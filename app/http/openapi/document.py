"""/openapi.json: every path, and those of each served model with requests that work; and /docs, the page that shows it.

What is said of each path is in the file `openapi.json` beside this one, itself an OpenAPI document. Here it gets paths
with a version, other names of one path, and the paths of the models that are loaded at the time of the request.

All files of the page are in the package: its content security policy forbids other hosts. `static/swagger-ui/` is
Swagger UI as published, with its licence. Links are relative, so they work under any prefix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app import __version__
from app.contract import ModelInfo, Served, TensorSpec
from app.http import examples
from app.http.paths import has_openai_form
from app.http.routes.control import catalog_of
from app.http.routes.probes import LIVE_PATHS, READY_PATHS
from app.http.static_files import ASK_AGAIN, KEEP, StaticContent, add_file, respond_static, static_content
from app.values.tensors import v2_request

Node = dict[str, Any]

_FILE = Path(__file__).with_name("openapi.json")
_V2, _V1, _FRIENDLY = "/v2/models/{model}/infer", "/v1/models/{model}:predict", "/predict/{model}"
_REPOSITORY = "/v2/repository/models/"
#: Other paths that are answered as one in the file.
_OTHER_NAMES = {
    LIVE_PATHS[0]: LIVE_PATHS[1:], READY_PATHS[0]: READY_PATHS[1:], "/v1/rerank": ("/v2/rerank", "/rerank"),
}  # fmt: skip
_STATIC = Path(__file__).parent / "static"
#: The files under /docs/. Nothing else of the folder is served.
_FILES = ("docs.js", "swagger-ui/swagger-ui-bundle.js", "swagger-ui/swagger-ui.css", "swagger-ui/favicon-32x32.png")
#: These need no key: a browser that opens a page has none to send.
OPEN_PATHS = frozenset({"/docs", "/docs/", "/openapi.json", *(f"/docs/{Path(path).name}" for path in _FILES)})
#: Swagger UI has inline styles, and pictures and fonts as data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_FEW = 512  # values of a row up to which examples have more than one


@dataclass(kw_only=True)
class Document:
    """`keyed`: requests need a key; `admin`: loading and unloading does. `root_path`: the prefix of an ingress."""

    keyed: bool = False
    admin: bool = False
    root_path: str = ""
    _known: tuple[list[ModelInfo], StaticContent] | None = field(default=None, init=False)

    def content(self, served: Sequence[Served]) -> StaticContent:
        """The document for these models. To make it takes milliseconds for each: not for the event loop."""
        infos = [one.info for one in served]
        if self._known is None or list(map(id, self._known[0])) != list(map(id, infos)):
            self._known = infos, static_content(orjson.dumps(self.make(served)))
        return self._known[1]

    def make(self, served: Sequence[Served]) -> Node:
        """The document as plain values; `served` is in order of name and version."""
        document: Node = orjson.loads(_FILE.read_bytes())
        newest = {one.info.name: one for one in sorted(served, key=lambda one: int(one.info.version))}
        names = sorted(newest)
        any_model = {path: item for path, written in document["paths"].items() for path, item in _items(path, written)}
        document["paths"] = {path: item for name in names for path, item in _of_model(newest[name], any_model)}
        document["paths"] |= any_model
        document["info"]["version"] = __version__
        document["tags"][:0] = [{"name": name, "description": _about(newest[name].info)} for name in names]
        document["components"]["parameters"]["model"]["schema"]["examples"] = names
        if self.root_path:
            document["servers"] = [{"url": self.root_path}]
        keys: list[Node] = [{name: []} for name in document["components"]["securitySchemes"]]
        if self.keyed:
            document["security"] = keys
        if self.keyed or self.admin:
            for path in (path for path in any_model if path.startswith(_REPOSITORY)):
                any_model[path]["post"]["security"] = keys
        else:
            del document["components"]["securitySchemes"]
        return document


def _items(path: str, item: Node) -> Iterator[tuple[str, Node]]:
    """A path of the file, its other names, and the same of one version."""
    yield path, item
    method, operation = next(iter(item.items()))
    for name in _OTHER_NAMES.get(path, ()):
        error = _ref("responses", "openai_error" if has_openai_form(name) else "error")
        responses = {**operation["responses"], "default": error}
        named = {**operation, "operationId": name.strip("/").replace("/", "_"), "responses": responses}
        yield name, {method: named}
    if path.startswith("/v2/models/{model}") or path in (_V1, _FRIENDLY):
        versioned = {**operation, "operationId": f"{operation['operationId']}_of_version"}
        parameters = [*item["parameters"], _ref("parameters", "version")]
        yield path.replace("{model}", "{model}/versions/{version}"), {method: versioned, "parameters": parameters}


def _ref(kind: str, name: str) -> Node:
    return {"$ref": f"#/components/{kind}/{name}"}


def _of_model(served: Served, any_model: Mapping[str, Node]) -> Iterator[tuple[str, Node]]:
    """The paths of one model, whose requests have examples that work."""
    info = served.info
    kinds = (_V2, _V1, _FRIENDLY) if examples.in_json(info) else (_V2, _FRIENDLY)  # V1 is JSON alone
    bodies = _bodies(served)
    for path in kinds:
        generic = any_model[path]["post"]
        content: dict[str, Any] = {**generic["requestBody"]["content"]}
        if path in bodies:
            shown = {name: {"value": value} for name, value in bodies[path].items()}
            content["application/json"] = {**content["application/json"], "examples": shown}
        post = {
            **generic,
            "tags": [info.name],
            "summary": f"{generic['summary']}: {info.name}",
            "operationId": f"{generic['operationId']}:{info.name}",  # names of models hold no colon
            "requestBody": {"required": True, "content": content},
        }
        yield path.replace("{model}", info.name), {"post": post}


def _bodies(served: Served) -> dict[str, dict[str, Any]]:
    """Named examples by path; none of a model whose row cannot be shown."""
    values, row, specs = examples.example_values(served), served.example, served.info.client_inputs
    if values is None or row is None:
        return {}
    one = {
        _V2: {"1 row": v2_request(specs, row, values)},
        _V1: {"1 row": examples.v1_example(values)},
        _FRIENDLY: {"one row": examples.friendly_example(values)},
    }
    if sum(array.size for array in row.arrays) <= _FEW and served.info.batching.max_queue > 1:
        one[_V2]["2 rows"] = v2_request(specs, row, values, 2)
        one[_V1]["2 rows"] = examples.v1_example(values, 2)
        one[_FRIENDLY]["a list of 2"] = examples.friendly_example(values, 2)
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


def docs_router(document: Document) -> APIRouter:
    """The routes of the page, of its files, and of the document that it shows."""
    router = APIRouter()

    async def openapi(request: Request) -> Response:
        found = await asyncio.to_thread(document.content, list(catalog_of(request).ready()))
        return respond_static(request, found, {"content-type": "application/json", "cache-control": ASK_AGAIN})

    router.add_api_route("/openapi.json", openapi, methods=["GET", "HEAD"], include_in_schema=False)
    add_file(router, "/docs", _STATIC / "docs.html", {"cache-control": ASK_AGAIN, "content-security-policy": _POLICY})
    for path in _FILES:
        add_file(router, f"/docs/{Path(path).name}", _STATIC / path, {"cache-control": KEEP})
    return router
