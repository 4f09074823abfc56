"""Server metadata, metrics and the model repository; and one router for every route that is not inference.

State comes from the lifespan: `catalog` (Catalog), `access` (Access), `settings` (body_timeout_s) and `metrics` (an
object whose `render()` gives the text and its content type). No decisions are made here.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TypeVar, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from app import __version__
from app.errors import BadRequest, BodyTimeout, ClientGone, NotFound, TooLarge
from app.http.access import Access
from app.http.answers import compress, wanted_encoding
from app.http.codecs.tensors import shown
from app.http.routes import bodies
from app.http.routes.metadata import catalog_of
from app.http.routes.metadata import router as models
from app.http.routes.openapi import API_KEY, ModelName, answers, json_media, request_body
from app.http.routes.probes import router as probes
from app.observe.logs import fields

log = logging.getLogger("starling.http")

#: Triton's names of the extensions that work here. Clients use a feature only if it is listed.
EXTENSIONS = (
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
)

_METADATA = {"name": "starling", "version": __version__, "extensions": list(EXTENSIONS)}

#: Bytes. The body of a control route is a few parameters; only a `file:` override is larger, and it is refused.
MAX_CONTROL_BODY = 1 << 20


_Model = TypeVar("_Model", bound=BaseModel)

server = APIRouter(tags=["server"], dependencies=API_KEY)
repository = APIRouter(tags=["repository"], dependencies=API_KEY)


@server.get(
    "/metrics",
    summary="Metrics",
    description="Prometheus text: our own names, and Triton's for its dashboards.",
    response_class=PlainTextResponse,
    responses={
        200: {
            "content": {
                "text/plain": {"example": "starling_live 1.0\n"},
            }
        },
        # without a model: FastAPI would document the error's body as text/plain, too
        "default": {
            "description": "Any error.",
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/ErrorBody"},
                    "example": {"error": "what was wrong"},
                }
            },
        },
    },
)
async def metrics(request: Request) -> Response:
    text, content_type = request.state.metrics.render()
    headers = {"Content-Type": content_type, "Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "").encode("latin-1")
    if encoding := wanted_encoding(accepted, len(text)):  # to a twentieth, which takes less than making the text
        text, headers["Content-Encoding"] = compress(text, encoding), encoding
    return Response(text, headers=headers)


@server.get(
    "/v2",
    summary="Server metadata",
    description="Name, version and the protocol extensions that work.",
    responses=answers(bodies.ServerMetadata, 401, example=_METADATA),
)
async def server_metadata() -> JSONResponse:
    return JSONResponse(_METADATA)


@repository.post(
    "/v2/repository/index",
    summary="Repository index",
    description="Every model and version known, with its state and, where it failed or was not tried, the reason.",
    responses=answers(list[bodies.IndexLine], 400, 401, 408, 413),
    openapi_extra=request_body(
        {"application/json": json_media(bodies.IndexRequest, {"all": {}, "only what is ready": {"ready": True}})},
        required=False,
    ),
)
async def index(request: Request) -> JSONResponse:
    wanted = await _parsed(request, bodies.IndexRequest)
    index = catalog_of(request).index()
    return JSONResponse([entry.as_dict() for entry in index if entry.serves or not wanted.ready])


async def _may_control(request: Request) -> None:
    """Before the body is read and the model is looked for. Raises Forbidden or Unauthorized."""
    cast(Access, request.state.access).check_control(dict(request.scope["headers"]))


@repository.post(
    "/v2/repository/models/{model}/load",
    dependencies=[Depends(_may_control)],
    summary="Load a model, or load it again",
    description="Answers when the model serves. What the repository now holds replaces what served before, without a "
    "gap. Overriding the configuration or files by parameters (`config`, `file:...`) is not supported. Off, unless the "
    "server was started with `--model-control` or an admin key, which is then the key that is asked for.",
    responses=answers(bodies.LoadAnswer, 400, 401, 403, 404, 408, 413, 503),
    openapi_extra=request_body(
        {"application/json": json_media(bodies.RepositoryRequest, {"load": {}})}, required=False
    ),
)
async def load(request: Request, model: ModelName) -> JSONResponse:
    wanted = await _parsed(request, bodies.RepositoryRequest)
    for name in wanted.parameters or {}:
        if name == "config" or name.startswith("file:"):
            raise BadRequest(
                f"parameters.{name}: overriding a model's configuration or files is not supported; "
                "change model.toml in the repository and load it again"
            )
    try:
        await catalog_of(request).load(model)
    except OSError as exc:
        if exc.errno != errno.ENAMETOOLONG:
            raise
        raise NotFound(f"model {shown(model)} is not known: no folder can have so long a name") from None
    log.info("model %s: loaded, as a client asked", model, **fields(model=model))
    return JSONResponse({"name": model, "load": True})


@repository.post(
    "/v2/repository/models/{model}/unload",
    dependencies=[Depends(_may_control)],
    summary="Unload a model",
    description="All its versions: no new calls from now on; answers when those accepted have finished. "
    "`unload_dependents` is accepted; no model depends on another here. Off, and its key, as of `load`.",
    responses=answers(bodies.UnloadAnswer, 400, 401, 403, 404, 408, 413),
    openapi_extra=request_body(
        {
            "application/json": json_media(
                bodies.RepositoryRequest, {"unload": {}, "Triton": {"parameters": {"unload_dependents": False}}}
            )
        },
        required=False,
    ),
)
async def unload(request: Request, model: ModelName) -> JSONResponse:
    await _parsed(request, bodies.RepositoryRequest)
    await catalog_of(request).unload(model)
    log.info("model %s: unloaded, as a client asked", model, **fields(model=model))
    return JSONResponse({"name": model, "unload": True})


async def _parsed(request: Request, model: type[_Model]) -> _Model:
    """The body as `model`, whatever its content type: Triton's clients send none. An empty body is an empty object."""
    body = await _read(request)
    try:
        return model.model_validate_json(body.strip() or b"{}")
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        field = ".".join(["body", *(str(step) for step in first["loc"])])
        raise BadRequest(f"{field}: {first['msg']}") from None


async def _read(request: Request) -> bytes:
    """The body, bounded in bytes and time. Raises TooLarge, BodyTimeout or ClientGone."""
    limit_s: float = request.state.settings.body_timeout_s
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_CONTROL_BODY:
                    raise TooLarge(f"body: expected at most {MAX_CONTROL_BODY} bytes on this route")
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {limit_s:g} s") from None
    except ClientDisconnect:
        raise ClientGone("the client went away before its body had arrived") from None
    return bytes(body)


router = APIRouter()
for part in (probes, server, models, repository):
    router.include_router(part)
