"""The live driver of the scheduler: asyncio, slots, workers. Importing the package alone loads no torch."""
