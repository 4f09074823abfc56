"""Reads the files of sentence-transformers beside the weights: how vectors are made from the model's output.

`modules.json` lists the steps: the transformer, a pooling, any number of dense layers, and perhaps normalisation.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import nn

from app.errors import ConfigError
from app.models.sources.hubs import cached_file
from app.models.sources.torch_files import load_weights

SENTENCE_CONFIG = "config_sentence_transformers.json"
#: Old releases named the file of the transformer's settings after its kind; the first that is there counts.
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
#: The values of `pooling_mode`; before version 5 each had a flag of its own, such as `pooling_mode_mean_tokens`.
_POOLINGS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
_POOLING_FLAG = re.compile(r"pooling_mode_(.+?)(_tokens?)?")
_ACTIVATIONS = {"Identity": nn.Identity, "Tanh": nn.Tanh, "ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU}
_IN_ORDER = ("Transformer", "Pooling", "Dense", "Normalize")


class SentenceFiles:
    """The settings of a folder, or of a model on the hub. Missing files give defaults."""

    def __init__(self, place: str) -> None:
        self._place = place
        #: Kind and folder of each step.
        self._steps = [
            (str(step.get("type", "")).rpartition(".")[2], str(step.get("path", "")))
            for step in self._read("modules.json", list)
            if isinstance(step, dict)
        ]
        files = (self._read(f"sentence_{kind}_config.json") for kind in _KINDS)
        self._transformer: dict[str, Any] = next(filter(None, files), {})

    def most_tokens(self) -> int | None:
        most = self._transformer.get("max_seq_length")
        return most if isinstance(most, int) else None

    def lowers(self) -> bool:
        """Whether texts are put in lower case, whatever the tokenizer does."""
        return bool(self._transformer.get("do_lower_case"))

    def pooling(self) -> str | None:
        """`mean`, `cls` or `last`; None if no file says. Raises ConfigError for another kind."""
        folder, found = self._pooling()
        if not found:
            return None
        flags = [flag[1] for key in sorted(found) if (flag := _POOLING_FLAG.fullmatch(key)) and found[key] is True]
        modes = found.get("pooling_mode", flags or ["mean"])
        modes = modes if isinstance(modes, list) else [str(modes)]
        if len(modes) != 1 or modes[0] not in _POOLINGS:
            raise ConfigError(
                f"task_options.pooling: expected one to be given, since {folder}/config.json says "
                f"{', '.join(map(str, modes))}"
            )
        return _POOLINGS[modes[0]]

    def refuse_prompt(self, prompt: str) -> None:
        """Raises ConfigError for a prompt where the pooling leaves out its tokens, which is not done here."""
        folder, found = self._pooling()
        if prompt and not found.get("include_prompt", True):
            wanted = f"none, as {folder}/config.json leaves it out of the pooling (include_prompt)"
            raise ConfigError(f"task_options.prompt: expected {wanted}, got {prompt!r}")

    def _pooling(self) -> tuple[str, dict[str, Any]]:
        """The folder of the pooling and its config.json."""
        folder = next((path for kind, path in self._steps if kind == "Pooling" and path), "1_Pooling")
        return folder, self._read(f"{folder}/config.json")

    def dense(self) -> nn.Sequential:
        """The dense layers behind the pooling. Raises ConfigError for steps that are not supported."""
        kinds = [kind for kind, _ in self._steps]
        unknown = next((kind for kind in kinds if kind not in _IN_ORDER), None)
        if unknown is not None or sorted(kinds, key=_IN_ORDER.index) != kinds:
            raise ConfigError(f"expected modules.json to list {', '.join(_IN_ORDER)}, got {', '.join(kinds)}")
        return nn.Sequential(*(self._layer(path) for kind, path in self._steps if kind == "Dense"))

    def normalizes(self) -> bool:
        return any(kind == "Normalize" for kind, _ in self._steps)

    def prompt(self) -> str:
        """The default prompt, which is put before each text."""
        found = self._read(SENTENCE_CONFIG)
        return str(found.get("prompts", {}).get(found.get("default_prompt_name"), ""))

    def activation(self) -> str | None:
        """Of a cross-encoder: the name of torch's class that turns its logit into a score."""
        name: str | None = self._read(SENTENCE_CONFIG).get("activation_fn")
        return name

    def similarity(self) -> str:
        """`cosine` or `dot`. Raises ConfigError for another."""
        name = self._read(SENTENCE_CONFIG).get("similarity_fn_name") or "cosine"
        if name not in ("cosine", "dot"):
            raise ConfigError(f"expected similarity_fn_name cosine or dot, got {name!r}")
        return str(name)

    def _layer(self, folder: str) -> nn.Sequential:
        config = self._read(f"{folder}/config.json")
        names = ("model.safetensors", "pytorch_model.bin")  # the second from releases before 2.3
        weights = next(filter(None, (cached_file(self._place, f"{folder}/{name}") for name in names)), None)
        activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
        if weights is None or not config or activation not in _ACTIVATIONS:
            raise ConfigError(
                f"expected {folder}/model.safetensors, and in its config.json an activation_function of "
                f"{', '.join(_ACTIVATIONS)}, got {activation}"
            )
        layer = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
        load_weights(nn.ModuleDict({"linear": layer}), Path(weights))
        return nn.Sequential(layer, _ACTIVATIONS[activation]())

    def _read(self, name: str, kind: type[Any] = dict) -> Any:
        """What a file of JSON holds; nothing where there is none, or of another kind."""
        path = cached_file(self._place, name)
        found = None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
        return found if isinstance(found, kind) else kind()
