"""mosec: a Rust front, one worker, batches of up to 32 rows, which wait for PEER_WAIT_MS at most."""

import os
import runpy
import sys
from typing import Any

import torch
from mosec import Server, Worker


class Inference(Worker):
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = runpy.run_path(os.environ["PEER_MODEL"])["build"]().eval()

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        with torch.inference_mode():
            out = self.model(torch.tensor([one["x"] for one in data]))
        return [{"y": row} for row in out.tolist()]


if __name__ == "__main__":
    sys.argv += ["--address", "127.0.0.1", "--port", os.environ["PEER_PORT"], "--timeout", "60000"]
    server = Server()
    server.append_worker(Inference, num=1, max_batch_size=32, max_wait_time=int(os.environ["PEER_WAIT_MS"]))
    server.run()
