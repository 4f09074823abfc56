"""The load generator of `starling bench`, for any server that speaks V2. From Python use `app.bench.run`."""
