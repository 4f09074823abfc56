"""Invariant: an estimator is unpickled only where model.toml trusts it, and answers by the methods asked for."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from app.errors import ConfigError
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


def test_text_goes_in_and_labels_come_out(tmp_path):
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    pipeline.fit(["good day", "fine day", "bad night", "sad night"], ["up", "up", "down", "down"])
    toml = HEAD + INPUT.replace("FP32", "BYTES").replace("[2]", "[]") + LABEL.replace("INT64", "BYTES")
    model = loaded(tmp_path, pipeline, toml)
    assert try_out(model) == []
    (said,) = model.call(np.array([b"what a fine day", b"a sad night"], dtype=object))
    assert said.tolist() == [b"up", b"down"]


def test_a_transformer_and_a_sparse_result(tmp_path):
    vectors = TfidfVectorizer().fit(["a cat", "the dog"])
    toml = HEAD + INPUT.replace("FP32", "BYTES").replace("[2]", "[]")
    toml += LABEL.replace("INT64", "FP32").replace("[]", f"[{len(vectors.vocabulary_)}]")
    model = loaded(tmp_path, vectors, toml)
    (vector,) = model.call(np.array([b"cat"], dtype=object))
    assert vector.shape == (1, 3)


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
        ('kwargs = { methods = { x = "predict" } }\n' + HEAD + INPUT + LABEL, "expected names of outputs (label)"),
        ('kwargs = { methods = ["predict"] }\n' + HEAD + INPUT + LABEL, "kwargs.methods: expected a table"),
        ("kwargs = { n = 1 }\n" + HEAD + INPUT + LABEL, "kwargs.n: expected no more than methods"),
        (HEAD + INPUT + INPUT.replace('"x"', '"z"') + LABEL, "inputs[0].shape: expected [], a column of the table, or"),
    ],
)
def test_what_does_not_fit(tmp_path, classifier, toml, message):
    assert message in refused(folder_with(tmp_path, classifier, toml))


def test_a_wrong_datatype_is_an_error_and_not_cast(tmp_path):
    regression = LinearRegression().fit(X, X.sum(1))
    with pytest.raises(ConfigError, match=r"output 'label': expected INT64 \(int64\), got float64"):
        try_out(loaded(tmp_path, regression, HEAD + INPUT + LABEL))
