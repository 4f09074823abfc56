"""Text classification with FastAPI by hand: tokenizer, model and softmax on a thread, one text a call.

`/predict` uses FastAPI's pool of 40 threads, `/predict/one` a single thread.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained(os.environ["PEER_MODEL"])
model = AutoModelForSequenceClassification.from_pretrained(os.environ["PEER_MODEL"]).eval()
one_thread = ThreadPoolExecutor(1)
labels = [model.config.id2label[index] for index in range(model.config.num_labels)]
app = FastAPI()


class Query(BaseModel):
    text: str


@app.get("/health")
def health() -> str:
    return "ok"


@app.post("/predict")
def predict(query: Query) -> list[dict[str, str | float]]:
    with torch.inference_mode():
        inputs = tokenizer(query.text, truncation=True, return_tensors="pt")
        scores = model(**inputs).logits.softmax(-1)[0].tolist()
    found = [{"label": label, "score": score} for label, score in zip(labels, scores, strict=True)]
    return sorted(found, key=lambda one: -one["score"])


@app.post("/predict/one")
async def predict_on_one_thread(query: Query) -> list[dict[str, str | float]]:
    return await asyncio.get_running_loop().run_in_executor(one_thread, predict, query)


uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PEER_PORT"]), log_level="warning")
