"""Reads a report's page as a browser and a screen reader would: elements, attributes, texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "use", "path", "rect", "image", "stop"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: list[str] = field(default_factory=list)  # the tags around it
    text: str = ""


class Page(HTMLParser):
    """All elements of a page, in order, with the text inside each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.mismatched: list[str] = []
        self.feed(html)
        self.unclosed = [element.tag for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(
            tag, {name: value or "" for name, value in attrs}, [e.tag for e in self._open]
        )
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1].tag != tag:
            self.mismatched.append(tag)
            return
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, *tags: str) -> list[Element]:
        return [element for element in self.elements if element.tag in tags]

    def having(self, *attributes: str) -> list[Element]:
        return [e for e in self.elements if all(name in e.attributes for name in attributes)]
