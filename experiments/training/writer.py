"""Train the decoder of writer on the lines of generate's text.txt: `python -m experiments.training.writer`.

Takes a few minutes on one core. Everything is seeded, so the same versions on the same kind of machine give the same
weights. The text is so small that the model learns it by heart: it continues a line that it knows, and makes one up
where it does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from experiments.training.lines import IGNORED
from experiments.training.lines import fit as train

SEED = 0
STEPS = 700
RATE = 4e-3
END = "</s>"
POSITIONS = 128
_TEXT = Path("loadtest/models/generate/text.txt")
_OUT = Path("loadtest/models/writer/weights")


def tokenizer_of_bytes() -> Any:
    """Each byte is a token."""
    vocabulary = {END: 0}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    made = Tokenizer(BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, model_max_length=POSITIONS)


def new_model(words: int) -> Any:
    torch.manual_seed(SEED)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=words,
            n_positions=POSITIONS,
            n_embd=64,
            n_layer=3,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def batch(known: list[list[int]], space: int) -> torch.Tensor:
    """Every line once, padded with IGNORED. A half of them begins at some word inside, as a prompt may."""
    rows = torch.full((len(known), POSITIONS), IGNORED)
    for row, line in zip(rows, known, strict=True):
        words = [place for place, token in enumerate(line[:-12]) if token == space]
        begin = words[int(torch.randint(len(words), ()))] + 1 if words and torch.rand(()) < 0.5 else 0
        row[: len(line) - begin] = torch.tensor(line[begin:])
    return rows


def fit(path: Path, steps: int = STEPS) -> tuple[Any, Any]:
    words = tokenizer_of_bytes()
    model = new_model(len(words))
    known = [[*words(line).input_ids, words.eos_token_id][:POSITIONS] for line in path.read_text().splitlines()]
    space = words(" ").input_ids[0]

    def rows() -> torch.Tensor:
        padded = batch(known, space)
        return padded[:, : int((padded != IGNORED).sum(1).max())]

    train(model, lambda symbols: model(symbols).logits, rows, steps=steps, rate=RATE, decay=1e-2)
    return model, words


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that continues lines.")
    parser.add_argument("--text", type=Path, default=_TEXT)
    parser.add_argument("--out", type=Path, default=_OUT)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, words = fit(arguments.text, arguments.steps)
    model.save_pretrained(arguments.out)
    words.save_pretrained(arguments.out)
    print(f"{sum(path.stat().st_size for path in arguments.out.iterdir())} bytes")


if __name__ == "__main__":
    main()
