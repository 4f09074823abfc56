"""/openapi.json is valid, has every path that is served and no other, and its examples are bodies that work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from app.contract import SampleRow
from app.http.errors import install_error_handlers
from app.http.inference_routes import find_route
from app.http.openapi.document import Document
from app.http.paths import has_openai_form
from app.http.routes import control
from app.models.tasks.task_specs import IMAGE, labels_and_scores

from ..catalog import FakeServed, served, spec
from ..echo import LIMITS

Served = FakeServed
#: The OpenAPI Initiative's schema of documents, with plain references in place of dynamic ones.
OPENAPI = json.loads((Path(__file__).parent / "openapi-3.1.json").read_text(encoding="utf-8"))


def tried(one: Served, *arrays: Any, **parameters: Any) -> Served:
    """The model, having been tried with this row."""
    row = SampleRow(
        tuple(np.asarray(values, of.dtype) for values, of in zip(arrays, one.info.client_inputs, strict=True))
    )
    return replace(one, example=replace(row, parameters=parameters))


X, Y = spec("x", "FP32", 4), spec("y", "FP32", 4)
WORDS = np.array([b"it's", b"you"], object)
MODELS: dict[str, Served] = {
    "echo": tried(served("echo", (X,), (Y,)), [0.1, 1, 1, 1]),
    "scalar": tried(served("scalar", (replace(spec("n", "UINT8"), minimum=3),), (spec("m", "INT64"),)), 3),
    "tokens": tried(
        served("tokens", (spec("ids", "INT64", "n"), spec("mask", "BOOL", "n")), (spec("o", "FP16", "n"),)),
        [1, 1], [True, True], k=1,
    ),
    "text": tried(served("text", (spec("t", "BYTES", 2),), (spec("u", "BYTES", 2),), present=lambda row: 1), WORDS),
    "files": tried(served("files", (spec("f", "BYTES", 1),), (Y,)), [b"\x89PNG"]),
    "objects": tried(served("objects", (IMAGE,), labels_and_scores(2)), b"\x89PNG"),
    "table": tried(served("table", (spec("city", "BYTES"), spec("age", "FP64")), (Y,)), b"Bonn", 1),
    "half": tried(served("half", (spec("x", "BF16", 2),), (spec("y", "BF16", 2),)), [1, 1]),
    "large": tried(served("large", (spec("x", "FP32", 3, 64, 64),), (Y,)), np.ones((3, 64, 64))),
}  # fmt: skip


def made(*models: Served, **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(orjson.dumps(Document(**options).make(models)))
    return document


DOCUMENT = made(*MODELS.values(), keyed=True)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        yield from ((path, one) for method, one in item.items() if method != "parameters")


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of a document."""
    if isinstance(node, dict):
        yield node
    if isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from objects(value)


@pytest.mark.parametrize(
    "document",
    [DOCUMENT, made(MODELS["echo"], served("echo", (X,), (Y,), "2"), root_path="/a")],
    ids=["all", "prefix and versions"],
)
def test_the_document_is_valid(document: dict[str, Any]) -> None:
    Draft202012Validator(OPENAPI).validate(document)
    used = [one["schema"] for one in objects(document["paths"]) if isinstance(one.get("schema"), dict)]
    for schema in (*used, *document["components"]["schemas"].values()):
        Draft202012Validator.check_schema(schema)
    # some generators of clients drop what contains an array that does not say of what
    assert all("items" in one for one in objects(document) if one.get("type") == "array")
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    tags = [tag["name"] for tag in document["tags"]]
    assert len(set(tags)) == len(tags)
    assert {tag for _, operation in operations(document) for tag in operation["tags"]} <= set(tags)


def bodies(document: dict[str, Any]) -> Iterator[Any]:
    """Path, schema, example and its rows of each JSON body of a model's own path."""
    for path, operation in operations(document):
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if operation["tags"][0] in MODELS:
            for name, example in media.get("examples", {}).items():
                rows = 2 if "2" in name else 1
                yield pytest.param(path, media["schema"], example["value"], rows, id=f"{path} {name}")


@pytest.mark.parametrize(("path", "schema", "body", "rows"), [*bodies(DOCUMENT)])
def test_examples_are_what_the_codecs_take(path: str, schema: dict[str, Any], body: Any, rows: int) -> None:
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(body)
    route = find_route(path, b"")
    assert route is not None
    model = MODELS[route.model]
    call = route.codec.decode(model, {}, json.dumps(body).encode(), LIMITS)  # type: ignore[arg-type]
    assert call.rows == rows
    for spec_, array, values in zip(model.info.client_inputs, call.arrays, model.example.arrays, strict=True):  # type: ignore[union-attr]
        found = array if isinstance(array, np.ndarray) else np.frombuffer(array, spec_.dtype)
        assert np.array_equal(found.reshape(call.rows, *values.shape), np.stack([values] * call.rows))


