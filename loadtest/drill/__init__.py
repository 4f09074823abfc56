"""The rolling restart drill: `make drill`."""
