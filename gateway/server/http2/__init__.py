"""Clients over HTTP/2: a connection, and a channel for each of its streams."""
