"""The models of `writing`: weights of a published shape, random, and the same weights as an opaque model of `generate`.

A text's length is what its request asks for: the end token is one that nothing writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn

from app.models.sources.hubs import from_pretrained
from experiments.common.folders import vector, write_model
from experiments.training.writer import tokenizer_of_bytes

READ, WRITTEN = 128, 100  # tokens, at most
KINDS = {"t5": "text2text-generation", "gpt2": "text-generation"}


def save_weights(folder: Path, kind: str) -> None:
    """Of T5-small's or GPT-2-small's shape. The tokenizer reads bytes, and has a text for whatever is written."""
    torch.manual_seed(0)
    made: Any
    if kind == "t5":
        config = transformers.T5Config(decoder_start_token_id=0, pad_token_id=0, eos_token_id=None)
        made = transformers.T5ForConditionalGeneration(config)
    else:
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=None, pad_token_id=0))
    made.save_pretrained(folder)
    tokenizer_of(made.config.vocab_size).save_pretrained(folder)


def tokenizer_of(words: int) -> Any:
    """Of so many tokens, of which those beyond the bytes are only written.

    Token 0, which T5's random weights write, has a text, too: the end token is the last.
    """
    made = tokenizer_of_bytes()
    parts = json.loads(made.backend_tokenizer.to_str())
    vocabulary = parts["model"]["vocab"]
    vocabulary |= {f"w{number}": number for number in (0, *range(len(vocabulary), words - 1))}
    vocabulary[made.eos_token] = parts["added_tokens"][0]["id"] = words - 1
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(parts)), eos_token=made.eos_token, model_max_length=READ
    )


class Whole(nn.Module):
    """A batch of `generate`, as servers that know nothing of steps run it: until its longest row has ended."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.encodes = bool(model.config.is_encoder_decoder)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        """`ids` [rows, longest] padded behind their `lengths`, and how much to write -> the last token of each row."""
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        if not self.encodes:  # padded on the left
            shifted = torch.zeros_like(ids)
            for row, length in enumerate(lengths.tolist()):
                shifted[row, ids.shape[1] - length :] = ids[row, :length]
            ids, mask = shifted, mask.flip(1)
        written = self.model.generate(
            ids, attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=int(most.max()), pad_token_id=0
        )
        first = 1 if self.encodes else ids.shape[1]
        last: torch.Tensor = written[:, first:].gather(1, most[:, None] - 1)[:, 0]
        return last


def whole(folder: str) -> nn.Module:
    """The factory of a model.toml, whose `kwargs` name the folder."""
    config = transformers.AutoConfig.from_pretrained(folder)
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    return Whole(from_pretrained(auto, folder, {}).eval())


def write_cells(folder: Path, weights: Path, kind: str, size: int) -> None:
    limits = {"max_tokens": READ, "max_new_tokens": WRITTEN}
    write_model(
        folder, f"hf:{weights.as_posix()}", batching={"max_batch": size}, task=KINDS[kind], row_check="off",
        task_options=limits,
    )  # fmt: skip


def write_whole(folder: Path, weights: Path, size: int, buckets: list[int]) -> None:
    inputs = [
        vector("ids", "tokens", datatype="INT64", max_shape=[READ], minimum=0, maximum=255),
        vector("lengths", datatype="INT64", lengths="ids"),
        vector("most", datatype="INT64", minimum=1, maximum=WRITTEN),
    ]
    write_model(
        folder, "experiments.writing.models:whole", inputs, [vector("last", datatype="INT64")],
        batching={"max_batch": size, "policy": "no_wait", "length_buckets": buckets}, row_check="off",
        kwargs={"folder": weights.as_posix()},
    )  # fmt: skip
