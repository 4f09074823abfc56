"""The models that ship are what their scripts make: the digits' held-out accuracy and samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from app.models.loading import load
from app.models.repository import SETS, Repository
from experiments.training import digits_drawing as drawing

FOLDER = SETS["demo"]["digits"]


@pytest.fixture(scope="module")
def digits():
    (source,) = Repository("demo").sources("digits")
    return load(source).call


def test_the_held_out_fifth_is_read(digits):
    pytest.importorskip("sklearn")
    from experiments.training.digits import split

    _, _, images, labels = split()
    with torch.inference_mode():
        right = (digits(torch.from_numpy(images))["label"].numpy() == labels).mean()
    assert len(labels) == 360
    assert right >= 0.97
    assert f"{right:.2%}".replace("%", " %") in (FOLDER / "README.md").read_text()


def test_the_samples_are_what_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["draw", "--out", str(tmp_path)])
    drawing.main()
    for path in sorted((FOLDER / "samples").iterdir()):
        # JPEG coders differ a little between releases
        one, two = (np.asarray(Image.open(file).convert("L"), np.float32) for file in (path, tmp_path / path.name))
        assert one.shape == two.shape
        assert np.abs(one - two).mean() < 2, Path(path).name
