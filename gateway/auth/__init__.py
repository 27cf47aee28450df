"""Authorisation by JWTs, signed URLs, operators' services and public patterns.  All decisions are pure functions."""
