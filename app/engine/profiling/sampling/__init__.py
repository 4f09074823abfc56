"""Which batches to time next, how often, and what follows for those that were not."""
