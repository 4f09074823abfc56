"""Tasks that generate text: translation, summarization, text2text-generation and text-generation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.contract import Array, Model, ModelInfo
from app.errors import BadText, ConfigError
from app.models.base import one_line
from app.models.decoders.parameters import usual_length
from app.models.decoders.texts import TextDecoder
from app.models.tasks import task_specs
from app.models.tasks.answers import Answers
from app.models.tasks.fronts import front_of, task_model
from app.models.tasks.texts import CallTexts, TextReader, WrappingReader

MOST = 256  # tokens of a text, if neither model.toml nor the model says how many
_TRIED = {"max_new_tokens": 8, "do_sample": False}  # parameters of the rows to try the model with


class WrittenTexts(Answers):
    """Generated texts, unchanged."""

    def __init__(self) -> None:
        super().__init__(task_specs.WRITTEN)

    def present(self, outputs: Mapping[str, Array]) -> Any:
        values: Iterator[Any] = (outputs[spec.name] for spec in self.outputs)
        text, reason, read, written = (value.decode() if isinstance(value, bytes) else int(value) for value in values)
        return {"generated_text": text, "finish_reason": reason, "prompt_tokens": read, "generated_tokens": written}


class ConversationReader(WrappingReader):
    """Reads conversations, each the JSON of its messages, as the text that the tokenizer's chat template makes of them.

    The template also writes the special tokens.
    """

    sent = (task_specs.TEXT,)
    whole = True

    def __init__(self, reader: TextReader, tokenizer: Any) -> None:
        """`tokenizer`: transformers' own, with a chat template."""
        super().__init__(reader)
        self._render = tokenizer.apply_chat_template

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        """Raises BadText for a conversation that the template refuses."""
        return CallTexts([self._text(json.loads(value)) for value in arrays[0].reshape(-1)], "messages")

    def _text(self, messages: Any) -> str:
        try:
            return str(self._render(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is the model's own code and may raise anything
            raise BadText("messages", None, f"refused by the model's chat template: {one_line(error)}") from None


def open_writing(info: ModelInfo, model: Any, reader: TextReader, tokenizer: Any, most: int) -> Model:
    """`tokenizer`: transformers' own; `most`: tokens of a text.

    Raises ConfigError for an architecture that cannot run step by step.
    """
    from app.models.decoders.decoder import DecoderModel  # which imports transformers

    module = TextDecoder(DecoderModel(model), reader.plain, reader.reading.most, most)
    samples = tuple(replace(row, parameters=_TRIED) for row in reader.samples())
    chat = None
    if tokenizer.chat_template is not None:
        chat = front_of(ConversationReader(reader, tokenizer), WrittenTexts())
    return task_model(
        info,
        module,
        reader,
        WrittenTexts(),
        task_specs.WRITTEN,
        samples,
        chat=chat,
        read_parameters=module.read_parameters,
    )


def most_written(model: Any, asked: int | None, positions: int | None, *, encodes: bool) -> int:
    """The most tokens of a text: `asked`, or as generation_config.json says.

    Raises ConfigError if the model has too few positions.
    """
    length = asked or usual_length(model.generation_config, encodes=encodes)
    most = length or (MOST if positions is None else min(MOST, positions // 2))
    room = most if positions is None else positions - 1
    if most > room:
        raise ConfigError(
            f"task_options.max_new_tokens: expected fewer than the model's {positions} positions, got {most}"
        )
    return int(most)


def prefix_of(model: Any, task: str) -> str:
    """The prefix of each text for a T5, if its configuration has one for the task."""
    tasks = getattr(model.config, "task_specific_params", None) or {}
    wanted = [each for name, each in tasks.items() if name == task or name.startswith(f"{task}_")]
    return str(wanted[0].get("prefix", "")) if len(wanted) == 1 else ""
