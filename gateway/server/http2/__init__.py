"""Clients over HTTP/2: the connection, and a channel for each of its streams."""
