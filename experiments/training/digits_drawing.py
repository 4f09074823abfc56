"""Draw the sample images of digits: `python -m experiments.training.digits_drawing`. Seeded pen strokes.

Each digit is a few strokes through control points on a unit square (y downwards), made smooth, shaken a little, and
drawn with a round pen. The ten looks differ on purpose: size, place, pen, paper, file format.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

Points = npt.NDArray[np.float64]
Strokes = list[list[tuple[float, float]]]

SEED = 20
_SMOOTH = 4  # drawn so many times larger, then reduced: Pillow's lines have hard edges

#: Of the samples; none of them is trained on.
STROKES: dict[int, Strokes] = {
    0: [[(0.55, 0.02), (0.22, 0.2), (0.15, 0.55), (0.32, 0.92), (0.6, 0.95), (0.82, 0.65), (0.8, 0.25), (0.52, 0.03)]],
    1: [[(0.3, 0.25), (0.42, 0.14), (0.55, 0.0)], [(0.55, 0.0), (0.54, 0.5), (0.52, 1.0)]],
    2: [
        [(0.2, 0.25), (0.32, 0.05), (0.6, 0.0), (0.78, 0.2), (0.68, 0.45), (0.42, 0.72), (0.15, 0.97)],
        [(0.15, 0.97), (0.5, 0.95), (0.85, 0.96)],
    ],
    3: [
        [(0.2, 0.1), (0.5, 0.0), (0.75, 0.18), (0.62, 0.4), (0.4, 0.47)],
        [(0.4, 0.47), (0.7, 0.55), (0.8, 0.75), (0.55, 0.98), (0.18, 0.9)],
    ],
    4: [[(0.5, 0.0), (0.35, 0.3), (0.12, 0.62), (0.5, 0.63), (0.88, 0.6)], [(0.68, 0.3), (0.66, 0.65), (0.63, 1.0)]],
    5: [
        [(0.78, 0.02), (0.52, 0.03), (0.28, 0.04)],
        [(0.28, 0.04), (0.26, 0.24), (0.24, 0.45)],
        [(0.24, 0.45), (0.5, 0.36), (0.75, 0.5), (0.76, 0.78), (0.5, 0.98), (0.18, 0.92)],
    ],
    6: [
        [
            *[(0.68, 0.0), (0.38, 0.22), (0.2, 0.6), (0.3, 0.92), (0.58, 0.98), (0.76, 0.78), (0.62, 0.55)],
            *[(0.36, 0.58), (0.22, 0.75)],
        ]
    ],
    7: [[(0.15, 0.04), (0.5, 0.03), (0.85, 0.02)], [(0.85, 0.02), (0.6, 0.45), (0.42, 1.0)]],
    8: [
        [
            *[(0.72, 0.12), (0.45, 0.0), (0.25, 0.18), (0.45, 0.42), (0.72, 0.62), (0.72, 0.88), (0.45, 1.0)],
            *[(0.22, 0.84), (0.32, 0.6), (0.6, 0.4), (0.74, 0.15)],
        ]
    ],
    9: [
        [(0.75, 0.2), (0.52, 0.0), (0.25, 0.14), (0.26, 0.4), (0.5, 0.5), (0.74, 0.25)],
        [(0.75, 0.2), (0.72, 0.6), (0.58, 1.0)],
    ],
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one image looks: canvas in pixels, the digit's box within it (fractions), pen width as a fraction of the
    box's height, colours, slant (shift of the top against the foot), noise (standard deviation, gray levels).
    """

    canvas: tuple[int, int]
    box: tuple[float, float, float, float]
    pen: float
    paper: tuple[int, int, int]
    ink: tuple[int, int, int]
    file: str
    slant: float = 0.0
    noise: float = 0.0


