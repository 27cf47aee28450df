"""Bytes in, bytes out: clients' connections, the handlers behind them, and what is remembered by a request's bytes."""
