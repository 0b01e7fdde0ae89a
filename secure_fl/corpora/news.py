"""News ranking: the clicks of readers on offered titles, given the titles that they read before.

Readers have hidden topics, to which most titles that they read and click belong. Some titles
("bait") attract clicks from all readers, and no reader clicks on all titles.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora.grammar import Rules, Voice, chance, say, shuffled
from secure_fl.data.examples import Impression

_HISTORY = (4, 7)  # titles read before: fewest, most
_OFFERED = 6
_INTERESTS = 1
_LOYAL = 0.9  # share of the history that belongs to the reader's topics
_APT = 0.35  # share of the offered titles that belongs to them
_BAIT = 0.35  # share of the titles that attract all readers
_CLICKS = {(True, "bait"): 0.85, (True, "plain"): 0.6, (False, "bait"): 0.2, (False, "plain"): 0.03}
_SPREAD = 0.1  # of the clicks on a reader's own topics, between hospitals

_TOPICS = {
    "sport": ("striker|goalkeeper|coach|regatta", "scores|trains|relay"),
    "food": ("baker|soup|cheese|noodles", "simmers|ferments|recipe"),
    "money": ("bank|pension|broker|mortgage", "invests|audits|shares"),
    "film": ("actor|premiere|cinema|comedy", "stars|dubs|sequel"),
    "travel": ("airline|island|ferry|railway", "departs|sails|journey"),
    "science": ("telescope|microbe|comet|fossil", "orbits|mutates|theory"),
}

RULES: Rules = {
    "topic": tuple(_TOPICS),
    **{f"subject.{topic}": tuple(nouns.split("|")) for topic, (nouns, _) in _TOPICS.items()},
    **{f"act.{topic}": tuple(acts.split("|")) for topic, (_, acts) in _TOPICS.items()},
    "title.plain": ("{subject} {act}", "{subject} {act} {time}", "{subject} and {subject} {act}"),
    "title.bait": (
        "{lure} {subject} {act}", "{number} {secrets} of the {subject}", "{lure} {subject} {time}",
    ),
    "lure": ("shocking", "why every", "never seen", "the strangest", "you missed this"),
    "secrets": ("secrets", "tricks", "wonders", "mistakes"),
    "time": ("again", "this week", "before winter", "at last"),
    "number": ("3", "5", "7", "10", "12"),
}  # fmt: skip


def _title(by: Voice, source: Random, topic: str, style: str = "") -> str:
    style = style or ("bait" if chance(_BAIT, source) else "plain")
    text = say(by, "title", source, topic, style)
    return text[:1].upper() + text[1:]


def _topic(by: Voice, source: Random, interests: set[str], share: float) -> str:
    if chance(share, source):
        return shuffled(sorted(interests), source)[0]
    while (topic := say(by, "topic", source)) in interests:
        pass
    return topic


def _click(by: Voice, source: Random, apt: bool, style: str) -> bool:
    return chance(_CLICKS[apt, style] + apt * _SPREAD * by.lean, source)


def draw(by: Voice, source: Random, name: str) -> Impression:
    """Write one page shown to a reader, with at least one click and one title without."""
    interests: set[str] = set()
    while len(interests) < _INTERESTS:
        interests.add(say(by, "topic", source))
    length = _HISTORY[0] + int(source.random() * (_HISTORY[1] - _HISTORY[0] + 1))
    history = [_topic(by, source, interests, _LOYAL) for _ in range(length)]
    clicks: list[bool] = []
    while not any(clicks) or all(clicks):
        topics = [_topic(by, source, interests, _APT) for _ in range(_OFFERED)]
        styles = ["bait" if chance(_BAIT, source) else "plain" for _ in topics]
        offered = list(zip(topics, styles, strict=True))
        clicks = [_click(by, source, topic in interests, style) for topic, style in offered]
    return Impression(
        name,
        tuple(_title(by, source, topic) for topic in history),
        tuple(_title(by, source, topic, style) for topic, style in offered),
        tuple(clicks),
    )
