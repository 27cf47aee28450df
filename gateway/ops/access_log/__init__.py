"""The access log: its fields, its lines, the writer with its queue, and the sinks."""
