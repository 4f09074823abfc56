"""A model whose rows depend on their batch does not serve, unless its owner says so."""

from __future__ import annotations

from collections.abc import Callable

from .server import REPOSITORY, Server

LENGTHS = (3, 9)


def answers(server: Server) -> list[list[float]]:
    replies = [
        server.post(
            "/v2/models/recurrent/infer",
            {"inputs": [{"name": "x", "shape": [1, length, 1], "datatype": "FP32", "data": [0.5] * length}]},
        )
        for length in LENGTHS
    ]
    return [reply.json()["outputs"][0]["data"] for reply in replies if reply.status == 200]


def test_refused_at_start_and_served_when_told(start: Callable[..., Server]) -> None:
    """Refused by default; loaded while serving when model.toml says to warn."""
    server = start("recurrent", "narrow", flags=("--model-control",))
    line = next(line for line in server.post("/v2/repository/index").json() if line["name"] == "recurrent")
    assert line["state"] == "UNAVAILABLE"
    for words in (
        "a row's answer depends on how far it is padded: output 'y': ",
        " alone, ",
        " padded to length 16 (axis 'tokens', its own length is 8) (the largest difference, ",
        "give the model a mask or its rows' lengths",
        'row_check = "warn" in model.toml or --row-check warn',
    ):
        assert words in line["reason"]
    server.line("FAILED +recurrent:1")
    assert answers(server) == []
    assert server.infer("narrow", [[5]]).status == 200
    toml = server.repository / "recurrent" / "model.toml"
    toml.write_text('row_check = "warn"\n' + (REPOSITORY / "recurrent" / "model.toml").read_text())
    assert server.post("/v2/repository/models/recurrent/load").status == 200
    server.line("WARNING.* model recurrent: a row's answer depends on how far it is padded: output 'y': ")
    assert len(answers(server)) == len(LENGTHS)
