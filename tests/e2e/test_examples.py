"""What examples/ says of itself: its files serve, and its curl is answered."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

from .documented import blocks, commands, curl
from .server import ROOT, Server


def test_an_estimator_of_scikit_learn(tmp_path: Path, start: Callable[..., Server]) -> None:
    folder = shutil.copytree(ROOT / "examples" / "sklearn", tmp_path / "sklearn")
    fitted = runpy.run_path(str(folder / "fit.py"))
    server = start(flags=("--models", str(folder)))
    table, classifier = fitted["table"], fitted["classifier"]
    *_, asks = commands(blocks("examples/sklearn/README.md")[0])
    assert json.loads(curl(asks.text, server.host, tmp_path))["label"] == 1
    reply = server.post("/v1/models/sklearn:predict", {"instances": table.to_dict("records")})
    answers = reply.json()["predictions"]
    assert [one["label"] for one in answers] == classifier.predict(table).tolist()
    scores = [[round(value, 6) for value in row] for row in classifier.predict_proba(table)]
    assert [[round(value, 6) for value in one["scores"]] for one in answers] == scores
    body = {"inputs": [{"name": "city", "datatype": "BYTES", "shape": [1], "data": ["Rom"]},
                       {"name": "area", "datatype": "FP64", "shape": [1], "data": [20]},
                       {"name": "rooms", "datatype": "INT64", "shape": [1], "data": [1.5]}]}  # fmt: skip
    assert "(rooms).data: expected INT64 values" in server.post("/v2/models/sklearn/infer", body).error
