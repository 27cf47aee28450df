"""The cache plan in effect: it resolves the plan's entries to tape keys, applies them to the engine, and warms
streams."""
