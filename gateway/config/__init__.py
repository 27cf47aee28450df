"""The configuration: its models, its sources, the files that it names, and reloads."""
