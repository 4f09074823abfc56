"""FastAPI by hand: one row a request behind a lock, on a thread pool; `graph`: replays a CUDA graph of one row."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from experiments.gpu.apps import bert

port, device, how, size = sys.argv[1:]
model = bert.load(device, size)
lock = threading.Lock()
app = FastAPI()


def eager(body: bytes) -> bytes:
    with lock, torch.inference_mode():
        return bert.answers(model(bert.rows_of([body], device)))[0]


def graph_of_one() -> Callable[[bytes], bytes]:
    given = torch.zeros((1, bert.TOKENS), dtype=torch.int32, device=device)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(given)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(given)

    def replayed(body: bytes) -> bytes:
        with lock, torch.inference_mode():
            given.copy_(bert.rows_of([body], "cpu"))
            graph.replay()
            return bert.answers(out)[0]

    return replayed


infer = graph_of_one() if how == "graph" and device == "cuda" else eager
infer(bytes(4 * bert.TOKENS))


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
async def predict(request: Request) -> Response:
    body = await request.body()
    return Response(await run_in_threadpool(infer, body), media_type="application/octet-stream")


uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
