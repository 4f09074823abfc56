"""Readers and answers of tasks in which one row of a client becomes several rows of the model.

Each text or pair is a row with its own length, so that rows of all clients share batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Any

import numpy as np

from app.contract import Answers, Array, SampleRow
from app.models.tasks import task_specs
from app.models.tasks.task_answers import Outputs, best_first, padded
from app.models.tasks.text_readers import CallTexts, TextReader

_LEAST_NORM = 1e-12  # as torch's normalize has it


class ListReader(TextReader):
    """Of a text and a list: each element of the list is a row of the model at least."""

    def rows(self, sent: Sequence[Array]) -> int:
        return sum(value is not None for value in sent[-1].flat)


class SentencesReader(ListReader):
    """A source sentence and others to compare it with, each a row of the model. The note is how many, by row."""

    alone = True

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        sources = self.texts(arrays[0], "source_sentence")
        given, counts, names = _elements("sentences", arrays[1])
        others = iter(self.texts(given, names.__getitem__))
        others_names, texts, all_names = iter(names), [], []
        for row, (source, count) in enumerate(zip(sources, counts, strict=True)):
            texts += [source, *islice(others, count)]
            all_names += ["source_sentence" + _of_row(row, len(sources)), *islice(others_names, count)]
        return CallTexts(texts, all_names.__getitem__, counts)

    def example_of(self, text: str) -> SampleRow:
        source, other = text.encode(), text.rsplit(" ", 1)[0].encode()
        return SampleRow((np.array(source, object), np.array([source, other], object)), {"sentences": 2})


class LabelsReader(ListReader):
    """A text and candidate labels. Each label is a row of the model: the text, paired with a sentence of the label.

    The note is the labels of each row.
    """

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        texts = self.texts(arrays[0], "text")
        labels, counts, names = _elements("candidate_labels", arrays[1])
        template = self.reading.template
        sentences = [template.replace("{}", label) for label in self.texts(labels, names.__getitem__)]
        repeated = chain.from_iterable(repeat(text, count) for text, count in zip(texts, counts, strict=True))
        pairs = list(zip(repeated, sentences, strict=True))
        return CallTexts(pairs, lambda place: f"text and {names[place]}", _split(labels, counts))

    def example_of(self, text: str) -> SampleRow:
        labels: Array = np.array([b"weather", b"politics"], object)
        return SampleRow((np.array(text.encode(), object), labels), {"candidate_labels": 2})


class GivenLabels(Answers):
    """Logits of pairs [rows, classes] to the candidate labels and their scores, the best first.

    `entailed`: the class for yes. `several`: labels are scored independently; else exactly one of them applies.
    """

    def __init__(self, entailed: int, several: bool) -> None:
        super().__init__(task_specs.LABELS_GIVEN)
        self._entailed = entailed
        self._against = -1 if entailed == 0 else 0  # the class for no: contradiction
        self._several = several

    def answer(self, outputs: Sequence[Array], note: Sequence[Array]) -> Outputs:
        counts = [len(labels) for labels in note]
        scores = [self._scores(logits) for logits in _split(outputs[0], counts)]
        orders = [np.argsort(-each, kind="stable") for each in scores]
        labels = [own[order] for own, order in zip(note, orders, strict=True)]
        best = [own[order] for own, order in zip(scores, orders, strict=True)]
        return [padded(labels, b""), padded(best, 0, np.float32)], _if_different(counts)

    def _scores(self, logits: Array) -> Array:
        """Of one row's labels, from [labels, classes]."""
        yes = logits[:, self._entailed]
        if self._several or len(yes) == 1:
            return np.asarray(np.exp(-np.logaddexp(0, logits[:, self._against] - yes)))
        raised = np.exp(yes - yes.max())
        return np.asarray(raised / raised.sum())

    def present(self, outputs: Mapping[str, Array]) -> Any:
        return best_first("label", outputs["labels"], outputs["scores"])


class Similarities(Answers):
    """Vectors [rows, size] to the similarity of the first of each group to the others: cosine or dot product."""

    def __init__(self, measure: str) -> None:
        super().__init__(task_specs.SIMILARITIES)
        self._measure = measure

    def answer(self, outputs: Sequence[Array], note: Sequence[int]) -> Outputs:
        vectors = outputs[0]
        if self._measure == "cosine":
            vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=_LEAST_NORM)
        groups = _split(vectors, [count + 1 for count in note])
        scores = [(group[:1] * group[1:]).sum(axis=-1) for group in groups]
        return [padded(scores, 0, vectors.dtype)], _if_different(note)


def _elements(name: str, array: Array) -> tuple[Array, list[int], list[str]]:
    """The elements of an input [rows, n], how many each row has, and their names in messages. None is no element."""
    given = [[value for value in row if value is not None] for row in array]
    names = [
        f"{name}[{index}]{_of_row(row, len(given))}" for row, each in enumerate(given) for index in range(len(each))
    ]
    return np.array([*chain.from_iterable(given)], object), [len(each) for each in given], names


def _split(values: Array, counts: Sequence[int]) -> list[Array]:
    """The parts of `values` that have so many elements each."""
    return np.split(values, np.cumsum(counts[:-1]))


def _if_different(counts: Sequence[int]) -> list[int] | None:
    """Answer.lengths: none where all rows are equally long."""
    return list(counts) if len(set(counts)) > 1 else None


def _of_row(row: int, rows: int) -> str:
    return f" of row {row}" if rows > 1 else ""
