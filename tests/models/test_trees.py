"""Invariant: trees answer as their library does, by columns and by arrays; without the library a line says what to do.

XGBoost and LightGBM are no part of the project: what needs them runs where they are installed.
"""

from __future__ import annotations

import sys
import tomllib

import numpy as np
import pandas as pd
import pytest
import torch

from app.errors import ConfigError
from app.models.loading import load
from app.models.scaffold.new import make

from .folders import refused, source_of, try_out, write_model

TABLE = pd.DataFrame({"age": np.linspace(0, 9, 40), "rooms": np.tile([1.0, 2.0, 3.0, 4.0], 10)})
KNOWN = TABLE["rooms"].to_numpy() - 1
TOML = (
    '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [2]\n[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = []\n'
)


def fitted(library, rows):
    """A classifier of this library, fitted to rows as they are."""
    made = pytest.importorskip(library)
    model = (
        made.XGBClassifier(n_estimators=3) if library == "xgboost" else made.LGBMClassifier(n_estimators=3, verbose=-1)
    )
    model.fit(rows, KNOWN)
    return model, (model if library == "xgboost" else model.booster_)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("library", "file"), [("xgboost", "m.ubj"), ("xgboost", "m.json"), ("lightgbm", "m.txt")])
def test_trees_serve_as_new_wrote_it(tmp_path, library, file, named):
    rows = TABLE if named else TABLE.to_numpy()
    model, saved = fitted(library, rows)
    saved.save_model(tmp_path / file)
    made = make(tmp_path / "m", str(tmp_path / file), [])
    assert made.checked.error == ""
    inputs = tomllib.loads(made.toml)["inputs"]
    assert [one["name"] for one in inputs] == (["age", "rooms"] if named else ["x"])
    assert all(one["missing"] for one in inputs)
    served = load(source_of(made.folder))
    values = TABLE.to_numpy(np.float64 if library == "lightgbm" else np.float32).copy()
    values[1, 0] = np.nan
    sent = [values[:, 0].copy(), values[:, 1].copy()] if named else [values]
    wanted = model.predict_proba(pd.DataFrame(values, columns=TABLE.columns) if named else values)
    assert np.allclose(served.call(*map(torch.from_numpy, sent)), wanted, atol=1e-6)
    assert try_out(served) == []


@pytest.mark.parametrize(("library", "file"), [("xgboost", "m.ubj"), ("xgboost", "m.json"), ("lightgbm", "m.txt")])
def test_without_the_library_a_line_says_what_to_install(tmp_path, monkeypatch, library, file):
    (tmp_path / file).write_text("{}")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ConfigError, match=f"^{library} is not installed: pip install {library},"):
        make(tmp_path / "m", str(tmp_path / file), [])
    assert not (tmp_path / "m").exists()
    assert "no such file" in refused(write_model(tmp_path / "n", f'source = "{file}"\n{TOML}', None))
