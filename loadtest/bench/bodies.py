"""V2 requests for a model, made from its metadata."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

from loadtest.bench.load import Request

JSON = "application/json"
SEED = 7


def values(count: int) -> list[float]:
    """Float32 values with the digits of a double, the longest that a client sends; tritonclient's JSON has them."""
    numbers = random.Random(SEED)
    raw = float32([numbers.gauss(0, 1) for _ in range(count)])
    return list(struct.unpack(f"<{count}f", raw))


def one_input(metadata: dict[str, Any], rows: int) -> tuple[str, list[int], int]:
    """Name, shape and number of values of so many rows of the single FP32 input of fixed size."""
    (tensor,) = metadata["inputs"]
    shape = [rows, *tensor["shape"][1:]]
    count = math.prod(shape)
    if tensor["datatype"] != "FP32" or count < 1:
        raise ValueError(f"expected a fixed FP32 input, got {tensor}")
    return tensor["name"], shape, count


def path(metadata: dict[str, Any]) -> str:
    return f"/v2/models/{metadata['name']}/infer"


def v2_json(metadata: dict[str, Any], rows: int = 1) -> Request:
    """Rows as JSON, answered as JSON."""
    name, shape, count = one_input(metadata, rows)
    body = {"inputs": [{"name": name, "shape": shape, "datatype": "FP32", "data": values(count)}]}
    text = json.dumps(body, separators=(",", ":")).encode()
    return Request(f"{metadata['name']} JSON", path(metadata), (("Content-Type", JSON),), text)


def v2_binary(metadata: dict[str, Any], rows: int = 1) -> Request:
    """Rows as raw bytes behind a JSON header, answered the same way."""
    name, shape, count = one_input(metadata, rows)
    tensor = {"name": name, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}, separators=(",", ":")).encode()
    headers = (("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(head))))
    return Request(f"{metadata['name']} binary", path(metadata), headers, head + float32(values(count)))


def check(request: Request, headers: dict[str, str], answer: bytes) -> None:
    """Raise ValueError unless `answer` is one complete output of one row; for `echo` it must equal the input."""
    head = headers.get("inference-header-content-length")
    text = answer if head is None else answer[: int(head)]
    (output,) = json.loads(text)["outputs"]
    count = math.prod(output["shape"])
    got = len(output["data"]) if head is None else output["parameters"]["binary_data_size"] // 4
    sent = len(answer) - len(text)
    if output["shape"][0] != 1 or got != count or (head is not None and sent != 4 * count):
        raise ValueError(f"{request.name}: shape {output['shape']} with {got} values and {sent} raw bytes")
    if request.name.startswith("echo "):
        back = float32(output["data"]) if head is None else answer[len(text) :]
        if back != float32(values(count)):
            raise ValueError(f"{request.name}: the answer is not the input")


def float32(numbers: list[float]) -> bytes:
    """The numbers as little-endian float32, which are equal whether they were written as float32 or as double."""
    return struct.pack(f"<{len(numbers)}f", *numbers)
