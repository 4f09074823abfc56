"""`make bench`: what serving costs, measured against the least that could serve the same thing.

`python -m loadtest.bench` runs the cases of `cases.py`; `python -m loadtest.bench.profile` shows where the time goes.
Contenders are child processes on loopback, alternated within one run. Only the bare torch loop imports the server's
code, to load the model that is served.
"""
