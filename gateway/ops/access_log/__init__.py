"""The access log: its fields, its lines, the writer that queues them, and the sinks that take them."""
