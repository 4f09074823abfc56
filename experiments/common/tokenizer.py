"""A tokenizer as BERT has it, of a vocabulary of one's own: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def bert_tokenizer(tokens: Sequence[str], longest: int, *, pieces: bool = True) -> Any:
    """Of transformers, for texts and pairs of them. `tokens` hold those of SPECIAL. Without `pieces` a word is one
    token, as it is written."""
    import transformers
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordLevel, WordPiece

    ids = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer((WordPiece if pieces else WordLevel)(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if pieces else pre_tokenizers.WhitespaceSplit()
    if pieces:
        made.normalizer = normalizers.BertNormalizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )  # fmt: skip
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=longest, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip
