"""LitServe: batches of up to 32 rows, which wait for PEER_WAIT_MS at most."""

import os
import runpy
from typing import Any

import litserve
import torch


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.model = runpy.run_path(os.environ["PEER_MODEL"])["build"]().eval()

    def decode_request(self, request: dict[str, Any]) -> torch.Tensor:
        return torch.tensor(request["x"])

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model(x)

    def encode_response(self, output: torch.Tensor) -> dict[str, Any]:
        return {"y": output.tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=float(os.environ["PEER_WAIT_MS"]) / 1e3)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=60)
    server.run(host="127.0.0.1", port=int(os.environ["PEER_PORT"]), generate_client_file=False, log_level="warning")
