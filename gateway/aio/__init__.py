"""Clocks, task ownership, signals and deadlines for one event loop."""