LOOKS: dict[int, Look] = {
    0: Look((200, 200), (0.2, 0.15, 0.7, 0.85), 0.08, (255, 255, 255), (0, 0, 0), "0.png"),
    1: Look((120, 180), (0.3, 0.2, 0.7, 0.8), 0.09, (250, 248, 240), (20, 30, 120), "1.jpg", 0.1, 3),
    2: Look((512, 512), (0.1, 0.4, 0.5, 0.9), 0.12, (0, 0, 0), (255, 255, 255), "2.png"),
    3: Look((320, 240), (0.5, 0.1, 0.85, 0.8), 0.05, (235, 235, 230), (60, 60, 60), "3.jpg", 0.0, 4),
    4: Look((256, 256), (0.15, 0.1, 0.8, 0.9), 0.14, (255, 255, 255), (200, 30, 30), "4.png", 0.05),
    5: Look((64, 64), (0.15, 0.12, 0.8, 0.9), 0.1, (255, 255, 255), (0, 0, 0), "5.png"),
    6: Look((300, 400), (0.1, 0.1, 0.5, 0.5), 0.1, (20, 50, 35), (240, 240, 235), "6.jpg", 0.08, 3),
    7: Look((480, 360), (0.3, 0.2, 0.65, 0.85), 0.035, (245, 240, 225), (30, 30, 30), "7.jpg", 0.0, 3),
    8: Look((96, 128), (0.2, 0.1, 0.8, 0.9), 0.12, (40, 40, 40), (250, 220, 90), "8.png"),
    9: Look((400, 400), (0.35, 0.25, 0.75, 0.85), 0.07, (255, 255, 255), (10, 80, 30), "9.png", 0.1),
}


def draw(strokes: Strokes, look: Look, random: np.random.Generator, shake: float = 0.015) -> Image.Image:
    """Strokes as an RGB image. `shake` moves each control point by so much of the box (standard deviation)."""
    width, height = (side * _SMOOTH for side in look.canvas)
    image = Image.new("RGB", (width, height), look.paper)
    pen = ImageDraw.Draw(image)
    left, top, right, bottom = look.box
    low = np.array([left * width, top * height])
    size = np.array([(right - left) * width, (bottom - top) * height])
    radius = look.pen * size[1] / 2
    for stroke in strokes:
        points = np.array(stroke) + random.normal(0, shake, (len(stroke), 2))
        points[:, 0] += look.slant * (0.5 - points[:, 1])
        path = low + _smooth(points) * size
        pen.line([(x, y) for x, y in path], fill=look.ink, width=max(1, round(2 * radius)))
        for x, y in path:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=look.ink)
    image = image.resize(look.canvas, Image.Resampling.BOX)
    if look.noise:
        pixels = np.asarray(image, np.float64) + random.normal(0, look.noise, (look.canvas[1], look.canvas[0], 1))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.6))
    return image


