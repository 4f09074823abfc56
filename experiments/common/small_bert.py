"""A BERT of two layers with random weights, as transformers saves it: small enough to be written for a measurement."""

from __future__ import annotations

from pathlib import Path

from experiments.common.tokenizer import SPECIAL, bert_tokenizer

TEXT = "The staff were friendly and the room was clean, but breakfast was cold and the street was loud at night."


def save_small_bert(folder: Path) -> None:
    """Write the model for text classification, its tokenizer of the words in TEXT, and a model.toml."""
    import torch
    import transformers

    words = sorted({word.strip(",.").lower() for word in TEXT.split()} | {",", "."})
    tokens = [*SPECIAL, *words]
    bert_tokenizer(tokens, 128).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokens), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=128, id2label={0: "NEGATIVE", 1: "POSITIVE"},
        label2id={"NEGATIVE": 0, "POSITIVE": 1},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
    (folder / "model.toml").write_text('source = "hf:."\ntask = "text-classification"\n', encoding="utf-8")
