"""Train the network on scikit-learn's handwritten digits: `python -m experiments.training.digits`.

Needs the extra `train`; takes about two minutes on one core. Everything is seeded, so the same versions on the same
kind of machine give the same weights. A fifth of the digits is held out before anything else and never trained on.

Of each batch, a little under half are the 8 x 8 grids as they are. As many are the same digits blown up, bent, redrawn
with another pen and passed through the steps that an image file takes when served. The rest are strokes of STYLES.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter
from safetensors.torch import save_model
from torch import nn

from app.models.demo.digits.network import DigitNet
from app.models.demo.digits.preprocess import to_grid
from experiments.training.digits_drawing import STYLES, Look, draw

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

SEED = 0
VARIANTS = 24  # redrawn copies of each training digit
DRAWN = 500  # copies of each style
EPOCHS = 40
BATCH = 128
_CANVAS = 96


def split() -> tuple[Floats, Labels, Floats, Labels]:
    """Training images and labels, then the held-out fifth's; every class in proportion."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = data.images.astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        images, data.target, test_size=0.2, random_state=SEED, stratify=data.target
    )
    return train_x, train_y.astype(np.int64), test_x, test_y.astype(np.int64)


def redraw(grid: Floats, random: np.random.Generator) -> Floats:
    """The digit of an 8 x 8 grid as another hand might draw it: ink 0..1 on a larger canvas."""
    margin = _CANVAS // 6
    inner = _CANVAS - 2 * margin
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    blown = Image.fromarray(np.rint(grid * (255 / 16)).astype(np.uint8))
    canvas.paste(blown.resize((inner, inner), Image.Resampling.BICUBIC), (margin, margin))
    blurred = Image.fromarray(np.rint(bend(canvas, random) * 255).astype(np.uint8)).filter(
        ImageFilter.GaussianBlur(random.uniform(0.5, 2.5))
    )
    level = random.uniform(70, 170)  # a low level gives a broad pen, a high one a fine pen
    ink = np.clip((np.asarray(blurred, np.float32) - level) / 30 + 0.5, 0, 1)
    if ink.max() < 0.5:  # the fine pen left nothing
        ink = np.asarray(blurred, np.float32) / 255
    return ink.astype(np.float32)


def bend(image: Image.Image, random: np.random.Generator) -> Floats:
    """A square gray image turned, slanted and stretched about its middle, by chance, as values 0..1."""
    angle, shear = math.radians(random.uniform(-14, 14)), random.uniform(-0.25, 0.25)
    wide, high = random.uniform(0.75, 1.3), random.uniform(0.9, 1.1)
    matrix = (
        np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        @ np.array([[1, shear], [0, 1]])
        @ np.diag([wide, high])
    )
    middle = image.width / 2
    offset = np.array([middle, middle]) - matrix @ [middle, middle]
    terms = (*matrix[0], offset[0], *matrix[1], offset[1])
    bent = image.transform(image.size, Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR)
    return np.asarray(np.asarray(bent, np.float32) / 255, np.float32)


def augment(grids: Floats, random: np.random.Generator) -> Floats:
    """One redrawn version of each grid, as serving would see it."""
    return np.stack([to_grid(redraw(grid, random)) for grid in grids])


def draw_styles(random: np.random.Generator) -> tuple[Floats, Labels]:
    """Each style drawn with other pens and proportions, bent like the others, as serving would see it."""
    grids, labels = [], []
    for digit, strokes in STYLES:
        for _ in range(DRAWN):
            wide = random.uniform(0.18, 0.35)
            box = (0.5 - wide, 0.18, 0.5 + wide, 0.82)
            look = Look((48, 48), box, random.uniform(0.06, 0.2), (0, 0, 0), (255, 255, 255), "")
            image = draw(strokes, look, random, shake=0.03).convert("L")
            grids.append(to_grid(bend(image, random)))
            labels.append(digit)
    return np.stack(grids), np.array(labels)


def fit(train_x: Floats, train_y: Labels) -> DigitNet:
    random = np.random.default_rng(SEED)
    redrawn = [augment(train_x, random) for _ in range(VARIANTS)]
    drawn_x, drawn_y = draw_styles(random)
    # as many plain grids as redrawn ones
    x = torch.from_numpy(np.concatenate([*[train_x] * VARIANTS, *redrawn, drawn_x]))
    y = torch.from_numpy(np.concatenate([*[train_y] * 2 * VARIANTS, drawn_y]))
    torch.manual_seed(SEED)
    net = DigitNet()
    steps = EPOCHS * math.ceil(len(train_x) * 8 / BATCH)
    optimiser = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=4e-3, total_steps=steps)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.02)
    for step in range(steps):
        pick = torch.randint(len(x), (BATCH,))
        batch = x[pick]
        batch = (batch + torch.randn_like(batch) * 0.7).clamp(0, 16)
        loss = loss_of(net(batch), y[pick])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step:5d} of {steps}: loss {loss.item():.3f}")
    return net.eval()


def accuracy(net: DigitNet, x: Floats, y: Labels) -> float:
    with torch.inference_mode():
        return float((net(torch.from_numpy(x)).argmax(1).numpy() == y).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the digits model.")
    parser.add_argument("--out", type=Path, default=Path("app/models/demo/digits/weights.safetensors"))
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    train_x, train_y, test_x, test_y = split()
    net = fit(train_x, train_y)
    redrawn = augment(test_x, np.random.default_rng(SEED + 1))
    print(f"held-out fifth ({len(test_y)} digits), 8 x 8 grids: {accuracy(net, test_x, test_y):.2%}")
    print(f"held-out fifth, redrawn and passed through the image steps: {accuracy(net, redrawn, test_y):.2%}")
    save_model(net, str(out))
    print(f"{out.name}: {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
