"""What the code of a model may import."""

from app.models.recurrent import Recurrent

__all__ = ["Recurrent"]
