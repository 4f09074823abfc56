"""The bare ASGI echo, the least that an ASGI application under uvicorn can do with a body.

`python -m loadtest.bench.echo_app PORT`. Uvicorn's settings are those of the server under test.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from loadtest.common.paths import LOOPBACK

CONTENT_TYPE = (b"content-type", b"application/json")


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Read the whole body and send it back."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [CONTENT_TYPE, length]})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    uvicorn.run(
        app,
        host=LOOPBACK,
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        server_header=False,
    )


if __name__ == "__main__":
    main()
