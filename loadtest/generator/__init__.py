"""The load generator of `starling bench`, for any server that speaks V2. From Python use `loadtest.generator.run`."""
