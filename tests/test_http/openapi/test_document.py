"""/openapi.json is valid OpenAPI 3.1, follows what serves, and its examples are bodies that the codecs take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from jsonschema import Draft202012Validator

from app.contract import Array, Batching, SampleRow
from app.http.codecs.friendly import decode_friendly
from app.http.codecs.present import present_rows
from app.http.codecs.v1 import encode_v1
from app.http.inference_routes import find_route
from app.http.openapi.document import Document
from app.http.openapi.operations import KINDS
from app.http.openapi.schemas import READABLE
from app.models.tasks.answers import Labels
from app.models.tasks.faces import IMAGE, TEXT, labels_and_scores
from app.models.tasks.faces import tokens as names

from ..catalog import FakeCatalog, FakeServed, served, spec
from ..routes.test_openapi import make_app
from ..test_inference import LIMITS

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
    "image": tried(
        served("image", (spec("i", "FP32", 2, 2),), (spec("s", "FP32", 3, labels=("a", "b", "c")),),
               decode=lambda media, data: {}),
        np.ones((2, 2)),
    ),
    "tokens": tried(
        served("tokens", (spec("ids", "INT64", "n"), spec("mask", "BOOL", "n")), (spec("o", "FP16", "n"),)),
        [1, 1], [True, True], k=1,
    ),
    "text": tried(served("text", (spec("t", "BYTES", 2),), (spec("u", "BYTES", 2),), present=lambda row: 1), WORDS),
    "mood": tried(
        served("mood", (TEXT,), labels_and_scores(3), present=Labels(["a", "b", "c"], 3).present), b"a fine day",
    ),
    "objects": tried(served("objects", (IMAGE,), labels_and_scores(2)), b"\x89PNG"),
    "names": tried(served("names", (TEXT,), names()), b"anna"),
    "table": tried(
        served("table", (spec("city", "BYTES", categories=(b"Bonn",)), spec("age", "FP64", missing=True)), (Y,)),
        b"Bonn", 1,
    ),
    "half": tried(served("half", (spec("x", "BF16", 2),), (spec("y", "BF16", 2),)), [1, 1]),
    "large": tried(served("large", (spec("x", "FP32", 3, 64, 64),), (Y,)), np.ones((3, 64, 64))),
    "odd.name-1": served("odd.name-1", (X,), (Y,)),
}  # fmt: skip
BASE = make_app().openapi


def made(*models: Served, **options: Any) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(orjson.dumps(Document(BASE, **options).make(models)))
    return document


DOCUMENT = made(*MODELS.values(), keyed=True)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema that stands in a document."""
    if isinstance(node, dict):
        if isinstance(node.get("schema"), dict):
            yield node["schema"]
        for value in node.values():
            yield from schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from schemas(value)


@pytest.mark.parametrize(
    "document",
    [DOCUMENT, made(), made(*MODELS.values(), root_path="/a"), made(MODELS["echo"], served("echo", (X,), (Y,), "2"))],
    ids=["all", "none", "prefix", "versions"],
)
def test_the_document_is_valid(document: dict[str, Any]) -> None:
    Draft202012Validator(OPENAPI).validate(document)
    for schema in (*schemas(document["paths"]), *document["components"]["schemas"].values()):
        Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    tags = [tag["name"] for tag in document["tags"]]
    assert len(set(tags)) == len(tags)
    assert {tag for _, operation in operations(document) for tag in operation["tags"]} <= set(tags)


def test_the_validator_finds_what_is_wrong() -> None:
    wrong = {**DOCUMENT, "paths": {**DOCUMENT["paths"], "nowhere": {}}}
    assert list(Draft202012Validator(OPENAPI).iter_errors(wrong))


def bodies(document: dict[str, Any]) -> Iterator[Any]:
    """Path, JSON schema and example of each JSON body of a model's own path."""
    for path, operation in operations(document):
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "{" not in path and operation["tags"][0] in MODELS:
            for name, example in media.get("examples", {}).items():
                yield pytest.param(path, media["schema"], example["value"], id=f"{path} {name}")


def decoded(path: str, body: Any) -> Any:
    route = find_route(path, b"")
    assert route is not None
    return route.codec.decode(MODELS[route.model], {}, json.dumps(body).encode(), LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("path", "schema", "body"), [*bodies(DOCUMENT)])
def test_examples_are_what_the_codecs_take(path: str, schema: dict[str, Any], body: Any) -> None:
    Draft202012Validator(schema).validate(body)
    call = decoded(path, body)
    model = next(one for name, one in MODELS.items() if f"/{name}" in path)
    for spec_, array, values in zip(model.info.client_inputs, call.arrays, model.example.arrays, strict=True):  # type: ignore[union-attr]
        found = array if isinstance(array, np.ndarray) else np.frombuffer(array, spec_.dtype)
        assert np.array_equal(found.reshape(call.rows, *values.shape), np.stack([values] * call.rows))


