"""The `starling` command, of which a server takes no request on the fast path: all go through ASGI."""

from __future__ import annotations

from app.cli.commands import main
from app.http.connection.connection import HttpProtocol
from app.http.connection.exchange import Exchange


def nothing(protocol: HttpProtocol) -> Exchange | None:
    return None


def take_nothing() -> None:
    HttpProtocol._take = nothing  # type: ignore[method-assign]  # the one place where a request is taken


if __name__ == "__main__":
    take_nothing()
    main()
