"""Text in an element or attribute stays that text, whatever it is."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.report.markup import Html, element, escaped, joined, shown


class Read(HTMLParser):
    """Tags, attributes and texts of a page as a browser parses them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text(st.characters() | st.sampled_from("<>&\"'/=`!-\u202e\x00\n;#x")))
def test_text_stays_text_in_elements_and_in_attributes(text: str) -> None:
    read = Read()
    read.feed(element("td", text, title=text))
    read.close()
    assert read.tags == [("td", [("title", shown(text))])]
    assert read.text == shown(text)


@given(st.text())
def test_invisible_characters_are_shown(text: str) -> None:
    assert all(char in "\n\t" or char.isprintable() or char.isspace() or ord(char) > 0x9F for char in shown(text))
    assert not set(shown(text)) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\ufeff\x00")
    shown(text).encode()


def test_markup_is_kept_and_nothing_is_left_out() -> None:
    bold = element("b", "<1>")
    assert bold == "<b>&lt;1&gt;</b>"
    assert joined([bold, " & ", 2, None, ("x", 0)]) == "<b>&lt;1&gt;</b> &amp; 2x0"
    assert isinstance(escaped("<"), Html)


def test_attributes() -> None:
    assert element("th", "x", class_="a", data_raw="0", id=None) == '<th class="a" data-raw="0">x</th>'
