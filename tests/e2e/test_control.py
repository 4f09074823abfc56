"""Loading and unloading over HTTP: off by default, or for the admin key alone; keys change while the server runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from .server import Server

UNLOAD = "/v2/repository/models/narrow/unload"
LOAD = "/v2/repository/models/narrow/load"


def with_key(key: str) -> dict[str, str]:
    return {"X-API-Key": key}


def replaced(path: Path, text: str) -> None:
    """As editors and secrets do it: a reader sees the old file or the new one."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


def test_keys_from_files(start: Callable[..., Server], tmp_path: Path) -> None:
    api, admin = tmp_path / "api", tmp_path / "admin"
    api.write_text("# clients\nclient-1\nclient-2\n")
    admin.write_text("operator-1\n")
    flags = ("--api-key-file", str(api), "--admin-key-file", str(admin))
    server = start("narrow", flags=flags)
    row = [[1]]
    for key in ("client-1", "client-2"):
        assert server.infer("narrow", row, with_key(key)).status == 200
        assert server.post(UNLOAD, headers=with_key(key)).status == 401
    assert server.infer("narrow", row, with_key("operator-1")).status == 401
    assert server.post("/v2/repository/index", headers=with_key("operator-1")).status == 401
    assert server.infer("narrow", row).status == 401

    assert server.post(UNLOAD, headers=with_key("operator-1")).status == 200
    # What was unloaded by name is not waited for; a server whose last model is unloaded is ready.
    assert server.get("/v2/health/ready").json() == {"ready": True}
    assert server.infer("narrow", row, with_key("client-1")).status == 503
    replaced(admin, "operator-2\n")
    assert server.post(LOAD, headers=with_key("operator-1")).status == 401  # looked at when it is asked for
    assert server.post(LOAD, headers=with_key("operator-2")).status == 200
    assert server.infer("narrow", row, with_key("client-1")).status == 200

    replaced(api, "client-3\n")
    server.line("api_key_file: read again: keys: 1")
    assert server.infer("narrow", row, with_key("client-1")).status == 401
    assert server.infer("narrow", row, with_key("client-3")).status == 200
    replaced(api, "")
    server.line("api_key_file .* found none; the keys read before still hold")
    assert server.infer("narrow", row, with_key("client-3")).status == 200
    assert server.stop() == 0
    told = "\n".join(server.lines)
    assert [key for key in ("client-1", "client-3", "operator-1", "operator-2") if key in told] == []
