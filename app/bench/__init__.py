"""The load generator behind `starling bench`: a client of any server that speaks V2. From Python: `app.bench.run`."""
