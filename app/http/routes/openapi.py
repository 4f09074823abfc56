"""The text of /docs and /openapi.json: documented answers, and routes that document the inference path.

`HttpApp` answers inference requests before FastAPI sees them, so the routes here exist only to be documented.
If one is reached, the server was composed wrongly, and the answer is a 501 that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from app.http.codecs.v2_decode import MAX_PRIORITY
from app.http.routes.bodies import (
    ErrorBody,
    InferRequest,
    InferResponse,
    OpenAIErrorBody,
    PredictRequest,
    PredictResponse,
)

#: Only for the Authorize button of /docs: keys are checked in front of FastAPI, see `app/http/access.py`.
API_KEY = [
    Security(APIKeyHeader(name="X-API-Key", auto_error=False, description="The key that the server was started with.")),
    Security(HTTPBearer(auto_error=False, description="The same key, as a bearer token.")),
]


def _x_class(
    x_class: Annotated[
        Literal["realtime", "best_effort"] | None,
        Header(alias="X-Class", description="The call's service class. Absent: the model's `default_class`."),
    ] = None,
) -> None:
    """Only documents: the inference path reads the header itself."""


def asked_in_query(
    timeout_ms: Annotated[
        float, Query(ge=0, description="Milliseconds from arrival to the deadline; 0: the model's default.")
    ] = 0,
    total_timeout_ms: Annotated[
        float, Query(ge=0, description="Of a stream, whose `timeout_ms` is until it begins: until it has ended.")
    ] = 0,
    priority: Annotated[
        int, Query(ge=0, le=MAX_PRIORITY, description="Within its class; 1 is the highest, 0 the model's default.")
    ] = 0,
) -> None:
    """Only documents, as `_x_class` does. V2 has both in its body."""


#: What all requests that infer may carry.
CALLS = [*API_KEY, Depends(_x_class)]

ModelName = Annotated[str, Path(description="Name of the model.")]
Version = Annotated[str, Path(description="Version of the model.")]

_ERRORS: dict[int, tuple[str, str]] = {
    400: ("A field of the request is wrong.", "inputs[0] (x).shape: expected shape [rows, 4], got [1, 5]"),
    401: (
        "A key is set, and the request has none or a wrong one.",
        "an API key is needed: X-API-Key, or Authorization: Bearer",
    ),
    403: (
        "Loading and unloading models is off.",
        "loading and unloading models is off: start the server with --model-control, or with --admin-key",
    ),
    404: ("Unknown model, version or route.", "model 'nmae' is not known; models: name"),
    408: ("The body did not arrive in time.", "the body did not arrive within 30 s"),
    411: ("The body has no length.", "a body is needed: expected a Content-Length header or a chunked body"),
    413: ("The body is over the limit.", "body: expected at most 67108864 bytes, got 70000000"),
    415: ("Unknown content type or encoding.", "Content-Encoding: expected gzip, deflate or identity, got 'br'"),
    429: ("The queue is full, or the deadline cannot be met.", "model 'name': the queue of 1024 rows is full"),
    500: ("This request failed in the model.", "model 'name' failed: ZeroDivisionError: division by zero"),
    503: ("Starting, draining, loading or failed.", "model 'name' version 1 is loading"),
    504: ("The deadline passed before the work was done.", "model 'name': the deadline passed in the queue"),
}
_RETRY_AFTER = {"Retry-After": {"description": "Whole seconds, at least 1.", "schema": {"type": "integer"}}}

REQUEST_ID = "X-Request-ID"
_ID_HEADER = {
    REQUEST_ID: {"description": "The request's own, or one that the server made.", "schema": {"type": "string"}}
}
_TIMES = {
    "Server-Timing": {
        "description": "Milliseconds in the queue, in the model, and of the whole request.",
        "schema": {"type": "string", "examples": ["queue;dur=0.21, compute;dur=1.32, total;dur=1.71"]},
    },
    "X-Batch-Size": {"description": "Rows of the batch that it ran in.", "schema": {"type": "integer", "minimum": 1}},
}
#: Only where spans are recorded, see `docs/document.py`.
TRACEPARENT = {
    "traceparent": {
        "description": "The span of this request, as W3C Trace Context has it.",
        "schema": {"type": "string", "examples": ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]},
    }
}

Responses = dict[int | str, dict[str, Any]]


def answers(
    model: Any, *statuses: int, example: Any = None, description: str = "Success.", openai: bool = False
) -> Responses:
    """The `responses` of a route: its 200, the errors it may give, and `default` for any other.

    `example`: of the 200, for routes whose answer is not about a model: the others have that of a model that serves.
    `openai`: errors have the body that OpenAI's clients read.
    `default` also keeps FastAPI from documenting its own 422, which this server never sends.
    """
    documented: Responses = {200: {"model": model, "description": description}}
    if example is not None:
        documented[200]["content"] = {"application/json": {"example": example}}
    for status in statuses:
        text, message = _ERRORS[status]
        documented[status] = _error(text, message, openai)
        if status in {429, 503}:
            documented[status]["headers"] = _RETRY_AFTER
    documented["default"] = _error("Any other error has the same body.", "what was wrong", openai)
    return documented


def of_calls(model: Any, description: str, *, example: Any = None, openai: bool = False) -> Responses:
    """The `responses` of a route that infers: with headers, but for the refusal of a key, which comes before all."""
    documented = answers(model, *_CALL_ERRORS, example=example, description=description, openai=openai)
    for status, answer in documented.items():
        if status != 401:
            answer["headers"] = {**_ID_HEADER, **(_TIMES if status == 200 else {}), **answer.get("headers", {})}
    return documented


def request_body(media: Mapping[str, Mapping[str, Any]], *, required: bool = True) -> dict[str, Any]:
    """An `openapi_extra` with a request body, for routes that read the body themselves."""
    return {"requestBody": {"required": required, "content": {name: dict(entry) for name, entry in media.items()}}}


def json_media(model: type[BaseModel], examples: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One JSON entry of `request_body`: the model's schema, whole, and named examples."""
    schema = model.model_json_schema()
    media = {"schema": _inlined(schema, schema.pop("$defs", {}))}
    return media | ({"examples": {name: {"value": value} for name, value in examples.items()}} if examples else {})


def _error(description: str, message: str, openai: bool) -> dict[str, Any]:
    error: Any = message
    if openai:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "bad_request"}
    return {
        "model": OpenAIErrorBody if openai else ErrorBody,
        "description": description,
        "content": {"application/json": {"example": {"error": error}}},
    }


def _inlined(node: Any, definitions: Mapping[str, Any]) -> Any:
    """`node` with its references resolved, because a schema that is written by hand has no components to refer to."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rsplit("/", 1)[-1]], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}


async def unreachable() -> None:
    raise HTTPException(501, "the inference path is not in front of this application: the server is wired wrongly")


_CALL_ERRORS = (400, 401, 404, 408, 413, 415, 429, 500, 503, 504)
_FILE = {"schema": {"type": "string", "format": "binary"}}
_INFER_BODIES: dict[str, dict[str, Any]] = {
    "application/json": json_media(InferRequest),
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "Binary tensors: Inference-Header-Content-Length gives the bytes of JSON that lead; "
            "0 means that the whole body is the single input.",
        },
    },
}
_FRIENDLY_BODIES: dict[str, dict[str, Any]] = {
    "application/json": {"schema": {"description": "One row's data, a list of rows, or an object by input name."}},
    "image/png": _FILE,
    "image/jpeg": _FILE,
    "text/plain": {"schema": {"type": "string"}, "example": "what a fine day"},
    "application/x-npy": _FILE,
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"file": {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}},
            "required": ["file"],
        }
    },
}

router = APIRouter(tags=["inference"], dependencies=CALLS)


async def _of_model(model: ModelName) -> None:
    await unreachable()


async def _of_version(model: ModelName, version: Version) -> None:
    await unreachable()


def document(router: APIRouter, path: str, name: str, summary: str, description: str, **documented: Any) -> None:
    """Routes that infer with a model and with one version of it; `path` has {of} in its place."""
    of_model, of_version = path.format(of="{model}"), path.format(of="{model}/versions/{version}")
    again = "As without a version, which means the highest that is ready."
    router.post(of_model, name=name, summary=summary, description=description, **documented)(_of_model)
    router.post(
        of_version, name=f"{name}_version", summary=f"{summary} (one version)", description=again, **documented
    )(_of_version)


document(
    router, "/v2/models/{of}/infer", "infer", "Infer",
    "The Open Inference Protocol's inference: several rows per request, JSON or binary tensors. "
    "The answer carries X-Request-ID, Server-Timing (queue, compute, total) and X-Batch-Size.",
    responses=of_calls(InferResponse, "The outputs, rows in order."),
    openapi_extra=request_body(_INFER_BODIES),
)  # fmt: skip
document(
    router, "/v1/models/{of}:predict", "predict_v1", "Predict, TensorFlow Serving's way",
    "The row format of TensorFlow Serving and KServe V1. Other parameters in the query are a 400.",
    dependencies=[Depends(asked_in_query)],
    responses=of_calls(PredictResponse, "One prediction for each row."),
    openapi_extra=request_body({"application/json": json_media(PredictRequest)}),
)  # fmt: skip


router.post(
    "/predict/{model}",
    name="predict",
    dependencies=[Depends(asked_in_query)],
    summary="Predict from a file or a value",
    description="One JSON value, an image file, plain text or an .npy file as the body, by Content-Type, or the same "
    "as a multipart upload (`curl -F file=@three.png`), whose files are rows; its other fields are for a model "
    "whose `decode` takes them. Without a content type the body's first "
    "bytes decide. Images and text need a model that decodes them. One row in, one value out; a list of rows in, "
    "a list out. Other parameters in the query are a 400.",
    responses=of_calls(Any, "What the model makes of its outputs, or an object by output name."),
    openapi_extra=request_body(_FRIENDLY_BODIES),
)(_of_model)
