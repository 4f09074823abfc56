"""Conversations, as the tokenizer's own chat template makes a text of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.contract import Array, Translated
from app.errors import BadText
from app.models.base import one_line
from app.models.tasks import faces
from app.models.tasks.readers import Reader
from app.models.tasks.texts import CallTexts, TextReader


class ConversationReader(Reader):
    """Each text is the JSON of the messages of a conversation. The template writes the special tokens, too."""

    sent = (faces.TEXT,)

    def __init__(self, reader: TextReader, tokenizer: Any) -> None:
        """`tokenizer`: transformers' own, with a chat template."""
        self._reader = reader
        self._render = tokenizer.apply_chat_template
        self.inputs = reader.inputs

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        """Raises BadText for a conversation that the template refuses."""
        found = []
        for (array,) in calls:
            rows = [self._text(json.loads(value)) for value in array.reshape(-1)]
            found.append(CallTexts(rows, "messages"))
        return self._reader.translated(found, whole=True)

    def _text(self, messages: Any) -> str:
        try:
            return str(self._render(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # templates are code of the model's, and raise what they like
            raise BadText("messages", None, f"refused by the model's chat template: {one_line(error)}") from None
