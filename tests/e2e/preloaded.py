"""All that a server imports until it is ready. Imported by the process that servers are forked from alone."""

import functools
import gc
import importlib

from app import process

process.quiet_native_libraries()  # they read the variables when they are loaded: before all that follows
for name in ("app.cli.commands", "app.cli.banner", "app.main", "app.server", "httptools", "uvloop"):
    importlib.import_module(name)
# Of one load: control tables for all of them are 4 to 7 s of CPU for each model of each server.
FEW = {"loads": (0.5,)}
importlib.import_module("app.scheduler.optimal.tables").solve.__kwdefaults__.update(FEW)
tables = importlib.import_module("app.engine.profiling.tables")
tables.Solver.solve = functools.partialmethod(tables.Solver.solve, **FEW)
gc.collect()
gc.freeze()  # a collection in a child would copy every page of what is here
