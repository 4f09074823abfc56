"""Every route is documented: summary, description, schemas, and errors as they are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from app.http.errors import install_error_handlers
from app.http.routes import control, openapi, texts, writing

from ..catalog import client

INFERENCE = {
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    "/v1/models/{model}:predict",
    "/v1/models/{model}/versions/{version}:predict",
    "/v2/models/{model}/infer_stream",
    "/v2/models/{model}/versions/{version}/infer_stream",
    "/v2/models/{model}/generate",
    "/v2/models/{model}/versions/{version}/generate",
    "/v2/models/{model}/generate_stream",
    "/v2/models/{model}/versions/{version}/generate_stream",
    "/predict/{model}",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
}
#: Those whose errors are OpenAI's.
OPENAI = {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/rerank"}


def make_app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.include_router(control.router)
    app.include_router(openapi.router)
    app.include_router(texts.router)
    app.include_router(writing.router)
    install_error_handlers(app)
    return app


SCHEMA: dict[str, Any] = make_app().openapi()
OPERATIONS = [
    (path, method, operation) for path, methods in SCHEMA["paths"].items() for method, operation in methods.items()
]


def test_the_table_of_routes_is_complete() -> None:
    assert {path for path, methods in SCHEMA["paths"].items() if "post" in methods} == INFERENCE | {
        "/v2/repository/index",
        "/v2/repository/models/{model}/load",
        "/v2/repository/models/{model}/unload",
    }
    versioned = {
        f"/v2/models/{{model}}{v}{s}" for v in ("", "/versions/{version}") for s in ("", "/ready", "/config", "/stats")
    }
    assert {path for path, methods in SCHEMA["paths"].items() if "get" in methods} == versioned | {
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/livez",
        "/readyz",
        "/healthz",
        "/ping",
        "/v2/models",
        "/v2/models/stats",
        "/v1/models",
        "/v1/models/{model}",
        "/metrics",
    }


def test_each_operation_is_documented() -> None:
    for path, method, operation in OPERATIONS:
        assert operation["summary"]
        assert operation["description"]
        assert operation["tags"]
        answer = next(iter(operation["responses"]["200"]["content"].values()))
        assert "schema" in answer
        names = {parameter["name"] for parameter in operation.get("parameters", [])}
        assert ("X-Class" in names) == ("inference" in operation["tags"])
        by_query = path in INFERENCE and not path.startswith("/v2/models")
        queried = {"timeout_ms", "total_timeout_ms", "priority"} if by_query else set()
        assert {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"} == queried
        assert names - {"X-Class"} - queried == {
            part.strip("{}") for part in path.replace(":predict", "").split("/") if part.startswith("{")
        }
        if method == "post":
            assert all("schema" in media for media in operation["requestBody"]["content"].values())


def test_errors_are_documented_as_they_are() -> None:
    for path, _, operation in OPERATIONS:
        assert "422" not in operation["responses"]
        assert "default" in operation["responses"]
        probe = "health" in operation["tags"] or path.endswith("/ready")
        for status, response in operation["responses"].items():
            if status == "200" or (status == "503" and probe):
                continue
            media = response["content"]["application/json"]
            assert list(media["example"]) == ["error"]
            body = "OpenAIErrorBody" if path in OPENAI else "ErrorBody"
            assert media["schema"] == {"$ref": f"#/components/schemas/{body}"}
        if path in INFERENCE:
            assert {"400", "404", "413", "415", "429", "500", "503", "504"} <= set(operation["responses"])


def test_every_reference_resolves() -> None:
    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            found = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return found + [ref for value in node.values() for ref in references(value)]
        return [ref for item in node for ref in references(item)] if isinstance(node, list) else []

    names = {ref.removeprefix("#/components/schemas/") for ref in references(SCHEMA)}
    assert names <= set(SCHEMA["components"]["schemas"])


def test_probes_need_no_key() -> None:
    for path, methods in SCHEMA["paths"].items():
        for operation in methods.values():
            assert ("security" in operation) == ("health" not in operation["tags"]), path


async def test_a_documented_route_that_is_reached_says_so() -> None:
    async with client(make_app()) as http:
        for path in sorted(INFERENCE):
            answer = await http.post(path.format(model="echo", version="1"), content=b"anything")
            assert (answer.status_code, list(answer.json())) == (501, ["error"]), path
