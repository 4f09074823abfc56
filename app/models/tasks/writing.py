"""Tasks that generate text: translation, summarization, text2text-generation and text-generation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.contract import Answers, Array, TextCut, Translated
from app.errors import BadText, ConfigError
from app.models.base import one_line
from app.models.decoders.parameters import Bounds, usual_length
from app.models.description.config_tables import TaskTable
from app.models.tasks.text_readers import CallTexts, TextReader
from app.models.tasks.tokenizing import TokenIds

MOST = 256  # tokens of a text, if neither model.toml nor the model says how many


class WrittenTexts(Answers):
    """Generated texts, unchanged."""

    def present(self, outputs: Mapping[str, Array]) -> Any:
        values: Iterator[Any] = (outputs[spec.name] for spec in self.outputs)
        text, reason, read, written = (value.decode() if isinstance(value, bytes) else int(value) for value in values)
        return {"generated_text": text, "finish_reason": reason, "prompt_tokens": read, "generated_tokens": written}


class ConversationReader(TextReader):
    """Reads conversations, each the JSON of its messages, as the text that the tokenizer's chat template makes of them.

    The template also writes the special tokens.
    """

    whole = True

    def __init__(self, tokenizer: Any, *given: Any) -> None:
        super().__init__(tokenizer, *given)
        self._render = tokenizer.apply_chat_template
        # few templates know OpenAI's newer name of the role system
        self._renamed = {} if "developer" in str(tokenizer.chat_template) else {"developer": "system"}

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        """Raises BadText for a conversation that the template refuses."""
        return CallTexts([self._text(json.loads(value)) for value in arrays[0].reshape(-1)], "messages")

    def _text(self, messages: Any) -> str:
        for message in messages:
            message["role"] = self._renamed.get(message["role"], message["role"])
        try:
            return str(self._render(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is the model's own code and may raise anything
            raise BadText("messages", None, f"refused by the model's chat template: {one_line(error)}") from None


class IdsReader(TextReader):
    """Reads prompts that are tokens already, each the JSON of a list of ids."""

    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        """Raises BadText for ids that the model does not know, and for too many."""
        return [self._read(arrays, cut) for arrays in calls]

    def _read(self, arrays: Sequence[Array], cut: TextCut | None) -> Translated:
        rows: list[list[int]] = [json.loads(value) for value in arrays[0].reshape(-1)]
        call = CallTexts(rows, "prompt")
        most = self.inputs[0].maximum or 0
        for row, ids in enumerate(rows):
            wrong = next((one for one in ids if not 0 <= one <= most), None)
            if wrong is not None:
                raise call.wrong(row, f"expected ids of 0 to {most}, got {wrong}")
        if cut is not None:
            kept, left = self.cutting(cut)
            rows = [ids[-kept:] if left else ids[:kept] for ids in rows]
        found = [TokenIds(ids, [0] * len(ids)) for ids in rows]
        return self.call_rows(call, found)


def bounds_of(model: Any, options: TaskTable, positions: int | None, most_read: int) -> Bounds:
    """The bounds of a model with so many `positions` (None: any number). `most_read`: tokens that its tokenizer allows.

    Prompt and text share the positions of a decoder without an encoder. Raises ConfigError if there are too few.
    """
    encodes = bool(model.config.is_encoder_decoder)
    asked, read = options.max_new_tokens, options.max_tokens
    if positions is not None and asked is not None and asked >= positions:
        raise ConfigError(
            f"task_options.max_new_tokens: expected fewer than the model's {positions} positions, got {asked}"
        )
    usual = asked or usual_length(model.generation_config, encodes=encodes)
    usual = usual or (MOST if positions is None else min(MOST, positions // 2))
    if encodes:
        text = asked or max(usual, MOST)
        text = text if positions is None else min(text, positions - 1)
        return Bounds(most_read, text, None, min(usual, text))
    both = positions if read is None and positions is not None else (read or most_read) + usual
    both = both if positions is None else min(both, positions)
    usual = min(usual, both - 1)
    left = usual if options.truncate and read is None else 1  # what is cut leaves room for a usual text
    return Bounds(min(read or both, both - left), min(asked or both, both - 1), both, usual)


def prefix_of(model: Any, task: str) -> str:
    """The prefix of each text for a T5, if its configuration has one for the task."""
    tasks = getattr(model.config, "task_specific_params", None) or {}
    wanted = [each for name, each in tasks.items() if name == task or name.startswith(f"{task}_")]
    return str(wanted[0].get("prefix", "")) if len(wanted) == 1 else ""
