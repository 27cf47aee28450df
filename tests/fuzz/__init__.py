"""Fuzzing of the parsers of foreign bytes."""
