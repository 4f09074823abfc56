"""The comparison with other servers: how their answers are read."""

import numpy as np

from experiments.peers.__main__ import values_of
from experiments.peers.contenders import CONTENDERS
from experiments.peers.text import OURS, scores_of


def test_answers_of_both_forms_are_read() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    assert np.array_equal(values_of(by_name["BentoML"], b"[[1.5, 2]]"), [1.5, 2.0])
    assert np.array_equal(values_of(by_name["mosec"], b'{"y": [1.5, 2]}'), [1.5, 2.0])


def test_scores_of_both_forms_are_read() -> None:
    top = b'[{"label": "A", "score": 0.75}, {"label": "B", "score": 0.25}]'
    assert scores_of(OURS, b'{"label": "A", "score": 0.75, "top": %b}' % top) == {"A": 0.75, "B": 0.25}
    assert scores_of("by hand", top) == {"A": 0.75, "B": 0.25}
