"""A classifier of scikit-learn: each column of its table is an argument here and an input in model.toml."""

from pathlib import Path

import joblib
import numpy as np
import pandas as pd


def build():
    # a joblib file is a pickle, which may run any code as it is opened: open only your own
    estimator = joblib.load(Path(__file__).with_name("estimator.joblib"))

    def classify(city, area, rooms):
        """`city` is an array of bytes, numbers are tensors; NaN is a missing number, as the estimator takes it."""
        cities = [text.decode() for text in city]
        table = pd.DataFrame({"city": cities, "area": area.numpy(), "rooms": rooms.numpy()})
        return estimator.predict(table), estimator.predict_proba(table).astype(np.float32)

    return classify
