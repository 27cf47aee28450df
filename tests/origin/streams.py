"""Streams of the in-memory origin, for its tests."""

from gateway.origin.streams import Lifetime, Stream


def stream_of(bodies: list[bytes], content_type: str = "application/octet-stream") -> Stream:
    stream = Stream("/s", "i", content_type, Lifetime(), now=0.0)
    for body in bodies:
        record = stream.record_of(body)
        assert record is not None
        stream.add(record)
    return stream
