"""Data types and interfaces that HTTP, the engine and the models share. Nothing here needs torch."""

from app.contract.answers import Answer, FinishedBatch, GeneratedText, Pending, Times, Waiter, awaited, wait
from app.contract.models import Answers, Checks, Front, Model, ModelSource, Reader, Stages, TextCut, Translated
from app.contract.serving import Catalog, IndexEntry, Lease, ModelCall, Served
from app.contract.specs import (
    CLASSES,
    DATATYPES,
    FLOATS,
    MAX_PIXELS,
    QUICK_VALUES,
    UNBOUNDED,
    Array,
    Batching,
    ModelInfo,
    SampleRow,
    TensorSpec,
    axis_bounds,
    is_integer,
)
from app.scheduler.types import Klass
