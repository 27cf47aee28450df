"""Authorisation: JWTs, signed URLs and public patterns, judged by pure functions, and the remembered verdicts."""
