"""All tasks: the tensors of the V2 protocol that clients send and get, the options, and the model's head.

docs/tasks.md has them as a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.contract import UNBOUNDED, TensorSpec

#: How token-classification makes entities of tokens: see entities.py.
AGGREGATIONS = ("none", "simple", "first", "average", "max")

_Specs = tuple[TensorSpec, ...]


def _value(name: str, datatype: str) -> TensorSpec:
    return TensorSpec(name, datatype, (), (), ())


def vector(name: str, length: int, datatype: str = "FP32") -> TensorSpec:
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
    return vector("labels", count, "BYTES"), vector("scores", count)


def masks(top: int) -> _Specs:
    """For each mask of the text, `top` tokens and their scores."""
    return tuple(
        TensorSpec(name, datatype, (-1, top), ("masks", ""), (UNBOUNDED, top))
        for name, datatype in (("tokens", "BYTES"), ("scores", "FP32"))
    )


#: One value for each token of the text without special ones; `starts` and `ends` count its characters.
TOKENS = tuple(
    _along(name, datatype, "pieces")
    for name, datatype in (
        ("pieces", "BYTES"), ("labels", "BYTES"), ("scores", "FP32"), ("starts", "INT64"), ("ends", "INT64"),
    )
)  # fmt: skip
SIMILARITIES = (_along("scores", "FP32", "sentences"),)
RANKS = (_value("score", "FP32"), _value("raw_score", "FP32"))
#: An answer; `start` and `end` count characters of the context.
SPAN = (_value("answer", "BYTES"), _value("score", "FP32"), _value("start", "INT64"), _value("end", "INT64"))
#: The labels that were sent, and their scores.
LABELS_GIVEN = (_along("labels", "BYTES", "candidate_labels"), _along("scores", "FP32", "candidate_labels"))
#: A generated text, why it ended ("stop" or "length"), and the numbers of tokens read and generated.
WRITTEN = (
    _value("generated_text", "BYTES"), _value("finish_reason", "BYTES"),
    _value("prompt_tokens", "INT64"), _value("generated_tokens", "INT64"),
)  # fmt: skip
_BEST = (_along("labels", "BYTES", "top"), _along("scores", "FP32", "top"))


@dataclass(frozen=True, slots=True)
class Task:
    """`sent`, `answered`: the inputs and outputs; sizes that depend on the model are variable axes until it is loaded.

    `options`: its keys of `[task_options]`. `head`: the model is transformers' AutoModelFor{head}; "": AutoModel.
    `markers`: parts of the names of architectures with this head; none: For{head}.
    """

    sent: _Specs
    answered: _Specs
    options: frozenset[str]
    head: str = ""
    markers: tuple[str, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        return self.markers or (f"For{self.head}",)

    @property
    def writes(self) -> bool:
        return self.answered is WRITTEN


_READS = frozenset({"max_tokens", "truncate"})
_EMBEDS = _READS | {"pooling", "normalize", "prompt"}
_WRITES = _READS | {"prompt", "max_new_tokens"}
_SEQUENCE, _SEQ2SEQ = "SequenceClassification", ("Seq2SeqLM", ("ForConditionalGeneration",))

#: If several tasks fit an architecture, `starling new` takes the first.
TASKS = {
    "text-classification": Task((TEXT,), _BEST, _READS | {"top", "pairs"}, _SEQUENCE),
    "token-classification": Task((TEXT,), TOKENS, _READS | {"aggregation"}, "TokenClassification"),
    "image-classification": Task((IMAGE,), _BEST, frozenset({"top"}), "ImageClassification"),
    "fill-mask": Task((TEXT,), masks(1), _READS | {"top"}, "MaskedLM"),
    "question-answering": Task(ASKED, SPAN, frozenset({"max_tokens", "handle_impossible_answer"}), "QuestionAnswering"),
    "rerank": Task(RANKED, RANKS, _READS, _SEQUENCE),
    "zero-shot-classification": Task(
        LABELLED, LABELS_GIVEN, _READS | {"hypothesis_template", "multi_label"}, _SEQUENCE
    ),
    "text2text-generation": Task((TEXT,), WRITTEN, _WRITES, *_SEQ2SEQ),
    "translation": Task((TEXT,), WRITTEN, _WRITES, "Seq2SeqLM", ("MTModel", "ForConditionalGeneration")),
    "summarization": Task((TEXT,), WRITTEN, _WRITES, *_SEQ2SEQ),
    "text-generation": Task((TEXT,), WRITTEN, _WRITES, "CausalLM", ("ForCausalLM", "LMHeadModel")),
    "feature-extraction": Task((TEXT,), (_along("embedding", "FP32", "size"),), _EMBEDS),
    "sentence-similarity": Task(COMPARED, SIMILARITIES, _EMBEDS),
}
