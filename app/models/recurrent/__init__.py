"""Recurrent models: what a model.py returns for one, and what runs it by its cell."""

from app.models.recurrent.recurrent import Recurrent

__all__ = ["Recurrent"]
