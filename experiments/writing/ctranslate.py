"""CTranslate2 with the same shape: `pip install ctranslate2`, then `python -m experiments.writing.ctranslate`.

T5-small's shape with random weights on one thread, without a server, in batches that all write as many tokens as the
requests of `writing` do on average: nothing of a batch is wasted, so this is more than it would serve.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import transformers

from app.models.sources.imports import optional
from experiments.training.writer import END
from experiments.writing import live, models

SIZES, ROWS, ROUNDS = (1, 8, 32), 128, 3


def converted(folder: Path, kind: str) -> Any:
    """A translator of these weights, in a precision."""
    library: Any = optional("ctranslate2")
    weights = folder / "weights"
    models.save_weights(weights, "t5")
    tokenizer = transformers.AutoTokenizer.from_pretrained(weights)
    tokenizer.unk_token = tokenizer.pad_token = END  # which it asks for
    tokenizer.save_pretrained(weights)
    place = str(folder / "converted")
    library.converters.TransformersConverter(str(weights)).convert(place, quantization=kind, force=True)
    return library.Translator(place, device="cpu", intra_threads=1, inter_threads=1, compute_type=kind), tokenizer


def main() -> None:
    for kind in ("int8", "float32"):
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
            folder = Path(name)
            translator, tokenizer = converted(folder, kind)
            requests = json.loads(live.write_requests(folder, 0)[""].read_text())[:ROWS]
            read = [tokenizer.convert_ids_to_tokens(one["inputs"][0]["data"]) for one in requests]
            tokens = round(mean(one["inputs"][1]["data"][0] for one in requests))
            for size in SIZES:
                rates = []
                rows = read if size > 1 else read[:16]
                for _ in range(ROUNDS):
                    began = time.perf_counter()
                    for first in range(0, len(rows), size):
                        translator.translate_batch(
                            rows[first : first + size], beam_size=1, min_decoding_length=tokens,
                            max_decoding_length=tokens, max_batch_size=size,
                        )  # fmt: skip
                    rates.append(len(rows) / (time.perf_counter() - began))
                print(f"{kind}, batches of {size}: {median(rates):.1f} rows/s of {tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
