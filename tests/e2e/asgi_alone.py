"""The `starling` command, of which a server takes no request on the short way: all go through ASGI."""

from __future__ import annotations

from app.commands.cli import main
from app.protocol.connection import HttpProtocol
from app.protocol.exchange import Exchange


def nothing(protocol: HttpProtocol) -> Exchange | None:
    return None


def take_nothing() -> None:
    HttpProtocol._take = nothing  # type: ignore[method-assign]  # the one place where a request is taken


if __name__ == "__main__":
    take_nothing()
    main()
