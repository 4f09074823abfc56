"""Readers and answers of tasks in which one row of a client becomes several rows of the model.

Each text or pair is a row with its own length, so that rows of all clients share batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from app.contract import Array, SampleRow
from app.models.tasks import task_specs
from app.models.tasks.answers import Answers, Outputs, best_first
from app.models.tasks.texts import CallTexts, TextReader, WrappingReader

_LEAST_NORM = 1e-12  # as torch's normalize has it


class SentencesReader(WrappingReader):
    """A source sentence and others to compare it with, each a row of the model. The note is their number."""

    sent = task_specs.COMPARED

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        sources = self.reader.texts(arrays[0], "source_sentence")
        count = arrays[1].shape[1]
        name = partial(_element, "sentences", count=count, rows=len(sources))
        others = self.reader.texts(arrays[1], name)
        texts = []
        for row, source in enumerate(sources):
            texts += [source, *others[row * count : (row + 1) * count]]

        def name_of(place: int) -> str:
            row, index = divmod(place, count + 1)
            what = f"sentences[{index - 1}]" if index else "source_sentence"
            return what + _of_row(row, len(sources))

        return CallTexts(texts, name_of, count + 1)

    def example(self) -> SampleRow | None:
        one = self.reader.example()
        if one is None:
            return None
        (text,) = one.arrays
        shorter = text.item().rsplit(b" ", 1)[0]
        return SampleRow((text, np.array([text.item(), shorter], object)), {"sentences": 2})


class LabelsReader(WrappingReader):
    """A text and candidate labels. Each label is a row of the model: the text, paired with a sentence of the label.

    `template` makes the sentence. The note is the labels.
    """

    sent = task_specs.LABELLED

    def __init__(self, reader: TextReader, template: str) -> None:
        super().__init__(reader)
        self._template = template

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        given, labels = arrays
        texts, count = self.reader.texts(given, "text"), labels.shape[1]
        name = partial(_element, "candidate_labels", count=count, rows=len(texts))
        sentences = [self._template.replace("{}", label) for label in self.reader.texts(labels, name)]
        pairs = [(texts[place // count], sentence) for place, sentence in enumerate(sentences)]
        return CallTexts(pairs, lambda place: f"text and {name(place)}", labels)

    def example(self) -> SampleRow | None:
        one = self.reader.example()
        labels: Array = np.array([b"weather", b"politics"], object)
        return None if one is None else SampleRow((one.arrays[0], labels), {"candidate_labels": 2})


class GivenLabels(Answers):
    """Logits of pairs [rows, classes] to the candidate labels and their scores, the best first.

    `entailed`: the class for yes. `several`: labels are scored independently; else exactly one of them applies.
    """

    def __init__(self, entailed: int, several: bool) -> None:
        super().__init__(task_specs.LABELS_GIVEN)
        self._entailed = entailed
        self._against = -1 if entailed == 0 else 0  # the class for no: contradiction
        self._several = several

    def answer(self, outputs: Sequence[Array], note: Array) -> Outputs:
        logits = outputs[0].reshape(*note.shape, -1)
        yes = logits[..., self._entailed]
        if self._several or note.shape[1] == 1:
            scores = np.exp(-np.logaddexp(0, logits[..., self._against] - yes))
        else:
            raised = np.exp(yes - yes.max(axis=1, keepdims=True))
            scores = raised / raised.sum(axis=1, keepdims=True)
        best = np.argsort(-scores, axis=1, kind="stable")
        return [np.take_along_axis(note, best, axis=1), np.take_along_axis(scores, best, axis=1)], None

    def present(self, outputs: Mapping[str, Array]) -> Any:
        return best_first("label", outputs["labels"], outputs["scores"])


class Similarities(Answers):
    """Vectors [rows, size] to the similarity of the first of each group to the others: cosine or dot product."""

    def __init__(self, measure: str) -> None:
        super().__init__(task_specs.SIMILARITIES)
        self._measure = measure

    def answer(self, outputs: Sequence[Array], note: int) -> Outputs:
        vectors = outputs[0].reshape(-1, note, outputs[0].shape[-1])
        if self._measure == "cosine":
            vectors = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True).clip(min=_LEAST_NORM)
        return [(vectors[:, :1] * vectors[:, 1:]).sum(axis=-1)], None


def _element(name: str, place: int, count: int, rows: int) -> str:
    """The name of an element of an input [rows, count] in messages."""
    row, index = divmod(place, count)
    return f"{name}[{index}]{_of_row(row, rows)}"


def _of_row(row: int, rows: int) -> str:
    return f" of row {row}" if rows > 1 else ""
