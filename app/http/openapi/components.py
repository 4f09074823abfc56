"""What the paths of /openapi.json share: parameters, headers, errors, and the schemas of bodies.

Bodies that others have defined (OpenAI, Cohere, Triton's configuration) are shown by example and not described again.
"""

from __future__ import annotations

from app.http.codecs.v2_decode import MAX_PRIORITY
from app.http.openapi.words import ANY, INTEGER, TEXT, Node, json_body, list_of, of_fields, ref, said, schema

ABOUT = """DNN inference over HTTP: the Open Inference Protocol (V2), TensorFlow Serving's V1, and a friendly route.

| status | the request was not answered because |
|---|---|
| 400 | a field is wrong; the message names it, what was expected and what came |
| 401 | a key is set, and the request has none or a wrong one |
| 403 | loading and unloading models is off, or the key does not allow what is asked for |
| 404 | the model, the version or the route is unknown |
| 408 | the body did not arrive in time |
| 411, 413, 415 | the body has no length, is over the limit, or is of an unknown type or encoding |
| 429 | the queue is full, or the deadline cannot be met; with `Retry-After` |
| 500 | it failed in the model |
| 503 | the server is starting or draining, or the model loads or has failed; with `Retry-After` |
| 504 | the deadline passed before the work was done |
"""

TAGS = {
    "inference": "Any model and version, by name.",
    "models": "What is served, and how it is doing.",
    "repository": "Loading and unloading.",
    "server": "",
    "health": "Probes. They need no key.",
}

#: For the Authorize button of /docs; keys are checked in front of FastAPI, see `app/http/access.py`.
SCHEMES: dict[str, Node] = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same key, as a bearer token."},
}
KEYS: list[Node] = [{name: []} for name in SCHEMES]

_TENSOR = {"name": TEXT, "datatype": TEXT, "shape": list_of(INTEGER)}
_HEADERS = {
    "X-Request-ID": {"description": "The request's own, or one that the server made.", "schema": TEXT},
    "Retry-After": {"description": "Whole seconds, at least 1.", "schema": {"type": "integer", "minimum": 1}},
    "Server-Timing": {
        "description": "Milliseconds in the queue, in the model, and of the whole request.",
        "schema": {"type": "string", "examples": ["queue;dur=0.21, compute;dur=1.32, total;dur=1.71"]},
    },
    "X-Batch-Size": {"description": "Rows of the batch that it ran in.", "schema": {"type": "integer", "minimum": 1}},
}


def _in_path(name: str, description: str) -> Node:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": TEXT}


def _in_query(name: str, description: str, of: Node) -> Node:
    return {"name": name, "in": "query", "description": description, "schema": {"minimum": 0, **of}}


def _error(description: str, body: Node, example: object) -> Node:
    headers = {name: ref("headers", name) for name in ("X-Request-ID", "Retry-After")}
    return {"description": description, "headers": headers, "content": json_body(body, {"error": example})}


COMPONENTS: Node = {
    "parameters": {
        "model": _in_path("model", "Name of the model."),
        "version": _in_path("version", "Version of the model; without one the highest that is ready."),
        "class": {
            "name": "X-Class", "in": "header", "schema": {"enum": ["realtime", "best_effort"]},
            "description": "The call's service class. Absent: the model's `default_class`.",
        },
        "timeout_ms": _in_query(
            "timeout_ms", "Milliseconds from arrival to the deadline; 0: the model's default.", {"type": "number"}
        ),
        "total_timeout_ms": _in_query(
            "total_timeout_ms", "Of a stream, whose `timeout_ms` is until it begins: until it has ended.",
            {"type": "number"},
        ),
        "priority": _in_query(
            "priority", "Within its class; 1 is the highest, 0 the model's default.",
            {"type": "integer", "maximum": MAX_PRIORITY},
        ),
    },
    "headers": _HEADERS,
    "responses": {
        "error": _error(
            "An error, by its status.", schema("Error"), "inputs[0] (x).shape: expected shape [rows, 4], got [1, 5]"
        ),
        "openai_error": _error(
            "An error, as OpenAI's clients read it.", ANY,
            {"message": "input: missing; expected a text", "type": "invalid_request_error", "param": "input",
             "code": "bad_request"},
        ),
    },
    "schemas": {
        "Error": of_fields(
            ("error",), error=said("string", "What was wrong: the field, what was expected and what came.")
        ),
        "InferRequest": of_fields(
            ("inputs",), inputs=list_of(schema("InferInput")),
            id=said(["string", "null"], "Echoed in the answer."),
            parameters=said(
                ["object", "null"],
                "class (realtime or best_effort; wins over X-Class), priority (0 is the model's default, 1 the "
                "highest), timeout (microseconds from arrival), binary_data_output; others reach the model.",
            ),
            outputs=said(["array", "null"], "All of the model's outputs where absent.")
            | {"items": of_fields(("name",), name=TEXT, parameters=said("object", "binary_data: true for raw bytes."))},
        ),
        "InferInput": of_fields(
            ("name", "shape", "datatype"), **_TENSOR,
            parameters=said("object", "binary_data_size: the tensor follows the JSON."),
            data=said("array", "Row-major, nested or flat; absent where the tensor is binary."),
        ),
        "InferResponse": of_fields(
            ("model_name", "model_version", "outputs"), model_name=TEXT, model_version=TEXT, id=TEXT, parameters=ANY,
            outputs=list_of(of_fields(tuple(_TENSOR), **_TENSOR, parameters=ANY, data={"type": "array"})),
        ),
        "GenerateRequest": of_fields(
            ("text_input",), text_input=TEXT, id=said(["string", "null"], "Echoed in the answer."),
            parameters=said(
                ["object", "null"],
                "Of the model, such as max_new_tokens and temperature; class, priority and timeout as of V2's.",
            ),
        ),
        "GenerateResponse": of_fields(
            ("model_name", "model_version", "text_output", "finish_reason", "prompt_tokens", "generated_tokens"),
            model_name=TEXT, model_version=TEXT, text_output=TEXT, id=TEXT, prompt_tokens=INTEGER,
            generated_tokens=INTEGER,
            finish_reason=said("string", "stop: the text has ended; length: it has as many tokens as it may."),
        ),
        "Metadata": of_fields(
            ("name", "versions", "platform", "inputs", "outputs"), name=TEXT, versions=list_of(TEXT), platform=TEXT,
            inputs=list_of(schema("Tensor")), outputs=list_of(schema("Tensor")),
        ),
        "Tensor": of_fields(tuple(_TENSOR), **_TENSOR)
        | {"description": "The batch dimension leads the shape; -1 is variable."},
        "ModelReady": of_fields(("name", "ready"), name=TEXT, ready={"type": "boolean"}),
        "Statistics": of_fields(("model_stats",), model_stats=list_of(ANY)),
        "IndexLine": of_fields(
            ("name", "version", "state", "reason"), name=TEXT, version=TEXT,
            state=said(
                "string",
                "READY, LOADING, UNLOADING or UNAVAILABLE; UNTRIED serves, but has raised on every made-up row and has "
                "answered no request yet.",
            ),
            reason=said("string", "Why it is unavailable or untried, or why it could not be loaded again."),
        ),
        "Probe": of_fields(
            (), live={"type": "boolean"}, ready={"type": "boolean"},
            reason=said("string", "Why it is not; absent where it is."),
            models={**list_of(schema("IndexLine")), "description": "With ?verbose: every model, as in the index."},
        ),
    },
}  # fmt: skip
