"""Makes the model of each task of texts: head, reader and answers around a loaded transformers model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from app.contract import Answers, Checks, Front, Model, ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models.decoders.detokenizer import Detokenizer
from app.models.decoders.parameters import Parameters
from app.models.decoders.texts import TextDecoder
from app.models.description.config_tables import TaskTable
from app.models.sources.hubs import Made
from app.models.tasks import task_specs
from app.models.tasks.comparing import GivenLabels, LabelsReader, SentencesReader, Similarities
from app.models.tasks.entities import Tags, TokenReader
from app.models.tasks.heads import MASK, Head, Pooled, masks, scores, spans
from app.models.tasks.questions import QuestionReader, SpanAnswers
from app.models.tasks.sentence_files import SentenceFiles
from app.models.tasks.task_answers import RANKINGS, Labels, Masks, Ranks, task_model
from app.models.tasks.task_specs import vector
from app.models.tasks.text_readers import MaskReader, ReadingRules, TextReader, most_tokens
from app.models.tasks.writing import ConversationReader, IdsReader, WrittenTexts, bounds_of, prefix_of

_TRIED = {"max_new_tokens": 8, "do_sample": False}  # parameters of the rows to try a model that writes with


@dataclass(frozen=True, slots=True)
class TextModel:
    """A transformers model with its tokenizer, and the files of sentence-transformers beside them.

    `info`: what model.toml says of it.
    """

    model: Any
    tokenizer: Any
    files: SentenceFiles
    options: TaskTable
    info: ModelInfo

    def reader(
        self, sent: tuple[TensorSpec, ...] = (task_specs.TEXT,), kind: type[TextReader] = TextReader, **reading: Any
    ) -> TextReader:
        """A reader of this kind; `reading`: of ReadingRules. Raises ConfigError for a tokenizer that does not fit."""
        model, tokenizer, options = self.model, self.tokenizer, self.options
        vocabulary = model.get_input_embeddings().weight.shape[0]
        if len(tokenizer) > vocabulary:
            raise ConfigError(
                f"expected a tokenizer of at most the {vocabulary} tokens that the model knows, got {len(tokenizer)}"
            )
        if "token_type_ids" not in inspect.signature(model.forward).parameters:
            tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        own, pairs = self.files.most_tokens(), len(sent) > 1 and not kind.alone
        most = most_tokens(_positions(model), tokenizer, own, options.max_tokens, pairs)
        how = ReadingRules(most, _padding_id(model, tokenizer), options.truncate, **reading)
        return kind(tokenizer, vocabulary, how, sent)

    def opened(
        self, reader: TextReader, made: Made, answers: Answers, *outputs: TensorSpec, embedder: Front | None = None
    ) -> Model:
        """The model behind a reader. `made`, `outputs`: of its Head. `embedder`: see Front."""
        module = Head(self.model, reader.names, made)
        return task_model(self.info, module, Front(reader, answers, embedder=embedder), outputs)


def _text_classification(text: TextModel) -> Model:
    sent = (task_specs.TEXT, task_specs.TEXT_PAIR) if text.options.pairs else (task_specs.TEXT,)
    reader = text.reader(sent, prompt=text.files.prompt())
    labels = labels_of(text.model.config)
    made = partial(scores, score_function(text.model.config))
    return text.opened(reader, made, Labels(labels, text.options.top), vector("scores", len(labels)))


def _token_classification(text: TextModel) -> Model:
    reader = text.reader(kind=TokenReader)
    labels = labels_of(text.model.config)
    answers = Tags(labels, text.tokenizer, text.options.aggregation)
    output = along_tokens("scores", "FP32", len(labels), reader)
    return text.opened(reader, partial(scores, "softmax"), answers, output)


def _feature_extraction(text: TextModel) -> Model:
    reader, made, output = _embedder(text)
    return text.opened(reader, made, Answers((output,)), output)


def _sentence_similarity(text: TextModel) -> Model:
    reader, made, output = _embedder(text)
    answers, embedder = Similarities(text.files.similarity()), Front(reader, Answers((output,)), reader.example())
    sentences = text.reader(task_specs.COMPARED, kind=SentencesReader, prompt=reader.reading.prompt)
    return text.opened(sentences, made, answers, output, embedder=embedder)


def _rerank(text: TextModel) -> Model:
    config = text.model.config
    if config.num_labels != 1:
        raise ConfigError(f"task: expected weights with one label for 'rerank', got {config.num_labels}")
    reader = text.reader(task_specs.RANKED, prompt=text.files.prompt())
    answers = Ranks(_activation(config, text.files))
    return text.opened(reader, partial(scores, "none"), answers, vector("raw_scores", 1))


def _activation(config: Any, files: SentenceFiles) -> str:
    """The activation of a cross-encoder's score: from sentence-transformers' file, or in older versions config.json."""
    own = getattr(config, "sentence_transformers", None)
    named = files.activation() or (own.get("activation_fn") if isinstance(own, dict) else None)
    named = named or getattr(config, "sbert_ce_default_activation_function", None) or "Sigmoid"
    kind = str(named).rpartition(".")[2]
    if kind not in RANKINGS:
        raise ConfigError(f"expected an activation_fn of {', '.join(RANKINGS)}, got {named}")
    return kind


def _fill_mask(text: TextModel) -> Model:
    mask, top = text.tokenizer.mask_token_id, text.options.top
    if mask is None:
        raise ConfigError("expected a tokenizer with a token for the mask, got one without")
    reader = text.reader(kind=MaskReader)
    outputs = along_tokens("ids", "INT64", top, reader), along_tokens("scores", "FP32", top, reader)
    return text.opened(reader, partial(masks, mask, top), Masks(text.tokenizer.decode, top), *outputs)


def _question_answering(text: TextModel) -> Model:
    reader = text.reader(task_specs.ASKED, kind=QuestionReader)
    answers = SpanAnswers(text.tokenizer.cls_token_id, text.options.handle_impossible_answer)
    return text.opened(reader, spans, answers, along_tokens("spans", "FP32", 2, reader))


def _zero_shot(text: TextModel) -> Model:
    config, options = text.model.config, text.options
    labels = [label.lower() for label in labels_of(config)]
    entailed = next((index for index, label in enumerate(labels) if label.startswith("entail")), None)
    if entailed is None:
        raise ConfigError(
            f"task: expected a label entailment for 'zero-shot-classification', got {', '.join(labels_of(config))}"
        )
    reader = text.reader(task_specs.LABELLED, kind=LabelsReader, template=options.hypothesis_template)
    answers = GivenLabels(entailed, options.multi_label)
    return text.opened(reader, partial(scores, "none"), answers, vector("logits", len(labels)))


def _writing(task: str, text: TextModel) -> Model:
    """Raises ConfigError for an architecture that cannot run step by step."""
    from app.models.decoders.decoder import DecoderModel  # which imports transformers

    model, options, tokenizer = text.model, text.options, text.tokenizer
    positions, read = _positions(model), options.max_tokens
    encodes = bool(model.config.is_encoder_decoder)
    most_read = most_tokens(positions if encodes or read is not None else None, tokenizer, None, read)
    bounds = bounds_of(model, options, positions, most_read)
    options = options.model_copy(update={"max_tokens": bounds.prompt})
    prompt = prefix_of(model, task) if options.prompt is None else options.prompt
    adds_bos = tokenizer.bos_token_id is not None and tokenizer("").input_ids[:1] == [tokenizer.bos_token_id]
    reader = partial(
        replace(text, options=options).reader,
        prompt=prompt,
        positions=bounds.both,
        cut=None if bounds.both is None else max(1, bounds.both - bounds.usual),
        bos=tokenizer.bos_token_id if adds_bos else None,
    )
    texts, answers = reader(), WrittenTexts(task_specs.WRITTEN)
    module = TextDecoder(DecoderModel(model), Detokenizer(tokenizer, texts.backend), bounds)
    chat = None if tokenizer.chat_template is None else Front(reader(kind=ConversationReader), answers)
    front = Front(texts, answers, chat=chat, ids=Front(reader(kind=IdsReader), answers))
    made = task_model(text.info, module, front, task_specs.WRITTEN)
    checks = Checks(tuple(replace(row, parameters=_TRIED) for row in made.checks.samples))
    beams = model.generation_config.num_beams or 1
    note = f"generation_config.json: num_beams is {beams}, but texts are written by one beam" if beams > 1 else ""
    return replace(made, checks=checks, read_parameters=Parameters.read, writes=True, note=note)


#: By task, what makes its model. It raises ConfigError if the model's files do not fit the task.
TEXT_TASKS: dict[str, Callable[[TextModel], Model]] = {
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "feature-extraction": _feature_extraction,
    "sentence-similarity": _sentence_similarity,
    "rerank": _rerank,
    "fill-mask": _fill_mask,
    "question-answering": _question_answering,
    "zero-shot-classification": _zero_shot,
    **{task: partial(_writing, task) for task, one in task_specs.TASKS.items() if one.writes},
}


def _embedder(text: TextModel) -> tuple[TextReader, Pooled, TensorSpec]:
    """The reader of texts, what makes a vector of each, and its output."""
    options, files = text.options, text.files
    prompt = files.prompt() if options.prompt is None else options.prompt
    files.refuse_prompt(prompt)
    reader = text.reader(prompt=prompt)
    normalize = files.normalizes() if options.normalize is None else options.normalize
    pooling = options.pooling or files.pooling() or "mean"
    pooled = Pooled(pooling, normalize, files.dense())
    samples = reader.samples()
    ids = torch.from_numpy(samples[0].arrays[0])[None] if samples else torch.zeros(1, 1, dtype=torch.int64)
    given = {"input_ids": ids, MASK: torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        size = Head(text.model, reader.names, pooled).eval()(*(given[name] for name in reader.names)).shape[-1]
    return reader, pooled, vector("embedding", size)


def _padding_id(model: Any, tokenizer: Any) -> int:
    """The id of padding. It is also set in the model's config, because some models use it to find a row's end."""
    pad: int | None = tokenizer.pad_token_id
    if pad is None:
        pad = tokenizer.eos_token_id
    if pad is not None and getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = pad
    return 0 if pad is None else pad


def _positions(model: Any) -> int | None:
    """The most tokens that the model has positions for; None without a bound."""
    most = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    tables = [getattr(module, "position_embeddings", None) for module in model.modules()]
    # in RoBERTa's family positions begin behind the padding index
    skipped = [table.padding_idx for table in tables if isinstance(table, nn.Embedding)]
    return most - max((index + 1 for index in skipped if index is not None), default=0)


def score_function(config: Any) -> str:
    """How logits become scores, as in transformers' pipelines."""
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.problem_type == "multi_label_classification" or config.num_labels == 1 else "softmax"


def labels_of(config: Any) -> list[str]:
    """Raises ConfigError where numbers are left out."""
    labels: dict[int, Any] = config.id2label
    if sorted(labels) != list(range(len(labels))):
        got = ", ".join(map(str, labels))
        raise ConfigError(f"config.json: id2label: expected labels of 0 to {len(labels) - 1}, got those of {got}")
    return [str(labels[index]) for index in range(len(labels))]


def along_tokens(name: str, datatype: str, length: int, reader: TextReader) -> TensorSpec:
    """An output of the model itself that has `length` values for each token."""
    return TensorSpec(name, datatype, (-1, length), ("tokens", ""), (reader.reading.most, length))
