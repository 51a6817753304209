"""Reads HTML pages, for tests of what is on them."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
VOID = {"meta", "input"}


class Page(HTMLParser):
    """What is on a page: elements with their attributes, and the text outside of styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]

    def links(self) -> list[str]:
        found = [attributes.get("href") for tag, attributes in self.elements if tag == "a"]
        return [link for link in found if link is not None and not link.startswith("#")]
