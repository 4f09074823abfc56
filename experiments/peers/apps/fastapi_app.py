"""FastAPI by hand: one row a call, on FastAPI's thread pool."""

import os
import runpy

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

torch.set_num_threads(1)
model = runpy.run_path(os.environ["PEER_MODEL"])["build"]().eval()
app = FastAPI()


class Query(BaseModel):
    x: list[float]


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
def predict(query: Query) -> dict[str, list[float]]:
    with torch.inference_mode():
        return {"y": model(torch.tensor([query.x]))[0].tolist()}


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PEER_PORT"]), log_level="warning")
