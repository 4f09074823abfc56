"""What the code of a model may import."""

from app.models.recurrent import Recurrent
from app.models.staged import Staged

__all__ = ["Recurrent", "Staged"]
