"""LitServe, which is asked in JSON: batches of up to 32 rows that wait for at most 1 ms."""

from __future__ import annotations

import sys
from typing import Any

import litserve
import numpy as np
import torch

from experiments.gpu.apps import bert

port, place, _, size = sys.argv[1:]


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = bert.load(place, size)

    def decode_request(self, request: dict[str, list[int]]) -> bytes:
        return np.array(request["ids"], np.int32).tobytes()

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        return output

    def predict(self, bodies: Any) -> Any:
        one = isinstance(bodies, bytes)
        with torch.inference_mode():
            found = bert.answers(self.model(bert.rows_of([bodies] if one else bodies, place)))
        return found[0] if one else found

    def encode_response(self, output: bytes) -> dict[str, list[float]]:
        return {"y": np.frombuffer(output, np.float32).tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="auto" if place == "cuda" else "cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning")
