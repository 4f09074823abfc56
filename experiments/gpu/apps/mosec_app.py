"""mosec: a Rust front, one worker, batches of up to 32 rows that wait for at most 1 ms."""

from __future__ import annotations

import os
import sys

import torch
from mosec import Server, Worker

from experiments.gpu.apps import bert

if "--port" not in sys.argv:  # a worker's process runs this module again, with the arguments that mosec reads
    port, place, _, size = sys.argv[1:]
    os.environ["BERT"] = f"{place} {size}"
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", port, "--timeout", "60000"]
device, size = os.environ["BERT"].split()


class Inference(Worker):
    def __init__(self) -> None:
        self.model = bert.load(device, size)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        with torch.inference_mode():
            return bert.answers(self.model(bert.rows_of(data, device)))


if __name__ == "__main__":
    server = Server()
    server.append_worker(Inference, num=1, max_batch_size=32, max_wait_time=1)
    server.run()