def _smooth(points: Points, steps: int = 24) -> Points:
    """A Catmull-Rom curve through the points."""
    padded = np.concatenate([2 * points[:1] - points[1:2], points, 2 * points[-1:] - points[-2:-1]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    pieces = [
        0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3)
        for a, b, c, d in zip(padded, padded[1:], padded[2:], padded[3:], strict=False)
    ]
    return np.concatenate([*pieces, points[-1:]])


#: Ways of writing a digit that scikit-learn's digits lack or seldom show, for training only: a 7 without a bar, a 1
#: with a foot, ...
_LOWER_RING = [(0.5, 0.45), (0.15, 0.74), (0.5, 1.0), (0.85, 0.74), (0.5, 0.45)]

STYLES: list[tuple[int, Strokes]] = [
    (0, [[(0.5, 0.0), (0.2, 0.3), (0.25, 0.85), (0.5, 1.0), (0.75, 0.85), (0.8, 0.3), (0.5, 0.0)]]),
    (0, [[(0.5, 0.0), (0.1, 0.3), (0.1, 0.7), (0.5, 1.0), (0.9, 0.7), (0.9, 0.3), (0.5, 0.0)]]),
    (1, [[(0.5, 0.0), (0.5, 0.5), (0.5, 1.0)]]),
    (1, [[(0.25, 0.3), (0.55, 0.0)], [(0.55, 0.0), (0.55, 1.0)]]),
    (1, [[(0.2, 0.2), (0.4, 0.12), (0.5, 0.0)], [(0.5, 0.0), (0.5, 1.0)], [(0.2, 1.0), (0.8, 1.0)]]),
    (1, [[(0.35, 0.1), (0.52, 0.0)], [(0.52, 0.0), (0.52, 1.0)], [(0.3, 1.0), (0.74, 1.0)]]),
    (2, [[(0.15, 0.2), (0.5, 0.0), (0.82, 0.25), (0.5, 0.65), (0.12, 1.0)], [(0.12, 1.0), (0.88, 1.0)]]),
    (2, [[(0.2, 0.15), (0.6, 0.0), (0.8, 0.3), (0.3, 0.85), (0.15, 0.98), (0.35, 0.82), (0.6, 1.0), (0.9, 0.9)]]),
    (3, [[(0.15, 0.0), (0.8, 0.0)], [(0.8, 0.0), (0.45, 0.4)], [(0.45, 0.4), (0.85, 0.65), (0.6, 1.0), (0.12, 0.9)]]),
    (3, [[(0.15, 0.12), (0.6, 0.0), (0.8, 0.25), (0.45, 0.48), (0.85, 0.72), (0.6, 1.0), (0.1, 0.88)]]),
    (4, [[(0.7, 1.0), (0.7, 0.0)], [(0.7, 0.0), (0.08, 0.68)], [(0.08, 0.68), (0.95, 0.68)]]),
    (4, [[(0.2, 0.0), (0.15, 0.5)], [(0.15, 0.5), (0.85, 0.5)], [(0.8, 0.0), (0.8, 1.0)]]),
    (
        5,
        [[(0.8, 0.0), (0.22, 0.0)], [(0.22, 0.0), (0.18, 0.42)], [(0.18, 0.42), (0.8, 0.5), (0.7, 0.95), (0.12, 0.95)]],
    ),
    (5, [[(0.82, 0.0), (0.3, 0.02), (0.25, 0.4), (0.6, 0.4), (0.85, 0.7), (0.55, 1.0), (0.15, 0.92)]]),
    (6, [[(0.75, 0.05), (0.4, 0.1), (0.18, 0.6), (0.45, 1.0), (0.8, 0.75), (0.5, 0.45), (0.2, 0.65)]]),
    (6, [[(0.5, 0.0), (0.2, 0.4), (0.15, 0.8), (0.5, 1.0), (0.85, 0.8), (0.7, 0.55), (0.4, 0.55), (0.2, 0.75)]]),
    (7, [[(0.12, 0.0), (0.88, 0.0)], [(0.88, 0.0), (0.35, 1.0)]]),
    (7, [[(0.15, 0.15), (0.18, 0.0)], [(0.18, 0.0), (0.85, 0.0)], [(0.85, 0.0), (0.5, 0.5), (0.4, 1.0)]]),
    (7, [[(0.12, 0.05), (0.5, 0.0), (0.85, 0.03)], [(0.85, 0.03), (0.55, 0.5), (0.5, 1.0)]]),
    (8, [[(0.5, 0.45), (0.2, 0.22), (0.5, 0.0), (0.8, 0.22), (0.5, 0.45)], _LOWER_RING]),
    (8, [[(0.8, 0.15), (0.5, 0.0), (0.2, 0.2), (0.8, 0.75), (0.5, 1.0), (0.2, 0.78), (0.78, 0.2)]]),
    (9, [[(0.82, 0.3), (0.5, 0.55), (0.18, 0.28), (0.5, 0.0), (0.82, 0.3)], [(0.82, 0.3), (0.82, 1.0)]]),
    (9, [[(0.8, 0.3), (0.5, 0.5), (0.2, 0.28), (0.5, 0.0), (0.8, 0.25), (0.7, 0.8), (0.25, 0.98)]]),
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the ten sample images.")
    parser.add_argument("--out", type=Path, default=Path("app/models/demo/digits/samples"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    for digit, look in LOOKS.items():
        draw(STROKES[digit], look, random).save(out / look.file, quality=88)


if __name__ == "__main__":
    main()