def test_which_paths_and_examples_a_model_has() -> None:
    """None of what is large or has no JSON, and no more rows than the queue holds."""
    info = MODELS["echo"].info
    single = replace(MODELS["echo"], info=replace(info, batching=info.batching.model_copy(update={"max_queue": 1})))
    found = {}
    for name, document in (("echo", made(single)), *((name, DOCUMENT) for name in ("scalar", "half", "large"))):
        own = {path: one for path, one in operations(document) if one["tags"] == [name]}
        content = own[f"/predict/{name}"]["requestBody"]["content"]["application/json"]
        found[name] = [path.partition(name)[0] for path in own], list(content.get("examples", {}))
    all_three = ["/v2/models/", "/v1/models/", "/predict/"]
    assert found == {
        "echo": (all_three, ["one row"]),
        "scalar": (all_three, ["one row", "a list of 2"]),
        "half": (["/v2/models/", "/predict/"], []),
        "large": (all_three, []),
    }


def test_the_newest_version_is_documented() -> None:
    second = replace(MODELS["echo"], info=replace(MODELS["echo"].info, version="10"))
    older = replace(MODELS["echo"], info=replace(MODELS["echo"].info, version="9"))
    document = made(second, older, root_path="/a")
    assert document["servers"] == [{"url": "/a"}]
    assert document["tags"][0]["description"].startswith("Version 10 ")
    paths = [path for path in document["paths"] if "/echo" in path]
    assert paths == ["/v2/models/echo/infer", "/v1/models/echo:predict", "/predict/echo"]


def test_the_document_is_made_again_where_other_models_serve() -> None:
    document, echo, text = Document(), MODELS["echo"], MODELS["text"]
    first = document.content([echo])
    assert document.content([echo]) is first
    second = document.content([text])
    assert (b"/predict/echo" in second.body, b"/predict/text" in second.body) == (False, True)
    assert document.content([replace(text, info=replace(text.info))]) is not second  # it was loaded again


def test_keys_are_asked_for_where_they_are_needed() -> None:
    repository = {f"/v2/repository/models/{{model}}/{act}" for act in ("load", "unload")}
    for options, everywhere, own in (
        ({"keyed": True}, True, repository), ({"admin": True}, False, repository), ({}, False, set()),
    ):  # fmt: skip
        document = made(MODELS["echo"], **options)
        assert bool(document.get("security")) == everywhere
        assert {path for path, operation in operations(document) if operation.get("security")} == own
        assert set(document["components"].get("securitySchemes", ())) == ({"key", "bearer"} if own else set())


GENERIC = Document(keyed=True).make([])
METHODS = [(path, method, one) for path, item in GENERIC["paths"].items() for method, one in item.items()]
OPERATIONS = [one for one in METHODS if one[1] != "parameters"]
INFERRING = {path for path, _, one in OPERATIONS if one["tags"] == ["inference"]}


def make_app() -> FastAPI:
    """The routes that are FastAPI's."""
    app = FastAPI(openapi_url=None)
    app.include_router(control.router)
    install_error_handlers(app, Counter())
    return app


@pytest.mark.filterwarnings("ignore:Duplicate Operation ID")  # FastAPI's own document, made for the paths alone
def test_the_paths_are_those_that_are_served() -> None:
    documented = {(path, method) for path, method, _ in OPERATIONS}
    routes = {(path, method) for path, item in make_app().openapi()["paths"].items() for method in item}
    assert documented - {(path, "post") for path in INFERRING} == {one for one in routes if one[1] in ("get", "post")}
    for path in INFERRING:
        found = find_route(path.format(model="m", version="1"), b"")
        assert found is not None, path
        assert found.template == path


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = GENERIC
    for part in node["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_each_operation_is_described() -> None:
    for path, method, one in OPERATIONS:
        assert all(one[key] for key in ("summary", "description", "tags", "operationId")), path
        answer = next(iter(one["responses"]["200"]["content"].values()))
        assert "schema" in answer
        named = {parameter.get("name") or resolved(parameter)["name"] for parameter in GENERIC["paths"][path].get(
            "parameters", [])}  # fmt: skip
        assert named == {name for name in ("model", "version") if f"{{{name}}}" in path}
        asked = {resolved(parameter)["name"] for parameter in one.get("parameters", [])}
        in_query = {"timeout_ms", "total_timeout_ms", "priority"} if not path.startswith("/v2/models") else set()
        assert asked == ({"X-Class"} | in_query if path in INFERRING else set()), path
        assert ("requestBody" in one) == (method == "post")
        name = "openai_error" if has_openai_form(path) else "error"
        assert one["responses"]["default"] == {"$ref": f"#/components/responses/{name}"}, path
        assert (one.get("security") == []) == (one["tags"] == ["health"]), path


def test_every_reference_resolves() -> None:
    used = {one["$ref"] for one in objects(GENERIC) if "$ref" in one and resolved(one) is not None}
    kinds = ("schemas", "headers", "responses", "parameters")
    assert used == {f"#/components/{kind}/{name}" for kind in kinds for name in GENERIC["components"][kind]}
