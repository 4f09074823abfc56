"""Probes: whether the process is alive, and whether it is ready for requests, under all names that clients use.

State: `health` (Lifecycle) of the lifespan, asked at each probe, and `settings` (ui). The paths need no key and count
against no limit: `app/http/asgi.py` lets them through.
"""

from __future__ import annotations

from typing import cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.lifecycle import Lifecycle

LIVE_PATHS = ("/v2/health/live", "/livez", "/healthz")
READY_PATHS = ("/v2/health/ready", "/readyz", "/ping")
ROOT = "/"

router = APIRouter()


async def live(request: Request) -> JSONResponse:
    reason = _health(request).live()
    if reason is None:
        return JSONResponse({"live": True})
    return JSONResponse({"live": False, "reason": reason}, 503)


async def ready(request: Request) -> JSONResponse:
    health = _health(request)
    reason = health.ready()
    body: dict[str, object] = {"ready": reason is None}
    if reason is not None:
        body["reason"] = reason
    if "verbose" in request.query_params:
        body["models"] = [entry.as_dict() for entry in health.models()]
    if reason is None:
        return JSONResponse(body)
    return JSONResponse(body, 503, headers={"Retry-After": "1"})


@router.api_route(ROOT, methods=["GET", "HEAD"], include_in_schema=False)
async def root(request: Request) -> Response:
    """For programs, whether the process is alive, in the words of V1. A browser is sent to the live page."""
    if request.state.settings.ui and "text/html" in request.headers.get("accept", ""):
        # A relative path also holds behind an ingress that has not told its prefix; where it is known, `/prefix`
        # without a slash at its end works as well.
        prefix = request.scope.get("root_path", "")
        return Response(status_code=307, headers={"Location": f"{prefix}/ui" if prefix else "ui", "Vary": "Accept"})
    reason = _health(request).live()
    return JSONResponse({"status": reason or "alive"}, 200 if reason is None else 503, {"Vary": "Accept"})


def _health(request: Request) -> Lifecycle:
    return cast(Lifecycle, request.state.health)


for _paths, _probe in ((LIVE_PATHS, live), (READY_PATHS, ready)):
    for _path in _paths:
        router.add_api_route(_path, _probe, methods=["GET", "HEAD"])
