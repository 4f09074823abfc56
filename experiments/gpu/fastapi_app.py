"""FastAPI by hand: one row a request behind a lock, on a thread pool; `graph`: replays a CUDA graph of one row."""

from __future__ import annotations

import sys
import threading

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from experiments.gpu.card import CudaCard
from experiments.gpu.networks import TOKENS, whole_bert

port, device, how, size = sys.argv[1:]
torch.set_num_threads(1)
# in the precision that Starling computes in there
model = whole_bert(quick=size == "tiny").to(device, torch.float16 if device == "cuda" else torch.float32).eval()
given = torch.zeros((1, TOKENS), dtype=torch.int32, device=device)
lock = threading.Lock()
app = FastAPI()


def forward() -> torch.Tensor:
    with torch.inference_mode():
        return model(given)


run = forward
if how == "graph" and device == "cuda":
    card = CudaCard([])
    run = card.capture(forward, card.stream())


def infer(body: bytes) -> bytes:
    with lock:
        given.copy_(torch.from_numpy(np.frombuffer(body, np.int32).copy()))
        return run().float().cpu().numpy().tobytes()


infer(bytes(4 * TOKENS))


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
async def predict(request: Request) -> Response:
    body = await request.body()
    return Response(await run_in_threadpool(infer, body), media_type="application/octet-stream")


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
