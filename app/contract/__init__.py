"""The data types and protocols that the API, the engine and the models share. Nothing here needs torch."""

from app.contract.answers import Answer, FinishedBatch, Waiter
from app.contract.models import Front, Model, ModelSource, Translated
from app.contract.serving import Catalog, IndexEntry, Lease, Plan, Served
from app.contract.specs import CLASSES, DATATYPES, UNBOUNDED, Array, Batching, ModelInfo, SampleRow, TensorSpec

__all__ = [
    "CLASSES",
    "DATATYPES",
    "UNBOUNDED",
    "Answer",
    "Array",
    "Batching",
    "Catalog",
    "FinishedBatch",
    "Front",
    "IndexEntry",
    "Lease",
    "Model",
    "ModelInfo",
    "ModelSource",
    "Plan",
    "SampleRow",
    "Served",
    "TensorSpec",
    "Translated",
    "Waiter",
]
