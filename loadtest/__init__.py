"""Load on servers, and what measures it: the generator of `starling bench`, Locust, the benchmarks, drill and soak."""
