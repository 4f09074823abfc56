"""Metadata, configuration, readiness and statistics of a model, or of one version of it.

No version means the highest that is ready. State: `catalog` (Catalog) of the lifespan. Errors: NotFound for an unknown
model or version, NotReady for one that is known but not serving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from app.contract import Catalog, ModelInfo, TensorSpec
from app.errors import NotReady
from app.http.codecs.base import client_inputs
from app.http.routes import bodies
from app.http.routes.openapi import API_KEY, ModelName, Responses, Version, answers

router = APIRouter(tags=["models"], dependencies=API_KEY)


def catalog_of(request: Request) -> Catalog:
    return cast(Catalog, request.state.catalog)


def dimensions(spec: TensorSpec) -> list[int]:
    """One row's shape with -1 for every variable axis."""
    return [-1 if axis else length for axis, length in zip(spec.axes, spec.shape, strict=True)]


def triton_type(datatype: str) -> str:
    """A V2 datatype in the names of Triton's model configuration."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def metadata(info: ModelInfo, versions: Sequence[str]) -> dict[str, Any]:
    """The body of a model's metadata."""

    def describe(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *dimensions(spec)]}

    return {
        "name": info.name,
        "versions": list(versions),
        "platform": info.platform,
        "inputs": [describe(spec) for spec in client_inputs(info)],
        "outputs": [describe(spec) for spec in info.outputs],
    }


def model_list(names: Sequence[str]) -> dict[str, Any]:
    """The names as KServe's V1 has them, and as OpenAI's clients read them."""
    return {"models": list(names), "object": "list", "data": [_card(name) for name in names]}


def model_status(name: str) -> dict[str, Any]:
    """That a model is ready, as KServe's V1 has it, and as OpenAI's clients read it."""
    return {"name": name, "ready": True, **_card(name)}


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "starling"}


def configuration(info: ModelInfo) -> dict[str, Any]:
    """The body of a model's configuration.

    `dynamic_batching` and a `max_batch_size` above 0 tell Triton's load generator to send a batch dimension.

    `max_request_rows`, in the form of Triton's parameters, tells clients where to cut what they send: unlike Triton's
    its requests may be larger than a batch, but must fit into the queue.
    """

    def describe(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "data_type": triton_type(spec.datatype), "dims": dimensions(spec)}

    return {
        "name": info.name,
        "platform": info.platform,
        "max_batch_size": info.batching.max_batch,
        "input": [describe(spec) for spec in client_inputs(info)],
        "output": [describe(spec) for spec in info.outputs],
        "dynamic_batching": {},
        "parameters": {"max_request_rows": {"string_value": str(info.batching.max_queue)}},
    }


def _readiness_answers() -> Responses:
    documented = answers(bodies.ModelReady, 401, 404, 503)
    documented[503] |= {
        "model": bodies.ModelReady,
        "description": "Known, but not serving: loading, unloading or failed.",
        "content": {"application/json": {"example": {"name": "name", "ready": False}}},
    }
    return documented


@router.get(
    "/v2/models",
    summary="List models",
    description="Names of the models that have a version ready.",
    responses=answers(bodies.ModelNames, 401),
)
async def list_models(request: Request) -> JSONResponse:
    return JSONResponse({"models": _names(request)})


@router.get(
    "/v1/models",
    summary="List models (KServe V1, and OpenAI's clients)",
    description="Names of the models that have a version ready.",
    responses=answers(bodies.ModelList, 401),
)
async def list_models_v1(request: Request) -> JSONResponse:
    return JSONResponse(model_list(_names(request)))


def _names(request: Request) -> list[str]:
    return sorted({served.info.name for served in catalog_of(request).ready()})


