"""Metadata, configuration, readiness and statistics of a model, or of one version of it.

Without a version, the highest that is ready is meant. State: `catalog` (Catalog) of the lifespan. Errors: NotFound for
an unknown model or version, NotReady for one that is known but not serving.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.contract import Catalog, ModelInfo, TensorSpec
from app.errors import NotReady

router = APIRouter()
get = partial(router.api_route, methods=["GET", "HEAD"])  # RFC 9110, 9.1: who answers GET answers HEAD


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
    """A model in OpenAI's form."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "starling"}


def configuration(info: ModelInfo) -> dict[str, Any]:
    """The body of a model's configuration.

    `dynamic_batching` and a `max_batch_size` above 0 make Triton's load generator send a batch dimension.

    `max_request_rows` tells clients how many rows one request may have. Unlike in Triton, a request may have more rows
    than a batch, but must fit into the queue.
    """

    def describe(spec: TensorSpec) -> dict[str, Any]:
        kind = "STRING" if spec.datatype == "BYTES" else spec.datatype
        return {"name": spec.name, "data_type": f"TYPE_{kind}", "dims": spec.shape}

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
