"""A BERT of two layers with random weights, as transformers saves it: small enough to be written for a measurement."""

from __future__ import annotations

from pathlib import Path

TEXT = "The staff were friendly and the room was clean, but breakfast was cold and the street was loud at night."


def save_small_bert(folder: Path) -> None:
    """Write the model for text classification, its tokenizer of the words in TEXT, and a model.toml."""
    import torch
    import transformers
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = sorted({word.strip(",.").lower() for word in TEXT.split()} | {",", "."})
    tokenizer = Tokenizer(WordPiece({word: n for n, word in enumerate([*special, *words])}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=128, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(special) + len(words), hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=512, max_position_embeddings=128, id2label={0: "NEGATIVE", 1: "POSITIVE"},
        label2id={"NEGATIVE": 0, "POSITIVE": 1},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
    (folder / "model.toml").write_text('source = "hf:."\ntask = "text-classification"\n', encoding="utf-8")