def test_which_paths_and_examples_a_model_has() -> None:
    found = {}
    for name, one in MODELS.items():
        paths = [path for path, operation in operations(DOCUMENT) if operation["tags"] == [name]]
        named = f"/predict/{name}"
        content = DOCUMENT["paths"][named]["post"]["requestBody"]["content"]
        shown = list(content.get("application/json", {}).get("examples", {}))
        found[name] = [path.partition(one.info.name)[0] for path in paths], list(content), shown
    all_three = ["/v2/models/", "/v1/models/", "/predict/"]
    plain = ["application/json", "application/x-npy", "multipart/form-data"]
    images = ["application/json", "image/png", "image/jpeg", "text/plain", *plain[1:]]
    both = ["one row", "a list of 2"]
    assert found == {
        "echo": (all_three, plain, both),
        "scalar": (all_three, plain, both),
        "image": (all_three, images, both),
        "tokens": (all_three, [plain[0], plain[2]], both),
        "text": (all_three, plain, both),
        "mood": (all_three, [plain[0], "text/plain", *plain[1:]], both),
        "objects": (all_three, [plain[0], "image/png", "image/jpeg", *plain[1:]], both),
        "names": (all_three, [plain[0], "text/plain", *plain[1:]], both),
        "table": (all_three, [plain[0], plain[2]], both),
        "half": (["/v2/models/", "/predict/"], plain[1:], []),
        "large": (all_three, plain, []),
        "odd.name-1": (all_three, plain, []),
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("echo", [[1, 2, 3]]), ("echo", [["a", 1, 2, 3]]), ("scalar", [2]), ("scalar", [256]), ("scalar", [1.5]),
        ("tokens", [{"ids": [1]}]), ("tokens", [{"ids": [], "mask": []}]), ("text", [["a"]]), ("echo", []),
    ],
)  # fmt: skip
def test_schemas_refuse_what_the_server_refuses(name: str, wrong: Any) -> None:
    media = DOCUMENT["paths"][f"/v1/models/{name}:predict"]["post"]["requestBody"]["content"]["application/json"]
    assert list(Draft202012Validator(media["schema"]).iter_errors({"instances": wrong}))


