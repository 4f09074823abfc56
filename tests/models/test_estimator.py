"""Invariant: an estimator is unpickled only where model.toml trusts it, and answers by the methods asked for."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from app.models.loading import load

from .folders import Bomb, refused, source_of, try_out, write_model

X = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 5.0], [5.0, 6.0]])
HEAD = 'source = "model.joblib"\ntrust = true\n'
INPUT = '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [2]\n'
LABEL = '[[outputs]]\nname = "label"\ndatatype = "INT64"\nshape = []\n'
SCORES = '[[outputs]]\nname = "predict_proba"\ndatatype = "FP32"\nshape = [2]\n'


@pytest.fixture(scope="module")
def classifier():
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X, [0, 0, 1, 1])


def folder_with(tmp_path, estimator, toml):
    folder = write_model(tmp_path / "m", toml, None)
    joblib.dump(estimator, folder / "model.joblib")
    return folder


def loaded(tmp_path, estimator, toml):
    return load(source_of(folder_with(tmp_path, estimator, toml)))


def test_outputs_are_named_after_methods_or_mapped_to_them(tmp_path, classifier):
    toml = 'kwargs = { methods = { label = "predict" } }\n' + HEAD + INPUT + LABEL + SCORES
    model = loaded(tmp_path, classifier, toml)
    assert try_out(model) == []
    label, scores = model.call(torch.tensor([[0.0, 0.5]]))
    assert label.tolist() == [0]
    assert scores.dtype == np.float32
    assert np.allclose(scores, classifier.predict_proba([[0.0, 0.5]]), atol=1e-6)


@pytest.mark.parametrize("trust", ["", "trust = false\n"])
def test_without_trust_it_is_never_opened(tmp_path, trust):
    bomb = tmp_path / "exploded"
    folder = folder_with(tmp_path, Bomb(bomb), HEAD.replace("trust = true\n", trust) + INPUT + LABEL)
    assert "is a pickle, which may run any code as it is opened: set trust = true" in refused(folder)
    assert not bomb.exists()


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        (HEAD + INPUT + LABEL + SCORES, "output 'label': expected the name of a method (predict, predict_proba"),
        ('kwargs = { methods = { label = "fly" } }\n' + HEAD + INPUT + LABEL, "expected a method of Pipeline"),
        ('kwargs = { methods = ["predict"] }\n' + HEAD + INPUT + LABEL, "kwargs.methods: expected a table"),
        (HEAD + INPUT + INPUT.replace('"x"', '"z"') + LABEL, "inputs[0].shape: expected [], a column of the table, or"),
    ],
)
def test_what_does_not_fit(tmp_path, classifier, toml, message):
    assert message in refused(folder_with(tmp_path, classifier, toml))
