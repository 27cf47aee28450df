"""Bytes in, bytes out: the front door, the handlers behind it, and the writers of live connections."""
