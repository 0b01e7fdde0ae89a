"""Reads a page as a browser does, as far as tests need it: elements, attributes and texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    """One element; `text` is all that stands in it, at any depth."""

    tag: str
    attributes: dict[str, str]
    parents: tuple[Element, ...] = ()
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()


class Page(HTMLParser):
    """All elements of a page, in order; a tag that is closed out of turn is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open[-1].tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice: {tag} {names}"
        known = {name: value or "" for name, value in attrs}
        self.elements.append(Element(tag, known, tuple(self._open)))
        if tag not in VOID:
            self._open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1].tag == tag, f"</{tag}> out of turn"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.pieces.append(data)

    def all(self, tag: str = "", kind: str = "") -> list[Element]:
        """Elements of this tag and class."""
        return [
            e
            for e in self.elements
            if (not tag or e.tag == tag) and (not kind or kind in e.classes)
        ]

    def within(self, parent: Element) -> list[Element]:
        """Elements inside another, at any depth."""
        return [e for e in self.elements if any(p is parent for p in e.parents)]
