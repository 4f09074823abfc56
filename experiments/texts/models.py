"""An encoder of texts with random weights, as transformers saves it, and texts for it: a word is a token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from experiments.common.tokenizer import SPECIAL, bert_tokenizer
from planner.drawn_lengths import Lengths

WORDS = 2_000
MOST = 128  # tokens
LAYERS, WIDTH = 6, 256


def save_encoder(folder: Path, *, scores: bool) -> None:
    """One that makes vectors, or one that gives a pair of texts one score."""
    config = transformers.BertConfig(
        vocab_size=WORDS + len(SPECIAL), hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=4 * WIDTH, max_position_embeddings=MOST, id2label={0: "score"}, label2id={"score": 0},
    )  # fmt: skip
    torch.manual_seed(0)
    kind = transformers.BertForSequenceClassification if scores else transformers.BertModel
    kind(config).eval().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> Any:
    return bert_tokenizer([*SPECIAL, *(f"word{number}" for number in range(WORDS))], MOST, pieces=False)


def texts(count: int, lengths: str, *, special: int, seed: int) -> list[str]:
    """So many texts; with `special` tokens around them they are as long as `lengths` says."""
    random = np.random.default_rng([seed, 1])
    return [sentence(random, max(1, length - special)) for length in Lengths(lengths, [seed]).draw(count).tolist()]


def sentence(random: np.random.Generator, words: int) -> str:
    numbers: Sequence[int] = random.integers(0, WORDS, words).tolist()
    return " ".join(f"word{number}" for number in numbers)
