"""A BERT for texts with random weights, its tokenizer, and sentences: nothing is downloaded.

Its size is that of BERT-Tiny (2 layers of 128, 30,522 tokens: https://huggingface.co/google/bert_uncased_L-2_H-128_A-2).
Words are made of syllables and drawn by Zipf's law; the rarest tenth are not in the vocabulary, and are read in pieces.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import torch

from experiments.common.tokenizer import SPECIAL, bert_tokenizer

WORDS = 30_522
SHORTEST, LONGEST = 5, 30  # words of a sentence
_STARTS, _VOWELS, _ENDS = (
    ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "st", "tr"],
    ["a", "e", "i", "o", "u", "ai", "ou"],
    ["", "n", "r", "s"],
)
_UNKNOWN = 3_000  # words that are read in pieces


def words_and_vocabulary() -> tuple[list[str], list[str]]:
    """The words of sentences, the most frequent first, and the tokens."""
    syllables = ["".join(parts) for parts in itertools.product(_STARTS, _VOWELS, _ENDS)]
    letters = [mark + chr(code) for code in range(ord("a"), ord("z") + 1) for mark in ("", "##")]
    pieces = [f"##{one}" for one in syllables]
    known = WORDS - len(SPECIAL) - len(letters) - len(pieces) - len(syllables)
    rng = np.random.default_rng(0)
    drawn = np.array(syllables)
    longer = {"".join(rng.choice(drawn, rng.integers(2, 4))): None for _ in range(2 * WORDS)}
    words = [*syllables, *itertools.islice(longer, known + _UNKNOWN)]
    return words, [*SPECIAL, *letters, *pieces, *words[: len(syllables) + known]]


def sentences(count: int, seed: int) -> list[str]:
    words = np.array(words_and_vocabulary()[0])
    rng = np.random.default_rng([seed, 5])
    shares = 1 / np.arange(1, len(words) + 1)
    lengths = rng.integers(SHORTEST, LONGEST + 1, count)
    return [" ".join(rng.choice(words, length, p=shares / shares.sum())) + "." for length in lengths]


def save(folder: Path) -> None:
    """The weights and the tokenizer, as `save_pretrained` writes them."""
    import transformers

    _, vocabulary = words_and_vocabulary()
    vocabulary[len(SPECIAL) + 1] = "."
    bert_tokenizer(vocabulary, 512).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        max_position_embeddings=512, initializer_range=0.2,
        id2label={0: "NEGATIVE", 1: "POSITIVE"}, label2id={"NEGATIVE": 0, "POSITIVE": 1},
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
