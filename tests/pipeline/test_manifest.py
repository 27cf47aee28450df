"""The manifest of taken files: what is new of a file, whatever it is called and wherever it lies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.manifest import TAIL_BYTES, Manifest, digest, read_manifest

whole_lines = st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b" ") + b"\n"), min_size=1, max_size=8)


def take(manifest: Manifest, content: bytes) -> bytes:
    """What is new of a file with this content; after that it is not."""

    def tail_at(at: int) -> str | None:
        return digest(content[max(0, at - TAIL_BYTES) : at]) if at <= len(content) else None

    key, begin = manifest.locate(content.split(b"\n", 1)[0] + b"\n", tail_at)
    manifest.take(key, len(content), tail_at(len(content)) or "")
    return content[begin:]


@given(st.lists(whole_lines, min_size=1, max_size=5))
def test_a_file_that_grows_gives_each_byte_once(parts: list[list[bytes]]) -> None:
    manifest = Manifest()
    content = b""
    for number, part in enumerate(parts):
        more = b"".join(part)
        # The first line is a file's own, as a line's time and id are.
        more = b"the first\n" + more if number == 0 else more
        content += more
        assert take(manifest, content) == more
        manifest = read_manifest(json.loads(json.dumps(manifest.to_json())))
    assert take(manifest, content) == b""


@given(st.lists(whole_lines, min_size=1, max_size=6))
def test_files_that_begin_alike_and_go_on_otherwise_are_taken_whole(parts: list[list[bytes]]) -> None:
    manifest = Manifest()
    for number, part in enumerate(parts):
        content = b"same\n" + b"%d\n" % number + b"".join(part)
        assert take(manifest, content) == content
        assert take(manifest, content) == b""


def test_a_copy_that_lacks_the_end_of_what_was_taken_is_another_file() -> None:
    manifest = Manifest()
    assert take(manifest, b"one\ntwo\n") == b"one\ntwo\n"
    assert take(manifest, b"one\n") == b"one\n"
    assert take(manifest, b"one\ntwo\nthree\n") == b"three\n"


def test_the_files_that_have_not_grown_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.pipeline.manifest.MOST", 2)
    manifest = Manifest()
    for content in (b"one\n", b"two\n", b"one\nmore\n", b"three\n"):
        take(manifest, content)
    manifest = read_manifest(json.loads(json.dumps(manifest.to_json())))
    assert len(manifest.taken) == 2
    assert take(manifest, b"one\nmore\n") == b""
    assert take(manifest, b"two\n") == b"two\n"
