"""Models that are no networks: estimators of scikit-learn, the columns that pipelines take, and boosted trees."""

from __future__ import annotations

import json
import sys
import tomllib

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from app.errors import ConfigError
from app.models.loading import load
from app.models.scaffold.columns import estimator_inputs
from app.models.scaffold.new import make

from .folders import Bomb, refused, source_of, try_out, write_model

# Estimators of scikit-learn: unpickled only where they are trusted, and the columns that pipelines take.


# Invariant: an estimator is unpickled only where model.toml trusts it, and answers by the methods asked for.


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


# Invariant: `starling new` on a pipeline fitted to a table writes the columns that it uses, and what each may hold.


FRAME = pd.DataFrame(
    {
        "id": [1, 2, 3, 4],
        "age": [20, 30, None, 50],
        "fare (EUR)": [1.0, 2.0, 3.0, 4.0],
        "city": ["Bonn", "Köln", None, "Ulm"],
        "sex": ["m", "f", "m", "f"],
        "store": [1, 2, 2, 3],
        "member": [True, False, True, True],
        "note": ["good day", "bad", "so so", "good"],
    }
)
FILLED = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
PIPELINE = make_pipeline(
    ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "fare (EUR)"]),
            ("city", FILLED, ["city"]),
            ("codes", OrdinalEncoder(), make_column_selector("sex|store")),
            ("member", OneHotEncoder(), ["member"]),
            ("note", TfidfVectorizer(), "note"),
        ]
    ),
    LinearRegression(),
).fit(FRAME, [1.0, 2.0, 3.0, 4.0])


def as_sent(column, spec):
    if spec.datatype != "BYTES":
        return torch.from_numpy(column.to_numpy(spec.dtype, copy=True))
    return np.array([b"" if value != value else value.encode() for value in column], object)  # NaN equals nothing


def test_a_pipeline_of_mixed_columns_serves_as_new_wrote_it(tmp_path):
    joblib.dump(PIPELINE, tmp_path / "fares.joblib")
    made = make(tmp_path / "fares", str(tmp_path / "fares.joblib"), [], trust=True)
    assert made.checked.error == ""
    inputs = {one["name"]: one for one in tomllib.loads(made.toml)["inputs"]}
    assert {name: (one["datatype"], one.get("missing", False)) for name, one in inputs.items()} == {
        "age": ("FP64", True),
        "fare (EUR)": ("FP64", True),
        "city": ("BYTES", True),
        "sex": ("BYTES", False),
        "store": ("FP64", False),
        "member": ("BOOL", False),
        "note": ("BYTES", False),
    }
    assert {name: one["categories"] for name, one in inputs.items() if "categories" in one} == {
        "city": ["Bonn", "Köln", "Ulm"],
        "sex": ["f", "m"],
        "store": [1, 2, 3],
    }
    sent = json.loads((made.folder / "request.json").read_text())["inputs"]
    assert [(one["name"], one["shape"]) for one in sent] == [(name, [1]) for name in inputs]

    model = load(source_of(made.folder))
    found = model.call(*(as_sent(FRAME[spec.name], spec) for spec in model.info.inputs))
    assert np.allclose(found[0], PIPELINE.predict(FRAME))


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ([0, 3], ["sex", "id"]),
        (slice(1, 3), ["age", "city"]),
        (slice("age", "city"), ["age", "city"]),
        ([True, False, False, True], ["id", "sex"]),
        (lambda frame: ["sex"], ["sex"]),
    ],
)
def test_columns_of_a_part_are_found_however_they_were_chosen(columns, names):
    frame = FRAME[["id", "age", "city", "sex"]]
    part = ColumnTransformer([("part", "passthrough", columns), ("none", "drop", ["id"])]).fit(frame)
    assert {one["name"] for one in estimator_inputs(part)} == set(names)


def test_a_union_and_numbers_without_names():
    both = make_union(OneHotEncoder(handle_unknown="ignore"), OrdinalEncoder()).fit(FRAME[["sex"]])
    assert estimator_inputs(both) == [{"name": "sex", "datatype": "BYTES", "shape": [], "categories": ["f", "m"]}]
    assert estimator_inputs(StandardScaler().fit([[1.0, 2.0]])) == [{"name": "x", "datatype": "FP32", "shape": [2]}]


def test_a_column_that_it_does_not_have(tmp_path):
    joblib.dump(PIPELINE, tmp_path / "fares.joblib")
    some = [{"name": name, "datatype": "FP64", "shape": []} for name in ("age", "height")]
    with pytest.raises(
        ConfigError, match=r"inputs\[1\].name: expected a column of its fit \(id, age, .*, got 'height'"
    ):
        make(tmp_path / "fares", str(tmp_path / "fares.joblib"), some, trust=True)


# Invariant: trees answer as their library does, by columns and by arrays; without the library a line says what to do.
# XGBoost and LightGBM are no part of the project: what needs them runs where they are installed.


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
