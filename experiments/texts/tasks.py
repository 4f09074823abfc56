"""What is compared: vectors of texts, and scores of documents for a query; over HTTP, and by sentence-transformers."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.texts.models import save_encoder, sentence, texts
from loadtest.common.servers import MeasurementError

QUERY = sentence(np.random.default_rng(0), 6)
_BATCH = 32
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Task:
    """`task`: as model.toml names it. `rows`: of a request of one of many clients; `special`: tokens of a row that are
    not its text's.
    """

    name: str
    task: str
    path: str
    rows: int
    special: int

    @property
    def scores(self) -> bool:
        return self.task == "rerank"

    def save(self, folder: Path, batching: str) -> None:
        """The model's folder, with these lines of `[batching]`."""
        save_encoder(folder / "weights", scores=self.scores)
        toml = f'source = "hf:weights"\ntask = "{self.task}"\n\n[batching]\nmax_batch = {_BATCH}\n{batching}\n'
        (folder / "model.toml").write_text(toml, encoding="utf-8")

    def texts(self, count: int, lengths: str, seed: int) -> list[str]:
        return texts(count, lengths, special=self.special, seed=seed)

    def body(self, given: Sequence[str]) -> bytes:
        if self.scores:
            return json.dumps({"model": self.name, "query": QUERY, "documents": list(given)}).encode()
        return json.dumps({"model": self.name, "input": list(given), "encoding_format": "float"}).encode()

    def values(self, answer: Any) -> Array:
        """Of an answer: a vector of each text, or the score of each, in the order of the texts."""
        if self.scores:
            ranked = sorted(answer["results"], key=lambda one: one["index"])
            return np.array([one["relevance_score"] for one in ranked])
        return np.array([one["embedding"] for one in answer["data"]])

    def library(self, folder: Path) -> Callable[[Sequence[str]], Array]:
        """The same by sentence-transformers, on one thread. Raises MeasurementError where it is not installed."""
        try:
            library = importlib.import_module("sentence_transformers")
        except ModuleNotFoundError:
            raise MeasurementError(
                "sentence-transformers is not installed: pip install sentence-transformers"
            ) from None
        torch.set_num_threads(1)
        weights = str(folder / "weights")
        if self.scores:
            ranker = library.CrossEncoder(weights, device="cpu")
            return lambda given: np.asarray(
                ranker.predict([(QUERY, text) for text in given], batch_size=_BATCH, show_progress_bar=False)
            )
        encoder = library.SentenceTransformer(weights, device="cpu")
        return lambda given: np.asarray(encoder.encode(list(given), batch_size=_BATCH, show_progress_bar=False))


TASKS = (
    Task("vectors", "feature-extraction", "/v1/embeddings", 1, 2),
    Task("ranker", "rerank", "/v1/rerank", 16, 3 + len(QUERY.split())),
)
