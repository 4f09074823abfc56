"""The `starling` command, of which a server takes no request on the fast path: all go through ASGI."""

from __future__ import annotations

from app.cli.commands import main
from app.http.connection.connection import Exchange, HttpProtocol


def nothing(protocol: HttpProtocol) -> Exchange | None:
    return None


def take_nothing() -> None:
    HttpProtocol._taken = nothing  # type: ignore[method-assign]  # the one place where a request is taken


if __name__ == "__main__":
    take_nothing()
    main()
