"""The papers' experiments in the simulator, one command each: our figures beside theirs, assumptions stated.

`python -m loadtest.papers.ebird` and `python -m loadtest.papers.adaptive_batching` write pages into docs/bench/.
"""
