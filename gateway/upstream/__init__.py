"""Requests to origins: the HTTP client, health checks and circuit breakers, and fetches shared by many readers."""
