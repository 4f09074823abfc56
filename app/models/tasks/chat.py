"""Conversations, as the tokenizer's own chat template makes a text of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from app.contract import Array
from app.errors import BadText
from app.models.base import one_line
from app.models.tasks import faces
from app.models.tasks.texts import CallTexts, ReaderOfTexts, TextReader


class ConversationReader(ReaderOfTexts):
    """Each text is the JSON of the messages of a conversation. The template writes the special tokens, too."""

    sent = (faces.TEXT,)
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
        except Exception as error:  # templates are code of the model's, and raise what they like
            raise BadText("messages", None, f"refused by the model's chat template: {one_line(error)}") from None
