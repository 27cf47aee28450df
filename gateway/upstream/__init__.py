"""Requests to origins: the HTTP client, the origins' health, and flights, which are fetches shared by many readers."""
