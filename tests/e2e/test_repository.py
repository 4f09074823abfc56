"""Loading, unloading and replacement while requests are running, and who may ask for them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from background import eventually

from .server import PATIENCE_S, REPOSITORY, Gate, Server
from .wire import Wire, infer

LOAD = "/v2/repository/models/%s/load"
UNLOAD = "/v2/repository/models/%s/unload"


def edit(server: Server, old: str, new: str) -> None:
    """Of the description of `plus`: what the pattern finds becomes the new text."""
    file = server.repository / "plus/2/model.toml"
    text, found = re.subn(old, new, file.read_text())
    assert found == 1
    file.write_text(text)


async def test_replacement_without_a_gap(server: Server) -> None:
    """A closed loop over three reloads: no call fails, and the answers change from one number to the next."""
    stop = asyncio.Event()
    seen: list[float] = []

    async def client() -> None:
        request = infer("plus", [10])
        async with await Wire.open(server.host) as wire:
            while not stop.is_set():
                answer = await wire.call(request)
                assert answer.status == 200, answer.body
                seen.append(answer.json()["outputs"][0]["data"][0])

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(client())
        for number in (20, 30, 2):  # the last as it was
            await asyncio.to_thread(edit, server, r"number = \d+", f"number = {number}")
            answer = await asyncio.to_thread(server.post, LOAD % "plus")
            assert (answer.status, answer.json()) == (200, {"name": "plus", "load": True})
            after = await asyncio.to_thread(server.infer, "plus", [[10]])
            assert after.json()["outputs"][0]["data"] == [10 + number]
        stop.set()
    changes = [value for value, before in zip(seen, [None, *seen], strict=False) if value != before]
    assert set(seen) == {12, 30, 40}
    assert changes[0] == changes[-1] == 12


def test_unload_finishes_what_was_accepted(server: Server, gate: Gate, threads: ThreadPoolExecutor) -> None:
    waiting = [threads.submit(server.infer, "gate", [[400 + n]]) for n in range(6)]
    eventually(lambda: server.waiting("gate") == 6)
    unload = threads.submit(server.post, UNLOAD % "gate")
    eventually(lambda: server.get("/v2/models/gate/ready").status == 503)
    for _ in range(2):
        refused = server.infer("gate", [[406]])
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
    states = {line["name"]: line["state"] for line in server.post("/v2/repository/index").json()}
    assert states["gate"] == "UNLOADING"
    gate.open()
    assert [call.result(PATIENCE_S).status for call in waiting] == [200] * 6
    assert unload.result(PATIENCE_S).json() == {"name": "gate", "unload": True}
    ready = server.post("/v2/repository/index", {"ready": True}).json()
    assert "gate" not in {line["name"] for line in ready}
    assert server.post(LOAD % "gate").status == 200
    assert server.infer("gate", [[408]]).status == 200
    assert 406 not in gate.ran()


def test_an_edited_model_and_a_new_one_are_loaded_where_folders_are_watched(start, tmp_path) -> None:
    """Of a server that starts without a model; a folder without model.toml is one, too."""
    code = tmp_path / "net" / "model.py"
    code.parent.mkdir()
    text = "from torch import nn\ndef build():\n    net = nn.Linear(2, 1)\n    nn.init.constant_(net.weight, 1)\n"
    code.write_text(f"{text}    nn.init.constant_(net.bias, 0)\n    return net\n")
    server = start(flags=("--watch", "--model", f"net={code.parent}"))
    server.line("net has no model.toml, and is served by this one:")
    assert server.post("/predict/net", [1, 2]).json() == {"output": [3.0]}
    code.write_text(code.read_text().replace("bias, 0", "bias, 7"))
    eventually(lambda: server.post("/predict/net", [1, 2]).json() == {"output": [10.0]})
    shutil.copytree(REPOSITORY / "plus", server.repository / "plus")
    eventually(lambda: server.infer("plus", [[10]]).status == 200)
    edit(server, "max_batch = 4", "max_batch = four")
    server.line("model plus version 2: .*expected a readable TOML file")
    assert server.infer("plus", [[10]]).json()["outputs"][0]["data"] == [12]
    shutil.rmtree(server.repository / "plus")
    eventually(lambda: "unloaded" in server.infer("plus", [[10]]).json().get("error", ""))  # "unloading" before
    assert server.infer("plus", [[10]]).status == 503


def replaced(path: Path, text: str) -> None:
    """As editors and secrets do it: a reader sees the old file or the new one."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


def test_keys_from_files(start: Callable[..., Server], tmp_path: Path) -> None:
    """Models are loaded and unloaded with the admin key alone; keys change while the server runs."""
    api, admin = tmp_path / "api", tmp_path / "admin"
    api.write_text("# clients\nclient-1\nclient-2\n")
    admin.write_text("operator-1\n")
    server = start("narrow", flags=("--api-key-file", str(api), "--admin-key-file", str(admin)))

    def infers(*keys: str) -> list[int]:
        return [server.infer("narrow", [[1]], {"X-API-Key": key}).status for key in keys]

    def asks(path: str, *keys: str) -> list[int]:
        return [server.post(path, headers={"X-API-Key": key}).status for key in keys]

    assert infers("client-1", "client-2", "operator-1", "") == [200, 200, 401, 401]
    assert asks("/v2/repository/index", "operator-1") == [401]
    assert asks(UNLOAD % "narrow", "client-1", "operator-1") == [401, 200]
    # What was unloaded by name is not waited for; a server whose last model is unloaded is ready.
    assert server.get("/v2/health/ready").json() == {"ready": True}
    assert infers("client-1") == [503]
    replaced(admin, "operator-2\n")
    assert asks(LOAD % "narrow", "operator-1", "operator-2") == [401, 200]  # looked at when it is asked for
    replaced(api, "client-3\n")
    server.line("api_key_file: read again: keys: 1")
    assert infers("client-1", "client-3") == [401, 200]
    assert server.stop() == 0
    assert not re.search("client-[13]|operator-[12]", "\n".join(server.lines))
