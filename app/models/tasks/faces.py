"""What clients of each task send and get, as tensors of the V2 protocol. Nothing here needs transformers.

| task | input | outputs, of one row |
|---|---|---|
| text-classification | text BYTES []; with `pairs` text_pair, too | labels BYTES [k], scores FP32 [k], the best first |
| token-classification | text BYTES [] | pieces, labels BYTES [n], scores FP32 [n], starts, ends INT64 [n] |
| feature-extraction | text BYTES [] | embedding FP32 [size] |
| sentence-similarity | source_sentence BYTES [], sentences BYTES [n] | scores FP32 [n] |
| rerank | query, document BYTES [] | score, raw_score FP32 [] |
| fill-mask | text BYTES [] | tokens BYTES [n, k], scores FP32 [n, k], of each mask, the best first |
| question-answering | question, context BYTES [] | answer BYTES [], score FP32 [], start, end INT64 [] |
| zero-shot-classification | text BYTES [], candidate_labels BYTES [n] | labels BYTES, scores FP32 [n], the best first |
| image-classification | image BYTES [] | labels BYTES [k], scores FP32 [k], the best first |
| translation, summarization, text2text-generation, text-generation | text BYTES [] | generated_text, finish_reason
  BYTES [], prompt_tokens, generated_tokens INT64 [] |
"""

from __future__ import annotations

from app.contract import UNBOUNDED, TensorSpec

#: The axis of what token-classification answers: as long as the row has tokens, special ones apart.
PIECES = "pieces"
#: That of fill-mask: as long as the row has masks.
MASKS = "masks"

_Specs = tuple[TensorSpec, ...]


def _value(name: str, datatype: str) -> TensorSpec:
    return TensorSpec(name, datatype, (), (), ())


def _vector(name: str, datatype: str, length: int) -> TensorSpec:
    return TensorSpec(name, datatype, (length,), ("",), (length,))


def _along(name: str, datatype: str, axis: str) -> TensorSpec:
    return TensorSpec(name, datatype, (-1,), (axis,), (UNBOUNDED,))


TEXT, TEXT_PAIR, IMAGE = _value("text", "BYTES"), _value("text_pair", "BYTES"), _value("image", "BYTES")
COMPARED = (_value("source_sentence", "BYTES"), _along("sentences", "BYTES", "sentences"))
RANKED = (_value("query", "BYTES"), _value("document", "BYTES"))
ASKED = (_value("question", "BYTES"), _value("context", "BYTES"))
LABELLED = (TEXT, _along("candidate_labels", "BYTES", "candidate_labels"))


def labels_and_scores(count: int) -> _Specs:
    """`count` labels and their scores."""
    return _vector("labels", "BYTES", count), _vector("scores", "FP32", count)


def embedding(size: int) -> _Specs:
    return (_vector("embedding", "FP32", size),)


def tokens() -> _Specs:
    """One value for each token of the text; `starts` and `ends` count its characters."""
    kinds = {"pieces": "BYTES", "labels": "BYTES", "scores": "FP32", "starts": "INT64", "ends": "INT64"}
    return tuple(_along(name, datatype, PIECES) for name, datatype in kinds.items())


def similarities() -> _Specs:
    return (_along("scores", "FP32", "sentences"),)


def ranks() -> _Specs:
    return _value("score", "FP32"), _value("raw_score", "FP32")


def masks(top: int) -> _Specs:
    """For each mask of the text, `top` tokens and their scores."""
    return tuple(
        TensorSpec(name, datatype, (-1, top), (MASKS, ""), (UNBOUNDED, top))
        for name, datatype in (("tokens", "BYTES"), ("scores", "FP32"))
    )


def span() -> _Specs:
    """An answer; `start` and `end` count characters of the context."""
    kinds = {"answer": "BYTES", "score": "FP32", "start": "INT64", "end": "INT64"}
    return tuple(_value(name, datatype) for name, datatype in kinds.items())


def labels_given() -> _Specs:
    """The labels that were sent, and their scores."""
    return _along("labels", "BYTES", "candidate_labels"), _along("scores", "FP32", "candidate_labels")


def written() -> _Specs:
    """A text that has been written, why it ended ("stop" or "length"), and the tokens of what was read and written."""
    kinds = {"generated_text": "BYTES", "finish_reason": "BYTES", "prompt_tokens": "INT64", "generated_tokens": "INT64"}
    return tuple(_value(name, datatype) for name, datatype in kinds.items())


def listed(task: str) -> tuple[_Specs, _Specs]:
    """Inputs and outputs of a task before its model has been loaded: what depends on the model is a variable axis."""
    best = _along("labels", "BYTES", "top"), _along("scores", "FP32", "top")
    faces: dict[str, tuple[_Specs, _Specs]] = {
        "token-classification": ((TEXT,), tokens()),
        "feature-extraction": ((TEXT,), (_along("embedding", "FP32", "size"),)),
        "sentence-similarity": (COMPARED, similarities()),
        "rerank": (RANKED, ranks()),
        "fill-mask": ((TEXT,), masks(1)),
        "question-answering": (ASKED, span()),
        "zero-shot-classification": (LABELLED, labels_given()),
        "image-classification": ((IMAGE,), best),
        **dict.fromkeys(
            ("translation", "summarization", "text2text-generation", "text-generation"), ((TEXT,), written())
        ),
    }
    return faces.get(task, ((TEXT,), best))
