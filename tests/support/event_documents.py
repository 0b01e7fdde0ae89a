"""Events of a run as the JSON documents that `events.jsonl` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from secure_fl.events import Event, Listener, read_events

Document = dict[str, Any]


def into(documents: list[Document]) -> Listener:
    """A listener that appends each event's document to a list."""

    def listener(event: Event) -> None:
        documents.append(event.document())

    return listener


def event_of(document: Mapping[str, Any]) -> Event:
    """The event that a document describes."""
    (event,) = read_events([msgspec.json.encode(document)])
    return event
