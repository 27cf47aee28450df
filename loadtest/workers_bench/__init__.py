"""Processor time, spread and memory of a gateway with several workers."""