@router.head("/v1/models/{model}", include_in_schema=False)
@router.get(
    "/v1/models/{model}",
    summary="Model status (KServe V1, and OpenAI's clients)",
    description="Ready or an error. HEAD is answered alike, without a body.",
    responses=answers(bodies.ModelStatus, 401, 404, 503),
)
async def model_status_v1(request: Request, model: ModelName) -> JSONResponse:
    return JSONResponse(model_status(catalog_of(request).find(model).info.name))


# Before the routes with {model}: here "stats" is the route's, even where a model has that name.
@router.get(
    "/v2/models/stats",
    summary="Statistics of all models",
    description="Triton's statistics extension, one element per ready version. A model that is named stats has its "
    "metadata under /v2/models/stats/versions/1.",
    responses=answers(bodies.Statistics, 401),
)
async def all_statistics(request: Request) -> JSONResponse:
    return JSONResponse({"model_stats": [served.statistics() for served in catalog_of(request).ready()]})


def _of_both(
    name: str,
    suffix: str,
    answer: Callable[[Catalog, str, str | None], JSONResponse],
    *,
    head: bool = False,
    **documented: Any,
) -> None:
    """A route of a model, and one of a version of it; `answer` gets the model's name, and the version or None.

    The path ends in `suffix`, and `name` is what it asks for. `head`: HEAD is answered alike.
    """

    async def of_model(request: Request, model: ModelName) -> JSONResponse:
        return answer(catalog_of(request), model, None)

    async def of_version(request: Request, model: ModelName, version: Version) -> JSONResponse:
        return answer(catalog_of(request), model, version)

    path, one = f"/v2/models/{{model}}{suffix}", f"/v2/models/{{model}}/versions/{{version}}{suffix}"
    summary = documented.pop("summary")
    router.get(path, name=f"model_{name}", summary=summary, **documented)(of_model)
    router.get(one, name=f"version_{name}", summary=f"{summary} (one version)", **documented)(of_version)
    if head:
        router.head(path, include_in_schema=False)(of_model)
        router.head(one, include_in_schema=False)(of_version)


def _metadata(catalog: Catalog, model: str, version: str | None) -> JSONResponse:
    return JSONResponse(metadata(catalog.find(model, version).info, catalog.versions(model)))


def _readiness(catalog: Catalog, model: str, version: str | None) -> JSONResponse:
    """Whether a known model is ready; an unknown one is a 404, as on every route."""
    try:
        catalog.find(model, version)
    except NotReady as exc:
        retry = {"Retry-After": str(max(1, exc.retry_after_s or 1))}
        return JSONResponse({"name": model, "ready": False}, 503, headers=retry)
    return JSONResponse({"name": model, "ready": True})


def _configuration(catalog: Catalog, model: str, version: str | None) -> JSONResponse:
    return JSONResponse(configuration(catalog.find(model, version).info))


def _statistics(catalog: Catalog, model: str, version: str | None) -> JSONResponse:
    every: Sequence[str | None] = catalog.versions(model) if version is None else ()
    return JSONResponse({"model_stats": [catalog.find(model, one).statistics() for one in every or [version]]})


_of_both(
    "metadata", "", _metadata, summary="Model metadata",
    description="Inputs and outputs with datatypes and shapes. No version means the highest that is ready.",
    responses=answers(bodies.ModelMetadata, 401, 404, 503),
)  # fmt: skip
_of_both(
    "ready", "/ready", _readiness, head=True, summary="Is the model ready?",
    description="Without a version: whether one of its versions is. HEAD is answered alike, without a body.",
    responses=_readiness_answers(),
)  # fmt: skip
_of_both(
    "config", "/config", _configuration, summary="Model configuration",
    description="Triton's model configuration, as far as it means something here.",
    responses=answers(bodies.ModelConfiguration, 401, 404, 503),
)  # fmt: skip
_of_both(
    "statistics", "/stats", _statistics, summary="Statistics of a model",
    description="Triton's statistics extension, one element per ready version.",
    responses=answers(bodies.Statistics, 401, 404, 503),
)  # fmt: skip
