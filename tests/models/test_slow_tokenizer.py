"""Models that write with a tokenizer in Python, as Marian's is: the same texts as transformers' own, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_decoders as tiny
import torch
import transformers
from transformers import PreTrainedTokenizer

from app.contract import ModelSource
from app.errors import ConfigError
from app.models.decoders.texts import TextDecoder
from app.models.loading import load
from app.models.tasks import opening

MOST = 20
TEXT = "the ferry"


class Letters(PreTrainedTokenizer):  # type: ignore[misc]
    """Each letter a token; those of no letter are spaces, which the text of some tokens does not begin or end with."""

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, words: int) -> None:
        self._words = words
        super().__init__(pad_token="<pad>", eos_token="</s>", model_max_length=tiny.POSITIONS)

    @property
    def vocab_size(self) -> int:
        return self._words

    def get_vocab(self) -> dict[str, int]:
        return {self._convert_id_to_token(number): number for number in range(self._words)}

    def _tokenize(self, text: str) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return {"<pad>": tiny.PAD, "</s>": tiny.END}.get(token) or 2 + ord(token) % (self._words - 2)

    def _convert_id_to_token(self, index: int) -> str:
        return {tiny.PAD: "<pad>", tiny.END: "</s>"}.get(index) or chr(ord("a") + index % 27).replace("{", " ")

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens).strip()

    def build_inputs_with_special_tokens(self, ids: list[int], other: Any = None) -> list[int]:
        return [*ids, tiny.END]


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    tiny.save(tmp_path, "marian", MOST)
    made = Letters(len(tiny.tokenizer()))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *args, **options: made)
    return made


def test_texts_are_those_of_generate(slow: Any, tmp_path: Path) -> None:
    model = load(ModelSource("m", 1, tmp_path))
    assert isinstance(model.call, TextDecoder)
    assert model.front is not None
    array: Any = np.empty(1, object)
    array[0] = TEXT.encode()
    (read,) = model.front.read([[array]])
    asked = slow(TEXT, return_tensors="pt")
    assert read.arrays[0].tolist() == asked.input_ids.tolist()
    wanted = tiny.generated(tiny.model("marian"), asked.input_ids[0].tolist(), MOST)
    with torch.inference_mode():
        (written,), *_ = model.call(asked.input_ids, asked.attention_mask, parameters=[{}])
    assert written.decode() == slow.decode(wanted, skip_special_tokens=True)
    pieces = model.call.start(asked.input_ids[0].tolist(), {})
    sent = ""
    for token in wanted:
        pieces.add(token, frozenset({tiny.END}))
        sent += pieces.piece()
    assert sent.encode() == written


def test_a_missing_sentencepiece_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.save(tmp_path, "marian", MOST)
    (tmp_path / "weights" / "source.spm").touch()

    def refuse(*args: Any, **options: Any) -> None:
        raise ImportError("MarianTokenizer requires the SentencePiece library")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="sentencepiece is not installed: pip install sentencepiece, in"):
        load(ModelSource("m", 1, tmp_path))
    monkeypatch.setattr(opening, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="requires the SentencePiece library"):  # it is something else
        load(ModelSource("m", 1, tmp_path))


def test_other_tasks_need_a_fast_one(slow: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a fast tokenizer"):
        opening._open_tokenizer(str(tmp_path / "weights"), "fill-mask")
