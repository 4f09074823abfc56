"""Metadata and metrics of the server and of its models, and the model repository; `router` has all routes that do not
infer.

The routes are documented in `app/http/openapi/openapi.json`. Their state comes from the lifespan: `catalog` (Catalog),
`auth` (Auth), `settings` (body_timeout_s) and `metrics` (returns the text and its content type). Errors: NotFound for
an unknown model or version, NotReady for one that is known but not serving.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from app import __version__
from app.contract import Catalog, ModelInfo, TensorSpec
from app.errors import BadRequest, NotReady, TooLarge
from app.http.answers import compress, wanted_encoding
from app.http.auth import Auth
from app.http.body import inflate, read_body
from app.http.codecs.v2_decode import flag, load_json
from app.http.routes.probes import router as probes
from app.observe.logs import fields
from app.values.tensors import shown

log = logging.getLogger("starling.http")

#: The extensions that work here, by Triton's names. Clients use a feature only if it is listed.
_EXTENSIONS = [
    "model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
    "binary_tensor_data", "parameters", "statistics",
]  # fmt: skip
#: Bytes. Control bodies hold a few parameters. Only a `file:` override is larger, and those are refused.
MAX_CONTROL_BODY = 1 << 20

router = APIRouter()
router.include_router(probes)
get = partial(router.api_route, methods=["GET", "HEAD"])  # RFC 9110, 9.1: who answers GET answers HEAD


@get("/metrics")
async def metrics(request: Request) -> Response:
    text, content_type = request.state.metrics()
    headers = {"Content-Type": content_type, "Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "").encode("latin-1")
    if encoding := wanted_encoding(accepted, len(text)):  # to a twentieth; it takes less time than rendering the text
        text, headers["Content-Encoding"] = compress(text, encoding), encoding
    return Response(text, headers=headers)


@get("/v2")
async def server_metadata() -> JSONResponse:
    return JSONResponse({"name": "starling", "version": __version__, "extensions": _EXTENSIONS})


# models: without a version, the highest that is ready is meant


def catalog_of(request: Request) -> Catalog:
    return cast(Catalog, request.state.catalog)


def metadata(info: ModelInfo, versions: Sequence[str]) -> dict[str, Any]:
    """The body of a model's metadata."""

    def describe(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]}

    return {
        "name": info.name,
        "versions": list(versions),
        "platform": info.platform,
        "inputs": [describe(spec) for spec in info.client_inputs],
        "outputs": [describe(spec) for spec in info.outputs],
    }


def _card(name: str) -> dict[str, Any]:
    """A model in OpenAI's form. As elsewhere `created` is now: clients want a time, and a model's own says little."""
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "starling"}


def configuration(info: ModelInfo) -> dict[str, Any]:
    """The body of a model's configuration.

    `dynamic_batching` and a `max_batch_size` above 0 make Triton's load generator send a batch dimension.

    `max_request_rows` tells clients how many rows one request may have. Unlike in Triton, a request may have more rows
    than a batch, but must fit into the queue.
    """

    def describe(spec: TensorSpec) -> dict[str, Any]:
        kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
        return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.shape or (1,)}

    return {
        "name": info.name,
        "platform": info.platform,
        "max_batch_size": info.batching.max_batch,
        "input": [describe(spec) for spec in info.client_inputs],
        "output": [describe(spec) for spec in info.outputs],
        "dynamic_batching": {},
        "parameters": {"max_request_rows": {"string_value": str(info.batching.max_queue)}},
    }


@get("/v2/models")
async def list_models(request: Request) -> JSONResponse:
    return JSONResponse({"models": _names(request)})


@get("/v1/models")
async def list_models_v1(request: Request) -> JSONResponse:
    """In the forms of KServe's V1 and of OpenAI, in one object."""
    names = _names(request)
    return JSONResponse({"models": names, "object": "list", "data": [_card(name) for name in names]})


def _names(request: Request) -> list[str]:
    return sorted({served.info.name for served in catalog_of(request).ready()})


@get("/v1/models/{model}")
async def model_status_v1(request: Request, model: str) -> JSONResponse:
    """Of a ready model, in both forms."""
    name = catalog_of(request).serving[model, None].info.name
    return JSONResponse({"name": name, "ready": True, **_card(name)})


# Defined before the routes with {model}, so that it wins even if a model is named "stats".
@get("/v2/models/stats")
async def all_statistics(request: Request) -> JSONResponse:
    return JSONResponse({"model_stats": [served.statistics() for served in catalog_of(request).ready()]})


