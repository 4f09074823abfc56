"""Models of tasks for tests: opened from folders of tiny weights, and called as the server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from app.contract import Model

from .folders import loaded, refused, try_out, write_model


def toml(task: str, options: str = "", more: str = "") -> str:
    table = f"[task_options]\n{options}\n" if options else ""
    return f'source = "hf:weights"\ntask = "{task}"\n{more}\n{table}'


def opened(folder: Path, task: str, options: str = "", more: str = "") -> Model:
    return loaded(write_model(folder, toml(task, options, more), None))


def tried(folder: Path, task: str, options: str = "", more: str = "") -> Model:
    """The same, found to be in order."""
    model = opened(folder, task, options, more)
    assert try_out(model) == []
    return model


def broken(folder: Path, task: str, options: str = "", more: str = "") -> str:
    """Why it is not loaded, without the names of the file and the source."""
    text = refused(write_model(folder, toml(task, options, more), None))
    assert text.startswith(f"{folder / 'model.toml'}: ")
    return text.removeprefix(f"{folder / 'model.toml'}: ").removeprefix("source 'hf:weights': ")


def texts(values: list[Any]) -> Any:
    """An input of bytes: a text for each row, or a list of texts."""
    flat = [[one] if isinstance(one, str | bytes) else one for one in values]
    array = np.empty((len(flat), len(flat[0])), object)
    array[:] = [[text.encode() if isinstance(text, str) else text for text in row] for row in flat]
    return array if isinstance(values[0], list) else array[:, 0]


def answered(model: Model, *columns: list[Any]) -> list[Any]:
    """What clients get for these rows, as JSON values: read, run as one batch, answered. `columns`: by input."""
    front = model.front
    assert front is not None
    (read,) = front.reader.read([[texts(column) for column in columns]])
    tensors = [torch.from_numpy(array) for array in read.arrays]
    if "tokens" in read.lengths:
        own = (read.own_lengths or {"tokens": [read.lengths["tokens"]]})["tokens"]
        tensors.append((torch.arange(max(own))[None] < torch.tensor(own)[:, None]).long())
    with torch.inference_mode():
        returned = model.call(*tensors)
    made = [each.numpy() for each in (returned if isinstance(returned, tuple) else (returned,))]
    outputs, lengths = front.answers.answer(made, read.note)
    names = [spec.name for spec in front.client_info(model.info).outputs]
    rows = [
        {
            name: array[row][: lengths[row]] if lengths else array[row]
            for name, array in zip(names, outputs, strict=True)
        }
        for row in range(len(columns[0]))
    ]
    return [model.present(row) if model.present else row for row in rows]


def forward(model: Any, folder: Path, *text: str) -> Any:
    """transformers' own way, one text or pair of texts at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return model(**tokenizer(*text, return_tensors="pt"))


def pipeline_of(model: Any, folder: Path, task: str, **options: Any) -> Any:
    """transformers' pipeline of this model."""
    return transformers.pipeline(
        task, model=model, tokenizer=transformers.AutoTokenizer.from_pretrained(folder), **options
    )


def vector_of(model: Any, folder: Path, text: str) -> Any:
    """The mean of the last hidden states of one text."""
    return forward(model, folder, text).last_hidden_state[0].mean(dim=0)
