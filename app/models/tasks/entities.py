"""token-classification: the label of each token, and entities of tokens that belong together.

The strategies are those of transformers' pipeline. `none`: each token by itself. `simple`: neighbours of one label are
one entity. `first`, `average`, `max`: before that each word gets one label: that of its first token, of the mean of its
tokens' scores, or of its surest token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.contract import Answers, Array, Translated
from app.errors import BadRequest
from app.models.tasks import task_specs
from app.models.tasks.task_answers import Asked, Outputs, padded
from app.models.tasks.text_readers import CallTexts, TextReader
from app.models.tasks.windows import Window, joined, rows_of, windows_of
from app.values.tensors import shown

_NAMES = ("aggregation", "aggregation_strategy")  # of the parameter: ours, and transformers'
_OUTSIDE = "O"
#: Tokens of a call, each text padded to the longest as outputs are: 160 MiB of them.
_MOST_PADDED = 1 << 22


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one text without special ones: their places in the encoding, the word pieces, where each starts
    and ends in `text`, and whether it continues the word of the token before it. `windows`: the model's rows.
    """

    windows: Sequence[Window]
    places: Array
    pieces: list[str]
    starts: list[int]
    ends: list[int]
    continues: list[bool]
    text: str


class TokenReader(TextReader):
    """Texts of any length, in windows, unless they are to be cut; the note has the Tokens of each text."""

    windows = True
    offsets = True

    def __init__(self, tokenizer: Any, *given: Any) -> None:
        super().__init__(tokenizer, *given)
        self._unknown = tokenizer.unk_token_id
        self._marks = bool(getattr(self.backend.model, "continuing_subword_prefix", None))

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        found = self.not_empty(call, found)
        most = _MOST_PADDED // len(found)
        for row, one in enumerate(found):
            if len(one) > most:
                wrong = f"expected at most {most} tokens in a request of {len(found)} texts, got {len(one)}"
                raise call.wrong(row, wrong)
        windows = [windows_of(one, self.reading.most) for one in found]
        note = [self._tokens(one, text, own) for one, text, own in zip(found, call.texts, windows, strict=True)]
        rows = [row for one, own in zip(found, windows, strict=True) for row in rows_of(one, own)]
        return self.stacked(rows, note)

    def _tokens(self, one: Any, text: str, windows: Sequence[Window]) -> Tokens:
        """As in transformers a tokenizer that marks the pieces within a word (WordPiece) says which they are; with
        others a word ends at a space.
        """
        places = [place for place, special in enumerate(one.special_tokens_mask) if not special]
        tokens, spans, ids = one.tokens, one.offsets, one.ids  # each time it makes them anew
        pieces, offsets = [tokens[place] for place in places], [spans[place] for place in places]
        if self._marks:
            within = [len(piece) != end - start for piece, (start, end) in zip(pieces, offsets, strict=True)]
        else:
            within = [start > 0 and " " not in text[start - 1 : start + 1] for start, _ in offsets]
        continues = [each and ids[place] != self._unknown for each, place in zip(within, places, strict=True)]
        starts, ends = [start for start, _ in offsets], [end for _, end in offsets]
        return Tokens(windows, np.array(places, np.int64), pieces, starts, ends, continues, text)


