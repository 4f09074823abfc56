"""Train the network of generate on the lines of text.txt: `python -m experiments.training.generate`.

Takes about two minutes on one core. Everything is seeded, so the same versions on the same kind of machine give the
same weights. The text is so small that the network learns it by heart: it continues a line that it knows, and makes one
up where it does not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_model
from torch.nn.utils.rnn import pad_sequence

from experiments.training.lines import IGNORED
from experiments.training.lines import fit as train
from loadtest.models.generate.network import END, LineNet

SEED = 0
STEPS = 1200
RATE = 8e-3
_FOLDER = Path("loadtest/models/generate")


def lines(net: LineNet, path: Path) -> list[torch.Tensor]:
    """Each line as symbols, with the mark before and after it."""
    texts = path.read_bytes().splitlines()
    end = torch.tensor([END])
    return [torch.cat([end, net.symbol_of[torch.tensor(list(text))], end]) for text in texts]


def batch(known: list[torch.Tensor]) -> torch.Tensor:
    """Every line once, padded with IGNORED. A quarter of them begins at some word inside, as a prompt may."""
    rows = []
    space = 2  # the symbol of a space
    for line in known:
        words = (line[:-12] == space).nonzero().flatten()
        if len(words) and torch.rand(()) < 0.25:
            at = int(words[torch.randint(len(words), ())])
            line = torch.cat([line[:1], line[at + 1 :]])
        rows.append(line)
    return pad_sequence(rows, batch_first=True, padding_value=IGNORED)


def fit(path: Path) -> LineNet:
    torch.manual_seed(SEED)
    net = LineNet()
    known = lines(net, path)
    train(net, net, lambda: batch(known), steps=STEPS, rate=RATE, decay=1e-3)
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model that continues lines.")
    parser.add_argument("--text", type=Path, default=_FOLDER / "text.txt")
    parser.add_argument("--out", type=Path, default=_FOLDER / "weights.safetensors")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    net = fit(arguments.text)
    save_model(net, str(arguments.out))
    print(f"{arguments.out.name}: {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
