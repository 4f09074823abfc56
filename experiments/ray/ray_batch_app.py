"""What Ray Serve offers by itself: a model behind `@serve.batch` as in Ray's documentation, speaking V2 JSON.

Annotations are objects here, not text: the class travels by value, and FastAPI looks their names up where it arrives.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from fastapi import FastAPI, Request, Response

from app.contract import Array, ModelSource
from app.models.loading import load

api = FastAPI()


def build(arguments: Mapping[str, Any]) -> Any:
    """An application of one model in `folder`, in batches of up to `max_batch`, which wait for `wait_s` at most."""
    serve = importlib.import_module("ray.serve")
    folder = Path(arguments["folder"])

    @serve.deployment(name="batch", num_replicas=1, max_ongoing_requests=2048)
    @serve.ingress(api)
    class Batched:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.model = load(ModelSource(folder.name, 1, folder))

        @serve.batch(max_batch_size=arguments["max_batch"], batch_wait_timeout_s=arguments["wait_s"])
        async def run(self, rows: list[Array]) -> list[Array]:
            with torch.inference_mode():
                return list(self.model.call(torch.from_numpy(np.stack(rows))).numpy())

        @api.get("/v2/models/{name}")
        def metadata(self, name: str) -> dict[str, Any]:
            info = self.model.info
            described = {"inputs": info.inputs, "outputs": info.outputs}
            return {"name": name, "versions": ["1"]} | {
                kind: [{"name": one.name, "datatype": one.datatype, "shape": [-1, *one.shape]} for one in specs]
                for kind, specs in described.items()
            }

        @api.post("/v2/models/{name}/infer")
        async def infer(self, name: str, request: Request) -> Response:
            given = orjson.loads(await request.body())["inputs"][0]
            row = np.array(given["data"], np.float32).reshape(given["shape"])[0]
            result = await self.run(row)
            spec = self.model.info.outputs[0]
            output = {"name": spec.name, "datatype": spec.datatype, "shape": [1, *result.shape], "data": result.ravel()}
            answer = {"model_name": name, "model_version": "1", "outputs": [output]}
            return Response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")

    return Batched.bind()
