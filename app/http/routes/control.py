"""Server metadata, metrics and the model repository; `router` has all routes that do not infer.

The routes are documented in `app/http/openapi/openapi.json`. Their state comes from the lifespan: `catalog` (Catalog),
`auth` (Auth), `settings` (body_timeout_s) and `metrics` (returns the text and its content type).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from app import __version__
from app.errors import BadRequest, TooLarge
from app.http.answers import compress, wanted_encoding
from app.http.auth import Auth
from app.http.body import inflate, read_body
from app.http.codecs.text_codec import flag
from app.http.codecs.v2_decode import load_json
from app.http.routes.metadata import catalog_of
from app.http.routes.metadata import router as models
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
router.include_router(models)


@router.api_route("/metrics", methods=["GET", "HEAD"])
async def metrics(request: Request) -> Response:
    text, content_type = request.state.metrics()
    headers = {"Content-Type": content_type, "Vary": "Accept-Encoding"}
    accepted = request.headers.get("accept-encoding", "").encode("latin-1")
    if encoding := wanted_encoding(accepted, len(text)):  # to a twentieth; it takes less time than rendering the text
        text, headers["Content-Encoding"] = compress(text, encoding), encoding
    return Response(text, headers=headers)


@router.api_route("/v2", methods=["GET", "HEAD"])
async def server_metadata() -> JSONResponse:
    return JSONResponse({"name": "starling", "version": __version__, "extensions": _EXTENSIONS})


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
    return inflate(body, request.headers.get("content-encoding", "").encode("latin-1"), MAX_CONTROL_BODY)
