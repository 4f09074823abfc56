"""Tiny decoders of transformers with random weights, one of each architecture that runs step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

POSITIONS = 96
KINDS = ("t5", "marian", "gpt2", "llama")
PAD, END = 0, 1


def tokenizer() -> Any:
    """Of bytes: each is a token, so that a character may be several."""
    vocabulary = {"<pad>": PAD, "</s>": END}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    made = Tokenizer(BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="</s>", model_max_length=POSITIONS
    )


def model(kind: str, seed: int = 1) -> Any:
    """Weights so large that what is written depends on all that was read."""
    both: dict[str, Any] = {"vocab_size": len(tokenizer()), "eos_token_id": END, "pad_token_id": PAD}
    torch.manual_seed(seed)
    configs: dict[str, Callable[[], Any]] = {
        "t5": lambda: transformers.T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=PAD, **both
        ),
        "marian": lambda: transformers.MarianConfig(
            d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=POSITIONS, decoder_start_token_id=PAD,
            forced_eos_token_id=None, init_std=0.3, **both,
        ),
        "gpt2": lambda: transformers.GPT2Config(
            n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4, bos_token_id=END, initializer_range=0.3, **both
        ),
        "llama": lambda: transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=POSITIONS, bos_token_id=END, initializer_range=0.3, **both,
        ),
    }  # fmt: skip
    auto = transformers.AutoModelForCausalLM if kind in ("gpt2", "llama") else transformers.AutoModelForSeq2SeqLM
    made: Any = auto.from_config(configs[kind]())
    if kind == "t5":
        for value in made.parameters():
            value.data.mul_(2)
    return made.eval()


def task_of(kind: str) -> str:
    return "text-generation" if kind in ("gpt2", "llama") else "translation"


def save(folder: Path, kind: str, most: int | None = 20) -> Any:
    """A folder with model.toml; returns the model. `most`: the tokens of a text, None: as many as there is room for."""
    made = model(kind)
    weights = folder / "weights"
    made.save_pretrained(weights)
    tokenizer().save_pretrained(weights)
    (folder / "model.toml").write_text(
        f'source = "hf:weights"\ntask = "{task_of(kind)}"\n'
        + (f"[task_options]\nmax_new_tokens = {most}\n" if most else "")
    )
    return made


def generated(made: Any, ids: list[int], most: int) -> list[int]:
    """What the model's own `generate` writes for this row alone."""
    with torch.inference_mode():
        whole = made.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64), do_sample=False,
            num_beams=1, max_new_tokens=most,
        )[0].tolist()  # fmt: skip
    return whole[1:] if made.config.is_encoder_decoder else whole[len(ids) :]
