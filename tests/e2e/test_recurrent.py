"""A model that writes until it ends by itself: an answer is as long as each row ran, on every route."""

from __future__ import annotations

import json
import re

import pytest

from starling_client import Client

from .conftest import Keeper
from .server import ROOT, Server

GENERATE = ROOT / "app" / "models" / "zoo" / "generate"
#: Prompts of one length, since rows of one call share it, and how they go on.
LINES = {
    "The ferry": " would be quicker if it did not wait, and cheaper if it waited longer.",
    "If you wa": "it for everyone, nobody will arrive.",
}


@pytest.fixture
def server(keeper: Keeper) -> Server:
    return keeper.kept((), "--model", f"generate={GENERATE}", "--drain-grace-s", "0")


def test_text_in_and_a_line_out(server: Server) -> None:
    for prompt, line in LINES.items():
        reply = server.post("/predict/generate", prompt.encode(), {"Content-Type": "text/plain"})
        assert reply.json() == {"continuation": line}


def test_lines_are_streamed_as_they_are_written(server: Server) -> None:
    tensor = {"name": "prompt", "shape": [2, 9], "datatype": "UINT8", "data": list("".join(LINES).encode())}
    reply = server.post("/v2/models/generate/infer_stream", {"inputs": [tensor]})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = [json.loads(line.removeprefix(b"data: ")) for line in reply.body.split(b"\n\n")[:-1]]
    texts = {0: b"", 1: b""}
    for event in events:
        (output,) = event["outputs"]
        assert output["shape"] == [1, len(output["data"])]
        texts[event["parameters"]["row"]] += bytes(output["data"])
    assert [text.decode() for text in texts.values()] == [line + "\n" for line in LINES.values()]
    assert [event["parameters"] for event in events[-2:]] == [{"row": row, "final": True} for row in range(2)]


def test_lines_reach_the_python_client_step_by_step(server: Server) -> None:
    texts = {0: "", 1: ""}
    ended = []
    with Client(f"http://{server.host}") as client:
        for found in client.steps("generate", [list(prompt.encode()) for prompt in LINES]):
            texts[found.row] += bytes(found.outputs["text"].tolist()).decode()
            ended += [found.row] if found.final else []
    assert [*texts.values()] == [line + "\n" for line in LINES.values()]
    assert ended == [0, 1]


def test_the_examples_of_the_documentation(server: Server) -> None:
    section = (ROOT / "docs" / "protocol.md").read_text("utf-8").partition("### Rows that end by themselves")[2]
    asked = {"instances": [[110, 111], [119, 105]]}
    v1, v2 = (json.loads(text) for text in re.findall("```json\n(.*?)```", section, re.DOTALL)[:2])
    assert f"-d '{json.dumps(asked)}'" in section
    assert server.post("/v1/models/generate:predict", asked).json() == v1
    tensor = {"name": "prompt", "shape": [2, 2], "datatype": "UINT8", "data": asked["instances"]}
    assert server.post("/v2/models/generate/infer", {"inputs": [tensor]}).json() == v2
