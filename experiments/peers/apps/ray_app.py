"""Ray Serve: `@serve.batch` of up to 32 rows in one replica, which wait for PEER_WAIT_MS at most."""

import os
import runpy
import time
from typing import Any, cast

import ray
import torch
from ray import serve
from starlette.requests import Request

WAIT_S = float(os.environ["PEER_WAIT_MS"]) / 1e3
MODEL = os.environ["PEER_MODEL"]


@serve.deployment(num_replicas=1, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 1})
class Mlp:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = runpy.run_path(MODEL)["build"]().eval()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=WAIT_S)
    async def run(self, rows: list[list[float]]) -> list[list[float]]:
        with torch.inference_mode():
            return self.model(torch.tensor(rows)).tolist()

    async def __call__(self, request: Request) -> dict[str, Any]:
        if request.method == "GET":
            return {"state": "ready"}
        return {"y": await self.run((await request.json())["x"])}


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80 << 20, _node_ip_address="127.0.0.1")
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PEER_PORT"])})
    serve.run(cast("Any", Mlp).bind(), route_prefix="/predict")
    while True:
        time.sleep(3600)
