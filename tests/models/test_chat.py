"""Conversations are read as the tokenizer's own chat template has them, special tokens and all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tiny_decoders as tiny

from app.contract import Array
from app.errors import BadText
from app.models.tasks.texts import TOKENS, Reading, TextReader
from app.models.tasks.writing import ConversationReader

TEMPLATE = (
    "{% for one in messages %}{% if one.role == 'odd' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ one.content }}</s>{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
TALK = [{"role": "user", "content": "late?"}, {"role": "assistant", "content": "yes"}]


@pytest.fixture(scope="module")
def words() -> Any:
    made = tiny.tokenizer()
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def reader(words: Any) -> ConversationReader:
    return ConversationReader(TextReader(words, len(words), Reading(24, tiny.PAD, prompt="never here")), words)


def sent(*conversations: Any) -> list[Array]:
    values: Array = np.empty(len(conversations), object)
    values[:] = [json.dumps(one).encode() for one in conversations]
    return [values]


def test_the_template_writes_all_of_a_text(words: Any, reader: ConversationReader) -> None:
    one, two = reader.read([sent(TALK), sent(TALK[:1])])
    for read, talk in ((one, TALK), (two, TALK[:1])):
        expected = words.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert read.arrays[0].tolist() == [expected]
        assert read.lengths == {TOKENS: len(expected)}
        assert expected.count(tiny.END) == len(talk)


@pytest.mark.parametrize(
    ("talk", "wrong"),
    [
        ([{"role": "odd", "content": ""}], "refused by the model's chat template: "),
        ([{"role": "user", "content": "x" * 22}], "expected at most 24 tokens, got 25"),
    ],
)
def test_a_conversation_that_cannot_be_read(reader: ConversationReader, talk: Any, wrong: str) -> None:
    with pytest.raises(BadText) as raised:
        reader.read([sent(talk)])
    assert (raised.value.name, raised.value.row) == ("messages", None)
    assert raised.value.wrong.startswith(wrong)
