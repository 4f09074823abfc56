"""BentoML: adaptive batching of up to 32 rows in one worker. It decides by itself how long to wait."""

import os
import runpy

import bentoml
import numpy as np
import torch


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 4096})
class Mlp:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = runpy.run_path(os.environ["PEER_MODEL"])["build"]().eval()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000, route="/predict")
    def predict(self, x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.model(torch.from_numpy(np.asarray(x, dtype=np.float32))).numpy()
