"""The comparison with other servers: what its page says of them, and what is sent to whom."""

import numpy as np

from experiments.peers import bert
from experiments.peers.__main__ import values_of
from experiments.peers.contenders import CONTENDERS
from experiments.peers.text import OURS, scores_of


def test_answers_of_both_forms_are_read() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    assert np.array_equal(values_of(by_name["BentoML"], b"[[1.5, 2]]"), [1.5, 2.0])
    assert np.array_equal(values_of(by_name["mosec"], b'{"y": [1.5, 2]}'), [1.5, 2.0])


def test_sentences_are_of_words_that_the_tokenizer_mostly_knows() -> None:
    words, vocabulary = bert.words_and_vocabulary()
    assert len(set(vocabulary)) == len(vocabulary) == bert.WORDS
    texts = bert.sentences(50, seed=1)
    assert texts == bert.sentences(50, seed=1) != bert.sentences(50, seed=2)
    drawn = [text.removesuffix(".").split() for text in texts]
    assert all(bert.SHORTEST <= len(each) <= bert.LONGEST for each in drawn)
    known = set(vocabulary)
    unknown = [word for each in drawn for word in each if word not in known]
    assert 0 < len(unknown) < sum(map(len, drawn)) / 10
    assert set(unknown) < set(words)


def test_scores_of_both_forms_are_read() -> None:
    top = b'[{"label": "A", "score": 0.75}, {"label": "B", "score": 0.25}]'
    assert scores_of(OURS, b'{"label": "A", "score": 0.75, "top": %b}' % top) == {"A": 0.75, "B": 0.25}
    assert scores_of("by hand", top) == {"A": 0.75, "B": 0.25}