_MODEL, _VERSION = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"


def _asked(request: Request) -> tuple[Catalog, str, str | None]:
    """The catalog, and the model and perhaps version that the path names."""
    return catalog_of(request), request.path_params["model"], request.path_params.get("version")


@get(_MODEL)
@get(_VERSION)
async def model_metadata(request: Request) -> JSONResponse:
    catalog, model, version = _asked(request)
    return JSONResponse(metadata(catalog.serving[model, version].info, catalog.versions(model)))


@get(f"{_MODEL}/ready")
@get(f"{_VERSION}/ready")
async def model_readiness(request: Request) -> JSONResponse:
    """Whether a known model is ready; an unknown one is a 404, as on every route."""
    catalog, model, version = _asked(request)
    try:
        catalog.serving[model, version]
    except NotReady as exc:
        retry = {"Retry-After": str(max(1, exc.retry_after_s or 1))}
        return JSONResponse({"name": model, "ready": False}, 503, headers=retry)
    return JSONResponse({"name": model, "ready": True})


@get(f"{_MODEL}/config")
@get(f"{_VERSION}/config")
async def model_configuration(request: Request) -> JSONResponse:
    catalog, model, version = _asked(request)
    return JSONResponse(configuration(catalog.serving[model, version].info))


@get(f"{_MODEL}/stats")
@get(f"{_VERSION}/stats")
async def model_statistics(request: Request) -> JSONResponse:
    catalog, model, version = _asked(request)
    every: Sequence[str | None] = catalog.versions(model) if version is None else ()
    return JSONResponse({"model_stats": [catalog.serving[model, one].statistics() for one in every or [version]]})


# the repository


@router.post("/v2/repository/index")
async def index(request: Request) -> JSONResponse:
    ready = flag(await _body(request), "ready", "body.ready")  # only models that are ready
    index = catalog_of(request).index()
    return JSONResponse([entry.as_dict() for entry in index if entry.serves or not ready])


async def _may_control(request: Request) -> None:
    """Runs before the body is read and the model is looked up. Raises Forbidden or Unauthorized."""
    cast(Auth, request.state.auth).check_control(dict(request.scope["headers"]))


@router.post("/v2/repository/models/{model}/load", dependencies=[Depends(_may_control)])
async def load(request: Request, model: str) -> JSONResponse:
    for name in await _parameters(request):
        if name == "config" or name.startswith("file:"):
            raise BadRequest(
                f"parameters.{name}: overriding a model's configuration or files is not supported; "
                "change model.toml in the repository and load it again"
            )
    await catalog_of(request).load(model)
    log.info("model %s: loaded, as a client asked", model, **fields(model=model))
    notes = [entry.reason for entry in catalog_of(request).index() if entry.name == model and entry.reason]
    return JSONResponse({"name": model, "load": True, **({"warning": "; ".join(notes)} if notes else {})})


@router.post("/v2/repository/models/{model}/unload", dependencies=[Depends(_may_control)])
async def unload(request: Request, model: str) -> JSONResponse:
    flag(await _parameters(request), "unload_dependents", "parameters.unload_dependents")  # either is accepted
    await catalog_of(request).unload(model)
    log.info("model %s: unloaded, as a client asked", model, **fields(model=model))
    return JSONResponse({"name": model, "unload": True})


async def _body(request: Request) -> dict[str, Any]:
    """The body, whatever its content type: Triton's clients send none. Empty means `{}`."""
    value = await asyncio.to_thread(load_json, (await _read(request)).strip() or b"{}")
    if not isinstance(value, dict):
        raise BadRequest(f"body: expected an object, got {shown(value)}")
    return value


async def _parameters(request: Request) -> dict[str, Any]:
    given = (await _body(request)).get("parameters")
    if not isinstance(given, dict | None):
        raise BadRequest(f"body.parameters: expected an object, got {shown(given)}")
    return given or {}


async def _read(request: Request) -> bytes:
    """Read the body, limited in bytes and time. Raises TooLarge, BodyTimeout, ClientGone, and as `inflate` does."""
    left = MAX_CONTROL_BODY

    def take(size: int) -> None:
        nonlocal left
        left -= size
        if left < 0:
            raise TooLarge(f"body: expected at most {MAX_CONTROL_BODY} bytes on this route")

    body = await read_body(request.receive, request.state.settings.body_timeout_s, take)
    encoding = request.headers.get("content-encoding", "").encode("latin-1")
    return await asyncio.to_thread(inflate, body, encoding, MAX_CONTROL_BODY)