class Tags(Answers):
    """Scores [rows, tokens, labels] to the best label of each token or, by the strategy, to entities.

    `strategy`: of requests that name none. "": tokens, which `present` also groups as `simple`. An entity is in the
    outputs as a token is: its piece is its text, and its label has no B- or I-.
    """

    own_axes = (task_specs.PIECES,)
    quick = False

    def __init__(self, labels: Sequence[str], strategy: str = "") -> None:
        super().__init__(task_specs.TOKENS)
        self._labels = labels
        self._strategy = strategy

    def with_parameters(self, note: Sequence[Tokens], parameters: Mapping[str, Any]) -> Any:
        """Raises BadRequest for a strategy that does not exist."""
        for name in _NAMES:
            if name in parameters:
                value = parameters[name]
                if value not in task_specs.AGGREGATIONS:
                    known = ", ".join(task_specs.AGGREGATIONS)
                    raise BadRequest(f"parameters.{name}: expected one of {known}, got {shown(value)}")
                return Asked(note, value)
        return note

    def answer(self, outputs: Sequence[Array], note: Any) -> Outputs:
        rows, strategy = note if isinstance(note, Asked) else (note, self._strategy)
        scores = joined(outputs[0], [tokens.windows for tokens in rows])
        found = [self._found(tokens, own[tokens.places], strategy) for tokens, own in zip(rows, scores, strict=True)]
        texts = [padded([[one[key].encode() for one in each] for each in found], b"") for key in ("piece", "label")]
        numbers = [
            padded([[one[key] for one in each] for each in found], 0, dtype)
            for key, dtype in (("score", np.float32), ("start", np.int64), ("end", np.int64))
        ]
        return [*texts, *numbers], [len(each) for each in found]

    def present(self, outputs: Mapping[str, Array]) -> Any:
        rows = zip(*(outputs[spec.name] for spec in self.outputs), strict=True)
        found = [
            {"label": label.decode(), "score": score, "start": int(start), "end": int(end), "piece": piece.decode()}
            for piece, label, score, start, end in rows
        ]
        if self._strategy not in ("", "none"):
            return {"entities": found}
        grouped = entities(found) if not self._strategy else [one for one in found if one["label"] != _OUTSIDE]
        return {"entities": grouped, "tokens": found}

    def _found(self, tokens: Tokens, scores: Array, strategy: str) -> list[dict[str, Any]]:
        """The tokens or entities of one row."""
        by_word = strategy not in ("", "none", "simple")
        words: list[list[int]] = []  # or tokens, each by itself
        for place in range(len(tokens.pieces)):
            if by_word and words and tokens.continues[place]:
                words[-1].append(place)
            else:
                words.append([place])
        each = [self._labelled(tokens, word, _of_word(scores, word, strategy)) for word in words]
        if strategy in ("", "none"):
            return each
        return [{**one, "piece": tokens.text[one["start"] : one["end"]]} for one in entities(each)]

    def _labelled(self, tokens: Tokens, word: Sequence[int], scores: Array) -> dict[str, Any]:
        best = int(scores.argmax())
        first, last = word[0], word[-1]
        return {
            "label": _OUTSIDE if np.isnan(scores[best]) else self._labels[best],
            "score": scores[best],
            "start": tokens.starts[first],
            "end": tokens.ends[last],
            "piece": tokens.pieces[first],
        }


def _of_word(scores: Array, word: Sequence[int], strategy: str) -> Array:
    """The scores of a word from those of its tokens; `scores` [tokens, labels]."""
    if strategy == "first" or len(word) == 1:
        return np.asarray(scores[word[0]])
    own = scores[word]
    return np.asarray(own.mean(axis=0) if strategy == "average" else own[own.max(axis=1).argmax()])


def entities(each: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours with the labels `B-X`, `I-X`, `I-X` (or `X`, `X`) as one entity `X`; its score is their mean.

    What is labelled `O` is in none.
    """
    groups: list[tuple[str, list[Mapping[str, Any]]]] = []
    for one in each:
        name = one["label"][2:] if one["label"].startswith(("B-", "I-")) else one["label"]
        if groups and groups[-1][0] == name and not one["label"].startswith("B-"):
            groups[-1][1].append(one)
        else:
            groups.append((name, [one]))
    return [
        {
            "label": group[0]["label"].split("-", 1)[-1],
            "score": np.float32(np.mean([one["score"] for one in group])),
            "start": group[0]["start"],
            "end": group[-1]["end"],
        }
        for name, group in groups
        if name != _OUTSIDE
    ]
