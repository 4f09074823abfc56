"""/openapi.json has every path that the server answers, and no other; each is described, and says what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from app.http.errors import install_error_handlers
from app.http.inference_routes import find_route
from app.http.openapi.document import Document
from app.http.routes import control

DOCUMENT = Document(keyed=True).make([])
OPERATIONS = [
    (path, method, one)
    for path, item in DOCUMENT["paths"].items()
    for method, one in item.items()
    if method != "parameters"
]
INFERRING = {path for path, _, one in OPERATIONS if one["tags"] == ["inference"]}


def make_app() -> FastAPI:
    """The routes that are FastAPI's."""
    app = FastAPI(openapi_url=None)
    app.include_router(control.router)
    install_error_handlers(app)
    return app


def routes() -> Iterator[tuple[str, str]]:
    for path, methods in make_app().openapi()["paths"].items():
        yield from ((path, method) for method in methods if method != "head")


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")  # FastAPI's own document, made for the paths alone
def test_the_paths_are_those_that_are_served() -> None:
    documented = {(path, method) for path, method, _ in OPERATIONS}
    assert documented - {(path, "post") for path in INFERRING} == set(routes())
    for path in INFERRING:
        found = find_route(path.format(model="m", version="1"), b"")
        assert found is not None, path
        assert found.template == path


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_each_operation_is_described() -> None:
    for path, method, one in OPERATIONS:
        assert all(one[key] for key in ("summary", "description", "tags", "operationId")), path
        answer = next(iter(one["responses"]["200"]["content"].values()))
        assert "schema" in answer
        named = {parameter.get("name") or resolved(parameter)["name"] for parameter in DOCUMENT["paths"][path].get(
            "parameters", [])}  # fmt: skip
        assert named == {name for name in ("model", "version") if f"{{{name}}}" in path}
        asked = {resolved(parameter)["name"] for parameter in one.get("parameters", [])}
        in_query = {"timeout_ms", "total_timeout_ms", "priority"} if not path.startswith("/v2/models") else set()
        assert asked == ({"X-Class"} | in_query if path in INFERRING else set()), path
        assert ("requestBody" in one) == (method == "post")
        route = find_route(path, b"")
        name = "openai_error" if route is not None and route.openai else "error"
        assert one["responses"]["default"] == {"$ref": f"#/components/responses/{name}"}, path
        assert (one.get("security") == []) == (one["tags"] == ["health"]), path


def test_every_reference_resolves() -> None:
    def references(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    used = {one["$ref"] for one in references(DOCUMENT) if resolved(one) is not None}
    there = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "headers", "responses", "parameters")
        for name in DOCUMENT["components"][kind]
    }
    assert used == there
