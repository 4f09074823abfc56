"""Liveness and readiness probes, under all paths that orchestrators and clients use.

State: `health` (Lifecycle) and `settings` (ui) of the lifespan. These paths need no key and are answered above the
limit of connections: see `HttpApp`.
"""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.lifecycle import Lifecycle

LIVE_PATHS = ("/v2/health/live", "/livez", "/healthz")
READY_PATHS = ("/v2/health/ready", "/readyz", "/ping", "/health")
ROOT = "/"
_METHODS = ["GET", "HEAD", "OPTIONS"]  # the last is how HAProxy asks unless it is told otherwise

router = APIRouter()


async def live(request: Request) -> JSONResponse:
    reason = _health(request).live()
    return JSONResponse({"live": True}) if reason is None else JSONResponse({"live": False, "reason": reason}, 503)


async def ready(request: Request) -> JSONResponse:
    health = _health(request)
    reason = health.ready()
    body: dict[str, object] = {"ready": True} if reason is None else {"ready": False, "reason": reason}
    if "verbose" in request.query_params:
        body["models"] = [entry.as_dict() for entry in health.models()]
    return JSONResponse(body) if reason is None else JSONResponse(body, 503, {"Retry-After": "1"})


@router.api_route(ROOT, methods=_METHODS, include_in_schema=False)
async def root(request: Request) -> Response:
    """Liveness in the form of V1, for programs. A browser is redirected to the live page."""
    if request.state.settings.pages and "text/html" in request.headers.get("accept", ""):
        # A relative path works behind an ingress whose prefix is not configured. With a configured prefix, the full
        # path also works from `/prefix` without a trailing slash.
        prefix = request.scope.get("root_path", "")
        return Response(status_code=307, headers={"Location": f"{prefix}/ui" if prefix else "ui", "Vary": "Accept"})
    reason = _health(request).live()
    return JSONResponse({"status": reason or "alive"}, 200 if reason is None else 503, {"Vary": "Accept"})


def _health(request: Request) -> Lifecycle:
    return cast(Lifecycle, request.state.health)


for _path, _probe in {**dict.fromkeys(LIVE_PATHS, live), **dict.fromkeys(READY_PATHS, ready)}.items():
    router.add_api_route(_path, _probe, methods=_METHODS)
