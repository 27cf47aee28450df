"""Clocks, tasks, signals and timers for one event loop."""
