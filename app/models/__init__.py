"""What the code of a model may import."""

from app.models.recurrent.recurrent import Recurrent
from app.models.stages.staged import Staged

__all__ = ["Recurrent", "Staged"]
