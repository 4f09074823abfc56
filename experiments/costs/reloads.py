"""Resident memory over many loads and unloads: `python -m experiments.costs.reloads`.

A server with model control loads, calls and unloads a model of each kind again and again. Printed is its resident
memory after every twentieth cycle, and that after the last as a multiple of that after the twentieth: at most 1.2.
`--versions`: reload the model, without an unload. `--growth`: instead, calls of a model that leaves a cycle of 10 MB
behind with each; its memory must stay bounded while the server is never idle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

from loadtest.common.servers import Server, starling

KINDS = ("module", "onnx", "pt2", "transformers")
LIMIT = 1.2  # times the memory after FIRST cycles
FIRST = 20
GROWTH_CALLS = 300
_HIDDEN = 1024
_TENSORS = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [{width}]

[[outputs]]
name = "y"
datatype = "FP32"
shape = [{width}]
"""
_NETWORK = '''
import torch


def build(layers):
    """{width} x {width} FP32 weights a layer."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear({width}, {width}) for _ in range(layers)))
'''
_LEAVER = """
import torch


class Kept:
    pass


def forward(x):
    kept = Kept()
    kept.me = kept
    kept.values = torch.ones(2_500_000)
    return x + kept.values[0]


def build():
    return forward
"""


# models of one size in each kind


def write(folder: Path, kind: str, mib: int) -> None:
    """A model folder with some `mib` MiB of weights."""
    folder.mkdir()
    toml = f'source = "{{source}}"\n{_TENSORS.format(width=_HIDDEN)}'
    layers = max(1, round(mib * (1 << 20) / (4 * _HIDDEN * _HIDDEN)))
    if kind == "module":
        (folder / "model.py").write_text(_NETWORK.format(width=_HIDDEN), encoding="utf-8")
        toml = toml.replace('"{source}"\n', f'"model.py:build"\nkwargs = {{ layers = {layers} }}\n')
    elif kind == "onnx":
        _write_onnx(folder / "model.onnx", layers)
    elif kind == "pt2":
        _write_exported(folder / "model.pt2", layers)
    elif kind == "transformers":
        _write_bert(folder, mib)
        toml = 'source = "hf:."\ntask = "text-classification"\n'
    else:
        (folder / "model.py").write_text(_LEAVER, encoding="utf-8")
        toml = toml.replace("{source}", "model.py:build")
    (folder / "model.toml").write_text(toml.replace("{source}", f"model.{kind}"), encoding="utf-8")


def _write_onnx(path: Path, layers: int) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).normal(0, 0.03, (_HIDDEN, _HIDDEN)).astype(np.float32)
    names = ["x", *(f"h{number}" for number in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(layers)]
    tensors = [numpy_helper.from_array(weight + n, f"w{n}") for n in range(layers)]
    shape: list[str | int | None] = ["batch", _HIDDEN]
    graph = helper.make_graph(
        nodes, "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        tensors,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def _write_exported(path: Path, layers: int) -> None:
    import torch

    network = torch.nn.Sequential(*(torch.nn.Linear(_HIDDEN, _HIDDEN) for _ in range(layers)))
    program = torch.export.export(
        network, (torch.ones(2, _HIDDEN),), dynamic_shapes={"input": {0: torch.export.Dim.DYNAMIC}}
    )
    torch.export.save(program, path)


TEXT = "The staff were friendly and the room was clean, but breakfast was cold and the street was loud at night."


def _write_bert(folder: Path, mib: int) -> None:
    import transformers

    from experiments.common.tokenizer import SPECIAL, bert_tokenizer

    words = sorted({word.strip(",.").lower() for word in TEXT.split()} | {",", "."})
    tokens = [*SPECIAL, *words]
    bert_tokenizer(tokens, 128).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(tokens), hidden_size=512, num_hidden_layers=max(1, round(mib / 12)), num_attention_heads=8,
        intermediate_size=2048, max_position_embeddings=128,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)


# what a server is told


class Client:
    """One connection."""

    def __init__(self, server: Server) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=120)

    def post(self, path: str, body: object = None) -> None:
        """Raises RuntimeError unless the answer is 200."""
        self._connection.request("POST", path, b"" if body is None else json.dumps(body).encode())
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text[:500]!r}")

    def infer(self, kind: str) -> None:
        if kind == "transformers":
            self.post("/v1/models/model:predict", {"instances": ["the room was clean"]})
        else:
            self.post("/v1/models/model:predict", {"instances": [[0.0] * _HIDDEN]})


def resident_mib(server: Server) -> float:
    """Memory of the server that is resident, without pages of files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")) / 1024


def cycles(kind: str, count: int, mib: int, *, versions: bool, say: Callable[[str], None]) -> float:
    """Load, call and unload so often. Returns the memory at the end as a multiple of that after FIRST cycles."""
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "model", kind, mib)
        with starling(["--models", place, "--model-control", "--profile-dir", f"{place}.profiles"]) as server:
            server.wait_ready()
            client, began, first = Client(server), time.perf_counter(), 0.0
            say(f"{kind}: at the start {resident_mib(server):.0f} MiB")
            for cycle in range(1, count + 1):
                if not versions:
                    client.post("/v2/repository/models/model/unload")
                client.post("/v2/repository/models/model/load")
                client.infer(kind)
                if cycle % FIRST == 0:
                    now = resident_mib(server)
                    first = first or now
                    say(f"{kind}: after {cycle} cycles {now:.0f} MiB, {time.perf_counter() - began:.0f} s")
            return resident_mib(server) / (first or 1.0)


def growth(say: Callable[[str], None]) -> float:
    """Calls that each leave a cycle of 10 MB. Returns the largest memory in MiB beyond that of the start."""
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "model", "leaver", 0)
        with starling(["--models", place, "--profile-dir", f"{place}.profiles"]) as server:
            server.wait_ready()
            client, most = Client(server), 0.0
            before = resident_mib(server)
            for call in range(1, GROWTH_CALLS + 1):
                client.infer("leaver")
                most = max(most, resident_mib(server) - before)
                if call % 50 == 0:
                    say(f"leaver: {call} calls, at most {most:.0f} MiB more")
            return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=KINDS, help=f"of {', '.join(KINDS)}")
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--versions", action="store_true")
    parser.add_argument("--growth", action="store_true")
    chosen = parser.parse_args()
    if chosen.growth:
        print(f"leaver: at most {growth(print):.0f} MiB beyond the start in {GROWTH_CALLS} calls")
        return 0
    grown = {
        kind: cycles(
            kind, chosen.cycles, chosen.mib, versions=chosen.versions, say=lambda text: print(text, flush=True)
        )
        for kind in chosen.kinds
    }
    for kind, times in grown.items():
        print(f"{kind}: {times:.2f} times the memory after {FIRST} cycles")
    return int(max(grown.values()) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
