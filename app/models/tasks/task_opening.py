"""Opens a transformers model for a task: the module with its head, and the front that clients see.

If the weights do not fit the task, transformers only warns: a missing head gets random weights, a missing tokenizer
five tokens. Here both are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import Any

from app.contract import Front, Model, ModelInfo
from app.errors import ConfigError, not_installed
from app.models.base import one_line
from app.models.description.config import ModelTable
from app.models.description.config_tables import TaskTable
from app.models.sources.hubs import from_pretrained, weights_at
from app.models.sources.imports import optional
from app.models.tasks.heads import Head, scores
from app.models.tasks.sentence_files import SentenceFiles
from app.models.tasks.task_answers import Labels, task_model
from app.models.tasks.task_specs import TASKS, vector
from app.models.tasks.text_tasks import TEXT_TASKS, TextModel, labels_of, score_function

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
_SENTENCEPIECE, _SPM_FILES = "sentencepiece", ("*.spm", "*.model")


def open_task(config: ModelTable, folder: Path, info: ModelInfo) -> Model:
    """The source `hf:NAME`: a folder, relative to the model's own, or the id of a model on the hub; `kwargs` go to its
    model class.

    Raises ConfigError `KEY: expected ..., got ...`, and whatever transformers raises.
    """
    task, options, name = str(config.task), config.task_options, config.source.partition(":")[2]
    place = weights_at(name, folder)
    optional("transformers.utils.logging").disable_progress_bar()  # a log is no terminal
    model = _open_model(task, place, config.kwargs)
    if task == "image-classification":
        return _image_classifier(model, place, options, info)
    tokenizer, files = _open_tokenizer(place, task), SentenceFiles(place)
    if files.lowers() and tokenizer.is_fast:
        rules, backend = optional("tokenizers.normalizers"), tokenizer.backend_tokenizer
        backend.normalizer = rules.Sequence([rules.Lowercase(), *filter(None, [backend.normalizer])])
    return TEXT_TASKS[task](TextModel(model, tokenizer, files, options, info))


def _open_model(task: str, place: str, kwargs: Mapping[str, Any]) -> Any:
    """The model with the task's head, all of its weights loaded."""
    for refused in ("auto_class", "trust_remote_code", "weights_only", "output_loading_info"):
        if refused in kwargs:
            raise ConfigError(f"kwargs.{refused}: not accepted beside a task")
    transformers: Any = optional("transformers")
    config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    asked = TASKS[task]
    if asked.head:
        markers = asked.architectures
        auto_class = getattr(transformers, f"AutoModelFor{asked.head}")
        made = config.architectures or []
        fits = not made or any(marker in each for each in made for marker in markers)
        if type(config) not in auto_class._model_mapping or not fits:
            got = ", ".join(made) or f"the model type {config.model_type}"
            wanted = " or ".join(markers)
            raise ConfigError(f"task: expected weights of a model {wanted} for {task!r}, got those of {got}")
    else:
        auto_class = transformers.AutoModelForTextEncoding  # of T5 its encoder alone
        if type(config) not in auto_class._model_mapping:
            auto_class = transformers.AutoModel
        if config.is_encoder_decoder and auto_class is transformers.AutoModel:
            raise ConfigError(
                f"task: expected an encoder for {task!r}, got an encoder and decoder, {config.model_type}"
            )
    options = dict(kwargs)
    if not kwargs.keys() & {"dtype", "torch_dtype"}:
        # In BF16, as many weights are, answers depend on a batch's size, and few models of images take their pixels.
        options["dtype"] = "float32"
    model, report = from_pretrained(auto_class, place, options)
    # the pooler is not used, and checkpoints of encoders often lack it
    missing = sorted(key for key in report["missing_keys"] if asked.head or not key.startswith("pooler."))
    if missing:
        raise ConfigError(f"task: expected weights with all of a model for {task!r}, got none for {missing[0]}")
    return model.eval()


def _open_tokenizer(place: str, task: str) -> Any:
    folder = Path(place)
    if folder.is_dir() and not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise ConfigError(f"expected a tokenizer (tokenizer.json) beside the weights in {place}, got none")
    try:
        tokenizer = optional("transformers").AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (ImportError, ValueError):  # transformers raises either if a library is missing
        if find_spec(_SENTENCEPIECE) is None and any(True for name in _SPM_FILES for _ in folder.glob(name)):
            raise not_installed(_SENTENCEPIECE) from None
        raise
    if not tokenizer.is_fast and not TASKS[task].writes:  # tasks that generate text need no offsets of tokens
        raise ConfigError(f"expected a fast tokenizer (tokenizer.json) in {place}, got {type(tokenizer).__name__}")
    return tokenizer


def _image_classifier(model: Any, place: str, options: TaskTable, info: ModelInfo) -> Model:
    from app.models.tasks.images import ImageReader  # Pillow is imported when a model needs it

    # By its module: older releases let nobody have it from the package without torchvision, which PIL does not need.
    auto_class = optional("transformers.models.auto.image_processing_auto").AutoImageProcessor
    try:
        processor = auto_class.from_pretrained(place, trust_remote_code=False, backend="pil")
    except (OSError, ValueError) as error:
        wrong = shorten(one_line(error), 300)  # transformers may list all that it knows
        wanted = f"an image processor (preprocessor_config.json) beside the weights in {place}"
        raise ConfigError(f"expected {wanted}: {wrong}") from None
    labels = labels_of(model.config)
    module = Head(model, ["pixel_values"], partial(scores, score_function(model.config)))
    front = Front(ImageReader(processor), Labels(labels, options.top))
    return task_model(info, module, front, (vector("scores", len(labels)),))
