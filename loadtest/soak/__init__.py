"""Load with faults for half an hour: `make soak`."""
