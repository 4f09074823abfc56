"""Tokenizers of models that write: chat templates, and tokenizers in Python."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pytest
import tiny_decoders as tiny
import torch
import transformers
from transformers import PreTrainedTokenizer

from app.errors import BadText, ConfigError
from app.models.decoders.texts import TextDecoder
from app.models.tasks import task_opening
from app.models.tasks.text_readers import TOKENS, ReadingRules
from app.models.tasks.writing import ConversationReader

from .folders import loaded
from .task_models import texts

# Conversations are read as the tokenizer's own chat template has them, special tokens and all.


TEMPLATE = (
    "{% for one in messages %}{% if one.role == 'odd' %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ one.content }}</s>{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
TALK = [{"role": "user", "content": "late?"}, {"role": "assistant", "content": "yes"}]


@pytest.fixture(scope="module")
def words():
    made = tiny.tokenizer()
    made.chat_template = TEMPLATE
    return made


@pytest.fixture
def reader(words):
    return ConversationReader(words, len(words), ReadingRules(24, tiny.PAD, prompt="never here"))


def sent(conversation):
    return [texts([json.dumps(conversation)])]


def test_the_template_writes_all_of_a_text(words, reader):
    one, two = reader.read([sent(TALK), sent(TALK[:1])])
    for read, talk in ((one, TALK), (two, TALK[:1])):
        expected = words.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert read.arrays[0].tolist() == [expected]
        assert read.lengths == {TOKENS: len(expected)}
        assert expected.count(tiny.END) == len(talk)


def test_a_template_that_does_not_know_developers_gets_them_as_system(words, reader):
    talk = [{"role": "developer", "content": "x"}]
    assert reader.call_texts(sent(talk)).texts == ["x</s>a:"]
    for template, role in (
        ("{{ messages[0].role }}", "system"),
        ("{{ messages[0].role }}{# developer #}", "developer"),
    ):
        other = tiny.tokenizer()
        other.chat_template = template
        read = ConversationReader(other, len(words), ReadingRules(24, tiny.PAD))
        assert read.call_texts(sent(talk)).texts == [role]


@pytest.mark.parametrize(
    ("talk", "wrong"),
    [
        ([{"role": "odd", "content": ""}], "refused by the model's chat template: "),
        ([{"role": "user", "content": "x" * 22}], "expected at most 24 tokens, got 25"),
    ],
)
def test_a_conversation_that_cannot_be_read(reader, talk, wrong):
    with pytest.raises(BadText) as raised:
        reader.read([sent(talk)])
    assert (raised.value.name, raised.value.row) == ("messages", None)
    assert raised.value.wrong.startswith(wrong)


# Models that write with a tokenizer in Python, as Marian's is: the same texts as transformers' own, token by token.


MOST = 20
TEXT = "the ferry"


class Letters(PreTrainedTokenizer):
    """Each letter a token; those of no letter are spaces, which the text of some tokens does not begin or end with."""

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012

    def __init__(self, words):
        self._words = words
        super().__init__(pad_token="<pad>", eos_token="</s>", model_max_length=tiny.POSITIONS)

    @property
    def vocab_size(self):
        return self._words

    def get_vocab(self):
        return {self._convert_id_to_token(number): number for number in range(self._words)}

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return {"<pad>": tiny.PAD, "</s>": tiny.END}.get(token) or 2 + ord(token) % (self._words - 2)

    def _convert_id_to_token(self, index):
        return {tiny.PAD: "<pad>", tiny.END: "</s>"}.get(index) or chr(ord("a") + index % 27).replace("{", " ")

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens).strip()

    def build_inputs_with_special_tokens(self, ids, other=None):
        return [*ids, tiny.END]


@pytest.fixture
def slow(tmp_path, monkeypatch):
    tiny.save(tmp_path, "marian", MOST)
    made = Letters(len(tiny.tokenizer()))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *args, **options: made)
    return made


def test_texts_are_those_of_generate(slow, tmp_path):
    model = loaded(tmp_path)
    assert isinstance(model.call, TextDecoder)
    (read,) = model.front.reader.read([[texts([TEXT])]])
    asked = slow(TEXT, return_tensors="pt")
    assert read.arrays[0].tolist() == asked.input_ids.tolist()
    wanted = tiny.generated(tiny.model("marian"), asked.input_ids[0].tolist(), MOST)
    with torch.inference_mode():
        (written,), *_ = model.call(asked.input_ids, asked.attention_mask, parameters=[{}])
    assert written.decode() == slow.decode(wanted, skip_special_tokens=True)
    (pieces,) = model.call.start_all(asked.input_ids, [asked.input_ids.shape[1]], [{}])
    sent = ""
    for token in wanted:
        pieces.add(token)
        sent += pieces.piece()
    assert sent.encode() == written


def test_a_missing_sentencepiece_is_named(tmp_path, monkeypatch):
    tiny.save(tmp_path, "marian", MOST)
    (tmp_path / "weights" / "source.spm").touch()

    refuses = Mock(side_effect=ImportError("MarianTokenizer requires the SentencePiece library"))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuses)
    monkeypatch.setattr(task_opening, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="sentencepiece is not installed: pip install sentencepiece, in"):
        loaded(tmp_path)
    monkeypatch.setattr(task_opening, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="requires the SentencePiece library"):  # it is something else
        loaded(tmp_path)


def test_other_tasks_need_a_fast_one(slow, tmp_path):
    with pytest.raises(ConfigError, match="expected a fast tokenizer"):
        task_opening._open_tokenizer(str(tmp_path / "weights"), "fill-mask")
