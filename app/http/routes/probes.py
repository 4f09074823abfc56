"""Probes: whether the process is alive, and whether it is ready for requests, under all names that clients use.

State: `health` (Lifecycle) of the lifespan, asked at each probe, and `settings` (ui). The paths need no key and count against no
limit: `app/http/asgi.py` lets them through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.http.routes import bodies
from app.http.routes.openapi import answers
from app.lifecycle import Lifecycle

LIVE_PATHS = ("/v2/health/live", "/livez", "/healthz")
READY_PATHS = ("/v2/health/ready", "/readyz", "/ping")
ROOT = "/"

router = APIRouter(tags=["health"])


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


def _add(
    paths: Iterable[str],
    probe: Callable[[Request], Awaitable[JSONResponse]],
    body: type[bodies.Live | bodies.Ready],
    example: str,
    failing: str,
    description: str,
) -> None:
    """One probe under all its paths, GET and HEAD. `example` is a reason, `failing` what a 503 means."""
    name = body.__name__.lower()
    for path in paths:
        documented = answers(body, example={name: True})
        documented[503] = {
            "model": body,
            "description": failing,
            "content": {"application/json": {"example": {name: False, "reason": example}}},
        }
        router.get(path, summary=f"{body.__name__}?", description=description, responses=documented)(probe)
        router.head(path, include_in_schema=False)(probe)


_add(
    LIVE_PATHS, live, bodies.Live, "worker 0 has died",
    failing="The engine is stuck or dead: restart it.",
    description="Computed when asked, from the oldest batch in flight. HEAD is answered alike, without a body.",
)  # fmt: skip
_add(
    READY_PATHS, ready, bodies.Ready, "one: loading; two: failed: model.toml: inputs: expected a list",
    failing="Starting, draining, or a required model is not ready.",
    description="503 also right after SIGTERM, while requests are still taken. With `?verbose` the body has the state "
    "of every model. HEAD is answered alike, without a body.",
)  # fmt: skip