@pytest.mark.parametrize("name", ["echo", "scalar", "image", "tokens", "text", "mood", "objects"])
def test_answers_are_as_documented(name: str) -> None:
    """Answers of made-up outputs, encoded by the codecs, fit the schemas of V1 and the friendly route."""
    model = MODELS[name]
    assert model.example is not None
    lengths = {"n": 2}
    outputs: list[Array] = []
    for one in model.info.outputs:
        shape = [lengths.get(axis, length) for axis, length in zip(one.axes, one.shape, strict=True)]
        outputs.append(np.full((2, *shape), b"a" if one.datatype == "BYTES" else 1, one.dtype))
    paths = DOCUMENT["paths"]
    body = DOCUMENT["paths"][f"/predict/{name}"]["post"]["requestBody"]["content"]["application/json"]["examples"]
    call = decode_friendly(model, None, json.dumps(body["a list of 2"]["value"]).encode())  # type: ignore[arg-type]
    friendly = present_rows(model, outputs, call)  # type: ignore[arg-type]
    v1 = encode_v1(model, outputs)  # type: ignore[arg-type]
    for path, answer in ((f"/predict/{name}", friendly), (f"/v1/models/{name}:predict", v1)):
        schema = paths[path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        plain = orjson.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
        Draft202012Validator(schema).validate(plain)


def test_a_face_is_documented_and_not_the_tensors_behind_it() -> None:
    """Bytes in, as text or base64; labels and scores out."""
    paths = DOCUMENT["paths"]
    asked = paths["/v2/models/objects/infer"]["post"]["requestBody"]["content"]["application/json"]
    (tensor,) = asked["examples"]["1 row"]["value"]["inputs"]
    assert tensor == {"name": "image", "shape": [1], "datatype": "BYTES", "data": [{"b64": "iVBORw=="}]}
    answer = paths["/v2/models/objects/infer"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    labels, scores = answer["properties"]["outputs"]["items"]["oneOf"]
    found = [(one["title"], one["properties"]["datatype"]["const"]) for one in (labels, scores)]
    assert found == [("labels", "BYTES"), ("scores", "FP32")]
    Draft202012Validator(answer).validate(
        {
            "model_name": "objects", "model_version": "1",
            "outputs": [
                {"name": "labels", "datatype": "BYTES", "shape": [1, 2], "data": ["b", "a"]},
                {"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.9, 0.1]},
            ],
        }
    )  # fmt: skip
    assert paths["/predict/mood"]["post"]["requestBody"]["content"]["text/plain"]["example"] == "a fine day"


@pytest.mark.parametrize("traced", [True, False])
def test_headers_of_answers_are_named(traced: bool) -> None:
    document = made(MODELS["echo"], traced=traced)
    Draft202012Validator(OPENAPI).validate(document)
    for path in ("/v2/models/echo/infer", "/v1/models/echo:predict", "/predict/echo", *KINDS):
        answers = document["paths"][path]["post"]["responses"]
        trace = {"traceparent"} if traced else set()
        assert set(answers["200"]["headers"]) == {"X-Request-ID", "Server-Timing", "X-Batch-Size"} | trace
        assert set(answers["429"]["headers"]) == {"X-Request-ID", "Retry-After"} | trace
        assert "headers" not in answers["401"]
    assert "headers" not in document["paths"]["/v2/models"]["get"]["responses"]["200"]


def test_large_rows_have_no_example_and_no_lengths() -> None:
    """A tool would make an example of so many values."""
    model = MODELS["large"]
    assert sum(array.size for array in model.example.arrays) > READABLE  # type: ignore[union-attr]
    text = json.dumps(DOCUMENT["paths"]["/predict/large"])
    assert 'minItems": 64' not in text
    assert "[3, 64, 64]" in text
    assert len(text) < 10_000


def test_versions_have_paths_where_there_are_several() -> None:
    first, second = MODELS["echo"], replace(MODELS["echo"], info=replace(MODELS["echo"].info, version="10"))
    older = replace(first, info=replace(first.info, version="9"))
    paths = made(older, second)["paths"]
    tagged = {path: methods["post"]["tags"] for path, methods in paths.items() if "/echo" in path}
    assert tagged == {
        "/v2/models/echo/infer": ["echo"],
        "/v1/models/echo:predict": ["echo"],
        "/predict/echo": ["echo"],
        "/v2/models/echo/versions/9/infer": ["echo, version 9"],
        "/v1/models/echo/versions/9:predict": ["echo, version 9"],
        "/v1/models/echo/versions/10:predict": ["echo, version 10"],
        "/v2/models/echo/versions/10/infer": ["echo, version 10"],
    }
    assert made(older, second)["tags"][0]["description"].startswith("Version 10 ")


def test_the_document_follows_what_serves() -> None:
    document = Document(BASE)
    one, two = FakeCatalog({"echo": {"1": MODELS["echo"]}}), FakeCatalog({"text": {"1": MODELS["text"]}})
    assert document.known(one) is None  # type: ignore[arg-type]
    first = document.write(one.ready())  # type: ignore[arg-type]
    assert document.known(one) is first  # type: ignore[arg-type]
    assert document.known(two) is None  # type: ignore[arg-type]
    second = document.write(two.ready())  # type: ignore[arg-type]
    assert first.etag != second.etag
    assert (b"/predict/echo" in second.body, b"/predict/text" in second.body) == (False, True)
    reloaded = FakeCatalog({"text": {"1": replace(MODELS["text"], info=replace(MODELS["text"].info))}})
    assert document.known(reloaded) is None  # type: ignore[arg-type]


def test_examples_name_what_is_served_and_nothing_else() -> None:
    text = json.dumps(made(MODELS["text"]))
    assert "echo" not in text
    assert "digits" not in text
    shown = made(MODELS["text"])["paths"]["/v2/models/{model}"]["get"]
    answer = shown["responses"]["200"]["content"]["application/json"]["example"]
    assert (answer["name"], answer["inputs"]) == ("text", [{"name": "t", "datatype": "BYTES", "shape": [-1, 2]}])
    assert shown["parameters"][0]["schema"]["examples"] == ["text"]
    for path in KINDS:
        asked = made(MODELS["text"])["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert all(name.startswith("text, ") for name in asked["examples"])
        for example in asked["examples"].values():
            Draft202012Validator(asked["schema"]).validate(example["value"])
    none = made()
    assert "echo" not in json.dumps(none)
    assert "examples" not in none["paths"]["/predict/{model}"]["post"]["requestBody"]["content"]["application/json"]


def test_a_key_is_documented_where_one_is_needed() -> None:
    secured = {path for path, operation in operations(DOCUMENT) if operation.get("security")}
    assert {path for path, operation in operations(DOCUMENT) if "health" in operation["tags"]}.isdisjoint(secured)
    assert {"/predict/echo", "/v2/models/{model}"} <= secured
    assert set(DOCUMENT["components"]["securitySchemes"]) == {"APIKeyHeader", "HTTPBearer"}
    admin = {path for path, operation in operations(made(admin=True)) if operation.get("security")}
    assert admin == {"/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"}
    free = made(MODELS["echo"])
    assert not any("security" in operation for _, operation in operations(free))
    assert "securitySchemes" not in free["components"]


def test_the_prefix_is_where_the_server_is() -> None:
    assert made(root_path="/a/b")["servers"] == [{"url": "/a/b"}]
    assert "servers" not in made()


def test_rows_of_a_request_are_bounded_by_the_queue() -> None:
    info = replace(MODELS["echo"].info, batching=Batching(max_queue=3))
    document = made(replace(MODELS["echo"], info=info))
    schema = document["paths"]["/v1/models/echo:predict"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    rows = [[1, 1, 1, 1]]
    Draft202012Validator(schema).validate({"instances": rows * 3})
    assert list(Draft202012Validator(schema).iter_errors({"instances": rows * 4}))
