"""The samples that ship are what their script draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from app.models.repository import SETS
from experiments.training import digits_drawing as drawing

FOLDER = SETS["demo"]["digits"]


def test_the_samples_are_what_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["draw", "--out", str(tmp_path)])
    drawing.main()
    for path in sorted((FOLDER / "samples").iterdir()):
        # JPEG coders differ a little between releases
        one, two = (np.asarray(Image.open(file).convert("L"), np.float32) for file in (path, tmp_path / path.name))
        assert one.shape == two.shape
        assert np.abs(one - two).mean() < 2, Path(path).name
