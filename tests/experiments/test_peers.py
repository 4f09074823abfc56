"""The comparison with other servers: what its page says of them, and what is sent to whom."""

from typing import Any

import numpy as np

from experiments.peers import bert, page, text_page
from experiments.peers.__main__ import values_of
from experiments.peers.contenders import CONTENDERS
from experiments.peers.text import OURS, scores_of


def a_run(per_s: float, requests: int, mean_ms: float) -> dict[str, Any]:
    figures = {"mean_ms": mean_ms, "p50_ms": mean_ms, "p99_ms": 2 * mean_ms}
    return {"per_s": per_s, "requests": requests, "failed": 0, **figures}


def test_a_server_that_cannot_keep_up_has_no_latency() -> None:
    loads = {"closed": [a_run(80.0, 800, 700.0)], "60": [a_run(60.0, 600, 20.0)], "90": [a_run(80.0, 900, 900.0)]}
    settings = {"seconds": 10.0, "rounds": 1, "connections": 64, "largest": 32}
    data = {"capacity": 100.0, "shares": [0.6, 0.9], "settings": settings, "versions": {"A": "1"}, "facts": {}}
    text = page.PAGE.text({**data, "runs": {"A": loads}})
    (line,) = [line for line in text.splitlines() if line.startswith("| A ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["A", "80 (80 to 80)", "20.0 (20.0 to 20.0)", "40.0 (40.0 to 40.0)", "-", "-"]


def test_answers_of_both_forms_are_read() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    assert np.array_equal(values_of(by_name["BentoML"], b"[[1.5, 2]]"), [1.5, 2.0])
    assert np.array_equal(values_of(by_name["mosec"], b'{"y": [1.5, 2]}'), [1.5, 2.0])


def test_the_page_of_texts_compares_within_rounds() -> None:
    def loads(*per_s: float) -> dict[str, Any]:
        runs = [{**a_run(each, 100, 1000 / each), "cpu_ms": 1.0} for each in per_s]
        return {"closed": runs, "200": runs}

    servers = {"Starling": loads(100.0, 300.0, 90.0), "by hand": loads(50.0, 100.0, 40.0)}
    settings = {"seconds": 4.0, "rounds": 3, "connections": 64}
    text = text_page.PAGE.text({"settings": settings, "rates": [200.0], "runs": servers, "facts": {}})
    (line,) = [line for line in text.splitlines() if line.startswith("| Starling ")]
    assert [cell.strip() for cell in line.strip("|").split("|")][:2] == ["Starling", "100 (90 to 300)"]
    assert "answers 2.2 times as many as by hand" in text


def test_sentences_are_of_words_that_the_tokenizer_mostly_knows() -> None:
    words, vocabulary = bert.words_and_vocabulary()
    assert len(set(vocabulary)) == len(vocabulary) == bert.WORDS
    texts = bert.sentences(50, seed=1)
    assert texts == bert.sentences(50, seed=1) != bert.sentences(50, seed=2)
    drawn = [text.removesuffix(".").split() for text in texts]
    assert all(bert.SHORTEST <= len(each) <= bert.LONGEST for each in drawn)
    unknown = [word for each in drawn for word in each if word not in set(vocabulary)]
    assert 0 < len(unknown) < sum(map(len, drawn)) / 10
    assert set(unknown) < set(words)


def test_scores_of_both_forms_are_read() -> None:
    top = b'[{"label": "A", "score": 0.75}, {"label": "B", "score": 0.25}]'
    assert scores_of(OURS, b'{"label": "A", "score": 0.75, "top": %b}' % top) == {"A": 0.75, "B": 0.25}
    assert scores_of("by hand", top) == {"A": 0.75, "B": 0.25}
