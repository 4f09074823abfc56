"""From tokens to text: characters of several bytes, spaces that are removed, one BOS; streamed as whole."""

from __future__ import annotations

import random
from itertools import product
from types import SimpleNamespace

import pytest
import tiny_decoders as tiny
import transformers
from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, WordLevel

from app.contract import TextCut
from app.errors import BadText
from app.models.decoders.detokenizer import Detokenizer, SpaceCleaner
from app.models.decoders.parameters import Parameters
from app.models.decoders.texts import Text

from .task_models import opened, texts

BOS, EOS, FIRST_BYTE = 1, 2, 3


def llamas():
    """A tokenizer with byte fallback, as Llama's: letters are tokens, all other characters are bytes."""
    words = {"<unk>": 0, "<s>": BOS, "</s>": EOS}
    words |= {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    words |= {letter: len(words) + place for place, letter in enumerate("\u2581abcdefghijklmnopqrstuvwxyz")}
    made = Tokenizer(BPE(words, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<unk>"
    )


def written(tokenizer, ids, **asked):
    """The whole text of these tokens, its pieces when streamed, and why it ended."""
    parameters, defaults = Parameters.read(asked), SimpleNamespace(ends={EOS}, do_sample=False, values={})
    of = SimpleNamespace(detokenizer=Detokenizer(tokenizer, tokenizer.backend_tokenizer), defaults=defaults)
    whole, streamed = (Text(of, parameters, [5], len(ids), 1) for _ in range(2))
    pieces = []
    for token in ids:
        if not whole.reason:
            whole.add(token)
            streamed.add(token)
            pieces.append(streamed.piece())
    assert streamed.reason == whole.reason
    return whole.text, pieces, whole.reason


def bytes_of(text):
    return [FIRST_BYTE + byte for byte in text.encode()]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (bytes_of("\u20ac") + bytes_of("\u20ac")[:2], "\u20ac\ufffd\ufffd"),  # one character and a half
        (bytes_of("a\u20acb\u00df"), "a\u20acb\u00df"),
        (bytes_of("\U0001f600")[:3], "\ufffd\ufffd\ufffd"),
        ([FIRST_BYTE + 0xFF, *bytes_of("\u20ac")], "\ufffd\u20ac"),
    ],
)
def test_bytes_that_are_characters_are_kept_whatever_follows(ids, text):
    whole, pieces, _ = written(llamas(), ids)
    assert (whole, "".join(pieces)) == (text, text)
    assert all("\ufffd" not in piece for piece in pieces[:-1] if piece != "\ufffd\u20ac")


def test_texts_with_byte_fallback_are_those_of_decode():
    """Where all bytes are of characters, and where the last character is cut off after a letter."""
    words = llamas()
    random.seed(1)
    for _ in range(200):
        text = "".join(random.choices("ab c\u20ac\u00df\U0001f600", k=12))
        ids = words(text, add_special_tokens=False).input_ids
        for part in (ids, ids[: 1 + max(at for at, one in enumerate(ids) if one >= FIRST_BYTE + 256)]):
            whole, pieces, _ = written(words, part)
            assert whole == "".join(pieces) == words.decode(part, skip_special_tokens=True)


def test_what_ends_a_text():
    words = llamas()
    ids = words("ab cd ef", add_special_tokens=False).input_ids
    for asked, wanted in (
        ({"stop_words": ["d"]}, ("ab c", "stop")),
        ({"stop": "d", "include_stop_str_in_output": True}, ("ab cd", "stop")),
        ({"stop_token_ids": [ids[4]]}, ("ab ", "stop")),
        ({}, ("ab cd ef", "length")),
    ):
        whole, pieces, reason = written(words, ids, **asked)
        assert (whole, reason) == wanted
        assert "".join(pieces) == whole
    ends = [*ids[:3], EOS, *ids[3:]]
    assert written(words, ends)[::2] == ("ab", "stop")
    assert written(words, ends, ignore_eos=True)[::2] == ("ab cd ef", "length")
    assert written(words, ends, skip_special_tokens=False)[0] == "ab</s>"


def test_spaces_are_removed_as_transformers_does_it_in_streams_too():
    pieces = ["it", " '", " s", " ", "don", " n't", " .", " ,", " ?", "x", "'", " ve"]
    words = Tokenizer(WordLevel({piece: 3 + place for place, piece in enumerate(pieces)}, unk_token="it"))
    words.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=True)
    random.seed(2)
    removed = 0
    for _ in range(300):
        ids = random.choices(range(3, 3 + len(pieces)), k=9)
        whole, streamed, _ = written(fast, ids)
        assert whole == "".join(streamed) == fast.decode(ids)
        removed += whole != fast.decode(ids, clean_up_tokenization_spaces=False)
    assert removed > 200
    cleaner, text = SpaceCleaner(), "'  ' rex"
    found = "".join(cleaner.clean(letter, last=False) for letter in text) + cleaner.clean("", last=True)
    assert found == fast.clean_up_tokenization(text)


def test_a_prompt_that_begins_with_bos_gets_no_second_one(tmp_path):
    made, words = tiny.model("llama"), llamas()
    made.resize_token_embeddings(300, mean_resizing=False)
    made.save_pretrained(tmp_path / "weights")
    words.save_pretrained(tmp_path / "weights")
    front = opened(tmp_path, "text-generation").front

    def read(*prompts, by=front, **options):
        return [one.arrays[0][0].tolist() for one in by.reader.read([[texts([text])] for text in prompts], **options)]

    one, given, double = read("ab", "<s>ab", "<s><s>ab")
    assert (one, given) == (words("ab").input_ids, words("<s>ab", add_special_tokens=False).input_ids)
    assert [ids.count(BOS) for ids in (one, given, double)] == [1, 1, 2]
    assert front.reader.cuts
    assert front.chat is None
    (cut,) = read("<s>abcdef", cut=TextCut(4))
    assert cut == [BOS, *words("abcdef").input_ids[-3:]], "the end of a prompt is what a text continues"
    (whole,) = read("a" * 200, cut=TextCut())
    assert len(whole) == tiny.POSITIONS // 2, "which leaves room for a text"
    assert read("[1, 7, 8]", by=front.ids) == [[1, 7, 8]]
    with pytest.raises(BadText, match=r"expected ids of 0 to 299, got 300"):
        read("[1, 300]", by=front.ids)
    with pytest.raises(BadText, match=r"expected at most 95 tokens, as the model has 96 positions .*, got 97"):
        read("a" * 95)


@pytest.mark.parametrize("stop", ["a", "ab", "aab", "abab"])
def test_an_end_that_may_become_a_stop_string_is_held_back(stop):
    for text in map("".join, product("ab", repeat=6)):
        ends = (len(text) - size for size in range(len(stop), 0, -1) if text.endswith(stop[:size]))
        assert Text._before(SimpleNamespace(text=text), stop) == next(ends, len(text))


class Counted(str):
    tried = 0

    def startswith(self, *given):
        self.tried += 1
        return super().startswith(*given)


def test_a_long_stop_string_is_tried_where_it_may_begin():
    """For each token of each stream: all places took a thousand times as long."""
    stop = Counted("stop" * 1000)
    assert Text._before(SimpleNamespace(text="no " * 1000 + "s"), stop) == 3000
    assert stop.tried == 1
