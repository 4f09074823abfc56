"""Experiments of published papers, mostly simulated: our figures beside theirs, with all assumptions stated.

`python -m experiments.papers.ebird`, `...adaptive_batching` and `...stages` write pages into docs/bench/.
"""
