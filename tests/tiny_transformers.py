"""Folders of tiny transformers models with random weights, as `save_pretrained` writes them: nothing is downloaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "dog", "sat", "ran", "on", "mat", "##s",
    "un", "##happy", "happy", "a", "good", "bad", "day", "in", "paris", "anna", ",", ".", "[MASK]",
]  # fmt: skip
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
MOST = 32  # positions
#: Of one layer, with weights so large that answers differ.
SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "initializer_range": 0.4,
}  # fmt: skip


def save_tokenizer(folder: Path, most: int = MOST, words: list[str] | None = None) -> Any:
    """A WordPiece tokenizer as BERT has it; words without letters of their own are unknown."""
    tokenizer = Tokenizer(WordPiece({word: n for n, word in enumerate(words or WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=most, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)
    return fast


def save_bert(folder: Path, kind: str = "SequenceClassification", seed: int = 0, **config: Any) -> Any:
    """A BERT of one layer with a head of this kind ("" for none) and its tokenizer; returns the model."""
    labels = config.pop("id2label", {0: "NEGATIVE", 1: "NEUTRAL", 2: "POSITIVE"})
    sizes = {"vocab_size": len(WORDS), "max_position_embeddings": MOST} | SMALL
    made = transformers.BertConfig(**sizes, **labelled(labels), **config)
    return _saved(folder, getattr(transformers, f"BertFor{kind}" if kind else "BertModel"), made, seed)


def labelled(labels: dict[int, str]) -> dict[str, Any]:
    return {"id2label": labels, "label2id": {name: n for n, name in labels.items()}}


def save_roberta(folder: Path) -> Any:
    """Its positions begin behind that of padding."""
    sizes = {"vocab_size": len(WORDS), "max_position_embeddings": MOST + 1} | SMALL
    made = transformers.RobertaConfig(pad_token_id=0, type_vocab_size=1, **sizes)
    return _saved(folder, transformers.RobertaForSequenceClassification, made, 0, most=10_000)


def save_byte_level(folder: Path, **config: Any) -> Any:
    """A RoBERTa that tags the tokens of a byte-level tokenizer, which knows a few pairs of bytes."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "an", "na", "in", "is", "\u0120i", "\u0120a", "\u0120p"]
    vocabulary = {word: n for n, word in enumerate(["<s>", "</s>", "<pad>", "<unk>", *words])}
    merges = [(word[:1], word[1:]) for word in words if len(word) == 2]
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>",
        pad_token="<pad>", unk_token="<unk>", model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)
    sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": 100} | SMALL
    made = transformers.RobertaConfig(pad_token_id=2, type_vocab_size=1, **sizes, **labelled(TAGS), **config)
    return _saved(folder, transformers.RobertaForTokenClassification, made, 0, tokenizer=False)


def save_gpt2(folder: Path) -> Any:
    """Reads the last token that is no padding, and has a tokenizer without a token for padding."""
    made = transformers.GPT2Config(
        vocab_size=8, n_embd=16, n_layer=1, n_head=2, n_positions=MOST, bos_token_id=0, eos_token_id=0,
        initializer_range=0.4,
    )  # fmt: skip
    tokenizer = Tokenizer(BPE({"<end>": 0, **{letter: n for n, letter in enumerate("abcdefg", 1)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(folder)
    return _saved(folder, transformers.GPT2ForSequenceClassification, made, 0, tokenizer=False)


def save_vit(folder: Path, processor: bool = True) -> Any:
    labels = {n: f"class {n}" for n in range(7)}
    made = transformers.ViTConfig(image_size=32, patch_size=8, **SMALL, **labelled(labels))
    if processor:
        pil_processor().save_pretrained(folder)
    return _saved(folder, transformers.ViTForImageClassification, made, 0, tokenizer=False)


def save_resnet(folder: Path) -> Any:
    made = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    pil_processor().save_pretrained(folder)
    return _saved(folder, transformers.ResNetForImageClassification, made, 0, tokenizer=False)


def pil_processor() -> Any:
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    return ViTImageProcessorPil(size={"height": 32, "width": 32})


def photo(seed: int = 0, size: tuple[int, int] = (50, 40), kind: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (*size[::-1], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def _saved(folder: Path, kind: Any, config: Any, seed: int, most: int = MOST, tokenizer: bool = True) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).eval()
    model.save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder, most)
    return model
