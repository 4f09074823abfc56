"""Models of texts and images for one server: each task of transformers with tiny weights, and models that write."""

from __future__ import annotations

from pathlib import Path

import tiny_decoders
import tiny_transformers as tiny

from .server import ROOT

MOST = 60  # tokens that the writer has room for
TEMPLATE = "{% for one in messages %}{{ one.role[0] }}: {{ one.content }}\n{% endfor %}a:"
#: By name: the task, and the head of the small weights.
TASKS = {
    "mood": ("text-classification", "SequenceClassification"),
    "names": ("token-classification", "TokenClassification"),
    "vectors": ("feature-extraction", ""),
    "similar": ("sentence-similarity", ""),
    "ranker": ("rerank", "SequenceClassification"),
}
LABELS = {"names": tiny.TAGS, "ranker": {0: "LABEL_0"}}


def save_models(folder: Path) -> list[str]:
    """Save them all; the flags of a server that has them."""
    for name, (task, head) in TASKS.items():
        labels = {"id2label": LABELS[name]} if name in LABELS else {}
        tiny.save_bert(folder / name / "weights", head, **labels)
        batching = "[batching]\nlength_buckets = [8, 32]\n" if name == "mood" else ""
        (folder / name / "model.toml").write_text(f'source = "hf:weights"\ntask = "{task}"\n{batching}')
    tiny.save_vit(folder / "objects" / "weights")
    (folder / "objects" / "model.toml").write_text('source = "hf:weights"\ntask = "image-classification"\n')
    tiny_decoders.save(folder / "writer", "gpt2", MOST)
    words = tiny_decoders.tokenizer()
    words.chat_template = TEMPLATE
    words.save_pretrained(folder / "writer" / "weights")
    places = {name: folder / name for name in (*TASKS, "objects", "writer")}
    places["generate"] = ROOT / "loadtest" / "models" / "generate"
    named = [word for name, place in places.items() for word in ("--model", f"{name}={place}")]
    return [*named, "--threads", "1", "--drain-grace-s", "0"]
