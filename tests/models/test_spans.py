"""Entities of tokens, and parts of a text that answer a question. Invariant: as transformers' pipelines define them."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
import tiny_transformers as tiny
import torch
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE

from app.errors import BadRequest
from app.models.tasks.questions import SpanAnswers
from app.models.tasks.task_specs import AGGREGATIONS
from app.models.tasks.windows import InWindows, LongText

from .task_models import answered, broken, opened, pipeline_of, texts, tried

TEXTS = ["anna ran in paris , unhappy dogs sat", "annas cats on mats. anna's mat", "a zebra", "",
         "\u00fcber \u5317\u4eac anna"]  # fmt: skip


def save_tagger(folder, **config):
    return tiny.save_bert(folder, "TokenClassification", id2label=tiny.TAGS, **config)


SAVED = {"WordPiece": partial(save_tagger, seed=5), "byte-level": tiny.save_byte_level}


def in_v2(model, parameters, text):
    """What V2 answers to one text: label, score, start and end of each token or entity. And what V1 makes of it."""
    front = model.front
    (read,) = front.reader.read([[texts([text])]])
    note = front.answers.with_parameters(read.note, parameters)
    ids = torch.from_numpy(read.arrays[0])
    tensors = [ids, *([torch.zeros_like(ids)] if len(read.arrays) > 1 else []), torch.ones_like(ids)]
    with torch.inference_mode():
        outputs, lengths = front.answers.answer([model.call(*tensors).numpy()], note)
    row = {spec.name: array[0, : lengths[0]] for spec, array in zip(front.answers.outputs, outputs, strict=True)}
    pieces, labels, *others = [array.tolist() for array in row.values()]
    assert all(isinstance(piece, bytes) for piece in pieces)
    found = list(zip([label.decode() for label in labels], *others, strict=True))
    return found, front.answers.presenter(note)(row)


@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("strategy", AGGREGATIONS)
def test_entities_are_those_of_transformers(tmp_path, kind, strategy):
    original = SAVED[kind](tmp_path / "weights")
    pipeline = pipeline_of(original, tmp_path / "weights", "token-classification", aggregation_strategy=strategy)
    by_request = tried(tmp_path, "token-classification")
    by_file = opened(tmp_path, "token-classification", f'aggregation = "{strategy}"')
    for text in TEXTS:
        expected = [
            (
                one.get("entity_group") or one["entity"],
                pytest.approx(float(one["score"]), rel=1e-4),
                one["start"],
                one["end"],
            )
            for one in (pipeline(text) if text else [])
        ]
        (shown,) = answered(by_file, [text])
        for name in ("aggregation", "aggregation_strategy"):
            found, in_v1 = in_v2(by_request, {name: strategy}, text)
            assert [one for one in found if one[0] != "O"] == expected
            assert in_v1 == in_v2(by_file, {}, text)[1] == shown
        found = [(one["label"], float(one["score"]), one["start"], one["end"]) for one in shown["entities"]]
        assert found == expected
        assert ("tokens" in shown) == (strategy == "none")
        if "tokens" in shown and text in TEXTS[:2]:  # where no piece is unknown
            pieces = [one["piece"] for one in shown["tokens"] if one["label"] != "O"]
            assert pieces == [one["word"] for one in pipeline(text)]
    assert answered(by_request, TEXTS)[0]["tokens"]


def test_a_strategy_that_does_not_exist(tmp_path):
    save_tagger(tmp_path / "weights")
    front = opened(tmp_path, "token-classification").front
    message = r"^parameters.aggregation: expected one of none, simple, first, average, max, got 'mean'"
    with pytest.raises(BadRequest, match=message):
        front.answers.with_parameters(InWindows([]), {"aggregation": "mean"})
    told = broken(tmp_path, "token-classification", 'aggregation = "mean"')
    assert "task_options.aggregation: expected one of none, simple" in told


def test_tokens_of_nan_are_in_no_entity(tmp_path):
    save_tagger(tmp_path / "weights")
    model = opened(tmp_path, "token-classification")
    (read,) = model.front.reader.read([[texts(["anna ran"])]])
    outputs, _ = model.front.answers.answer([np.full((1, 4, 4), np.nan, np.float32)], read.note)
    names = [spec.name for spec in model.front.answers.outputs]
    found = model.present({name: array[0] for name, array in zip(names, outputs, strict=True)})
    assert found["entities"] == []
    assert [one["label"] for one in found["tokens"]] == ["O", "O"]


class Counting:
    """An encoding that counts how often it is asked for a list of all its tokens: it makes each anew."""

    def __init__(self, encoding, made):
        self._encoding, self._made = encoding, made

    def __len__(self):
        return len(self._encoding)

    def __getattr__(self, name):
        self._made[name] += 1
        return getattr(self._encoding, name)


@pytest.mark.parametrize(
    ("task", "head", "labels", "first"),
    [
        ("token-classification", "TokenClassification", tiny.TAGS, []),
        ("question-answering", "QuestionAnswering", {0: "start", 1: "end"}, [["the cat"]]),
    ],
)
def test_the_time_to_read_a_text_grows_as_it_does(tmp_path, task, head, labels, first):
    """Not with its square: a text of 1 MiB kept a thread for hours."""
    tiny.save_bert(tmp_path / "weights", head, id2label=labels)
    model, made = opened(tmp_path, task), Counter()
    reader = model.front.reader
    encode = reader._encode
    reader._encode = lambda *given, **named: [Counting(one, made) for one in encode(*given, **named)]
    counts = []
    for words in (40, 800):
        made.clear()
        answered(model, *first, ["a good day " * words])
        counts.append(dict(made))
    assert counts[0] == counts[1]


def test_long_texts_are_bounded(tmp_path):
    """By characters before they are tokenized, and by what their outputs take: each is padded to the longest."""
    save_tagger(tmp_path / "weights")
    reader = opened(tmp_path, "token-classification").front.reader
    short, long = ["a"] * 900, "a " * 6000
    for given, message in (
        (["a" * 70_000], "text: expected at most 65536 characters in all, got 70000"),
        ([*short, long], "text of row 900: expected at most 4655 tokens in a request of 901 texts, got 6002"),
    ):
        with pytest.raises(BadRequest, match=f"^{message}$"):
            reader.read([[texts(given)]])
    assert len(reader.read([[texts([*short, "a"])]])[0].arrays[0]) == 901


# answers to questions


def pointed(context, window, start, end, none=-9.0):
    """Logits that point to the tokens of a context with these characters, and by `none` to CLS."""
    logits = np.full((len(window), 2), -9.0, np.float32)
    own = [place for place, sequence in enumerate(window.sequence_ids) if sequence == 1]
    places = [place for place in own if window.offsets[place][0] < end and window.offsets[place][1] > start]
    logits[places[0], 0] = logits[places[-1], 1] = 0.0
    logits[0] = none
    return logits


def in_one_window(context, window, times=1):
    return InWindows([LongText(context, window, [range(len(window))] * times)])


def answer_of(answers, context, window, logits, note=None):
    outputs, _ = answers.answer([logits[None]], note or in_one_window(context, window))
    text, score, start, end = (array[0] for array in outputs)
    assert context[start:end].encode() == text
    return text.decode(), float(score)


def softmax(values):
    return np.exp(values) / np.exp(values).sum(axis=0)


@pytest.fixture
def sat(tmp_path):
    """A context, and the encoding of it behind a question."""
    context = "the cat sat"
    return context, tiny.save_tokenizer(tmp_path).backend_tokenizer.encode("a dog", context)


def test_no_answer_is_an_empty_text_with_its_score(sat):
    """Where CLS is likelier than the best answer, as models of SQuAD 2 say it; of several windows, in all of them."""
    context, window = sat
    logits = pointed(context, window, 4, 7, none=0.5)
    own = np.array([place == 0 or sequence == 1 for place, sequence in enumerate(window.sequence_ids)])
    none, _, cat, *_ = softmax(logits[own]).prod(axis=1)
    forced = SpanAnswers(2, impossible=False)
    assert answer_of(SpanAnswers(2), context, window, logits) == ("", pytest.approx(none, rel=1e-5))
    assert answer_of(forced, context, window, logits) == ("cat", pytest.approx(cat, rel=1e-5))
    for value, expected in ((True, ""), (False, "cat")):
        for answers in (SpanAnswers(2), forced):
            note = answers.with_parameters(in_one_window(context, window), {"handle_impossible_answer": value})
            assert answer_of(answers, context, window, logits, note)[0] == expected
    with pytest.raises(BadRequest, match=r"^parameters.handle_impossible_answer: expected true or false, got 'yes'"):
        forced.with_parameters(InWindows([]), {"handle_impossible_answer": "yes"})
    both = np.stack([logits, pointed(context, window, 4, 7)])
    outputs, _ = SpanAnswers(2).answer([both], in_one_window(context, window, 2))
    assert outputs[0][0] == b"cat"


def test_logits_of_nan_are_no_answer(sat):
    text, score = answer_of(SpanAnswers(2), *sat, np.full((len(sat[1]), 2), np.nan, np.float32))
    assert (text, np.isnan(score)) == ("", True)


@pytest.mark.parametrize(
    ("context", "start", "end", "expected"),
    [
        ("\u5317\u4eac\u5927\u5b66\u5728\u5317\u4eac", 2, 4, "\u5927\u5b66"),
        ("\u6771\u4eac\u30bf\u30ef\u30fc\u306f", 2, 5, "\u30bf\u30ef\u30fc"),
        ("\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28\u0e44\u0e17\u0e22", 0, 6, "\u0e1b\u0e23\u0e30\u0e40\u0e17\u0e28"),
        ("the harbour is cold", 5, 8, "harbour"),
        ("the harbour is cold", 4, 14, "harbour is"),
        ("\u5728harbour\u5317", 3, 5, "harbour"),
    ],
)
def test_only_words_are_widened(context, start, end, expected):
    """The pre-tokenizer's pieces are whole runs of letters, tokens single letters, with or without the blank before."""
    letters = {letter: n for n, letter in enumerate(sorted({*context, "?", "\u2581"}))}
    for split in (pre_tokenizers.Whitespace(), pre_tokenizers.Metaspace()):
        tokenizer = Tokenizer(BPE(letters, []))
        tokenizer.pre_tokenizer = split
        window = tokenizer.encode("?", context)
        logits = pointed(context, window, start, end)
        assert answer_of(SpanAnswers(None), context, window, logits)[0] == expected


@pytest.mark.parametrize("trim", [False, True])
def test_byte_level_answers_have_no_blank_before_them(trim):
    context = "der K\u00f6nig sa\u00df da"
    alphabet = {letter: n for n, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    window = tokenizer.encode("?", context)
    for start, end, expected in ((3, 9, "K\u00f6nig"), (10, 13, "sa\u00df"), (4, 13, "K\u00f6nig sa\u00df")):
        assert answer_of(SpanAnswers(None), context, window, pointed(context, window, start, end))[0] == expected
