"""docs/peers.md and its pictures out of what was measured: `python -m benchmarks.peers.page`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import outcomes
from benchmarks.peers import pictures as drawn
from benchmarks.peers.compare import NETWORKED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "peers"
PAGE = ROOT / "docs" / "peers.md"
IMAGES = ROOT / "docs" / "images"
TEXT = Path(__file__).with_name("page.md.j2")
OURS = "ours"
TINY = 138_178  # values of the built-in model that are trained
FILES = (
    *(
        "networked",
        "close",
        "sites-16",
        "sites-32",
        "sites-64",
        "values-1M",
        "values-10M",
        "values-100M",
        "checkpoint",
    ),
    *("simulated", "threads", "many", "few", "breaking"),
)
GROWN = ("values-1M", "values-10M", "values-100M")


def pictures() -> dict[Path, str]:
    """The files that the page shows."""
    networked = _read("networked")
    curves: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for values, row in _sizes([networked, *map(_read, GROWN)]):
        curves.setdefault(row["system"].removesuffix(", TLS"), []).append((values, row))
    return {
        IMAGES / "peers-rounds.svg": drawn.rounds(networked),
        IMAGES / "peers-growth.svg": drawn.growth(curves),
    }


def write() -> str:
    """The page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    found = {name: _read(name) for name in FILES}
    networked, breaking = found["networked"], found["breaking"]
    shown = {name: row for name, row in breaking["rows"].items() if "error" not in row}
    return environment.from_string(TEXT.read_text()).render(
        **{name.replace("-", "_"): document for name, document in found.items()},
        machine=_machine,
        times=_ahead,
        share=_share,
        beside=_beside,
        grows=_grows,
        table=_networked,
        ratios=_ratios(networked["rows"]),
        growth=_growth([networked, *(found[name] for name in GROWN)]),
        clients=_clients,
        simulates=_simulates,
        broken=_grid(shown, outcomes.broken({n: r for n, r in shown.items() if n in NETWORKED})),
        learnt=_grid(shown, outcomes.learning(shown)),
    )


def _grid(systems: Mapping[str, Any], rows: Sequence[list[str]]) -> str:
    """A table with a column for each system."""
    names = [row["system"].removesuffix(", TLS") for row in systems.values()]
    titles = ["", *names[: len(rows[0]) - 1]]
    return "\n".join([_line(titles), _line(["---"] * len(titles)), *map(_line, rows)])


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _machine(document: Mapping[str, Any]) -> str:
    """The processor, and how busy others kept it."""
    found = document["machine"]
    loads = [row["load"] for row in document["rows"].values() if "load" in row]
    busy = ""
    if loads:
        low, high = min(one[1] for one in loads), max(one[2] for one in loads)
        busy = f", load {low:.0f}" + (f" to {high:.0f}" if round(high) > round(low) else "")
    return f"{found['processor']}, {found['cores']} cores{busy}"


def _growth(documents: Sequence[Mapping[str, Any]]) -> str:
    """A row for each system and size of the model."""
    titles = ("values", "", "seconds of a round", "CPU s", "MB up + down", "MB server / site")
    lines = [_line(titles), _line(["---:", "---", *["---:"] * 4])]
    for values, row in _sizes(documents):
        lines.append(_line([f"{values:,}", row["system"], *_grown(row)]))
    return "\n".join(lines)


def _sizes(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for document in documents:
        for row in document["rows"].values():
            if row["turns"] and row["system"].startswith(("ours", "NVFLARE")):
                yield document["sizes"].get("values", TINY), row


def _grown(row: Mapping[str, Any]) -> list[str]:
    return [
        _spread(row["seconds"]),
        _spread(row["cpu"]),
        f"{row['up'][0] / 1e6:,.2f} + {row['down'][0] / 1e6:,.2f}",
        f"{row['peak_server'][0] / 1e6:,.0f} / {row['peak_site'][0] / 1e6:,.0f}",
    ]


def _clients(document: Mapping[str, Any]) -> str:
    """A row for each system that simulates."""
    titles = ("", "rounds a minute", "CPU s of a round", "MB", "until the first round")
    lines = [_line((*titles, "accuracy (off)")), _line(["---", *["---:"] * 5])]
    return "\n".join(lines + list(map(_simulated, document["rows"].values())))


def _networked(document: Mapping[str, Any]) -> str:
    """A row for each system: what it took, or why it did not run."""
    titles = (
        *("", "server blind", "seconds of a round", "CPU s of a round", "kB up + down"),
        *("until the first round, s", "MB server / site", "lines", "accuracy (off)"),
    )
    lines = [_line(titles), _line(["---", "---", *["---:"] * 7])]
    return "\n".join(lines + [_line(_cells(row)) for row in document["rows"].values()])


def _cells(row: Mapping[str, Any]) -> list[str]:
    blind = "yes" if row["protected"] else "no"
    if not row["turns"]:
        return [row["system"], blind, _error(row), *[""] * 6]
    return [
        row["system"],
        blind,
        _spread(row["seconds"]),
        _spread(row["cpu"]),
        f"{row['up'][0] / 1e3:,.0f} + {row['down'][0] / 1e3:,.0f}",
        f"{row['first'][0]:.0f}",
        f"{row['peak_server'][0] / 1e6:.0f} / {row['peak_site'][0] / 1e6:.0f}",
        str(row["lines"] or "settings"),
        f"{row['accuracy'][0]:.3f} ({row['off'][0]:.0e})",
    ]


def _ratios(rows: Mapping[str, Any]) -> str:
    """Each system's medians over ours."""
    return "\n".join(
        _line([row["system"], *map(_times, _over(row, rows[OURS]))])
        for name, row in rows.items()
        if name != OURS and row["turns"]
    )


def _over(row: Mapping[str, Any], mine: Mapping[str, Any]) -> tuple[float, float, float]:
    """A system's medians over one of ours: seconds of a round, processor time, bytes."""
    sent = (row["up"][0] + row["down"][0]) / (mine["up"][0] + mine["down"][0])
    return row["seconds"][0] / mine["seconds"][0], row["cpu"][0] / mine["cpu"][0], sent


def _ahead(document: Mapping[str, Any], system: str, mine: str = OURS) -> str:
    """How far ahead one of ours is of a system: by the clock, by processor time and by bytes."""
    clock, cpu, sent = _over(document["rows"][system], document["rows"][mine])
    return f"{clock:.1f} times by the clock, {cpu:.1f} by processor time and {sent:.1f} by bytes"


def _beside(document: Mapping[str, Any], system: str, mine: str) -> str:
    """What a round of one of ours takes of a system's, and of its bytes."""
    clock, _, sent = _over(document["rows"][mine], document["rows"][system])
    return f"{clock:.2f} times as long, at {sent:.2f} of the bytes"


def _grows(larger: Mapping[str, Any], smaller: Mapping[str, Any]) -> str:
    """How many times the processor time of a round one of ours takes with more sites."""
    more, less = (document["rows"][OURS]["cpu"][0] for document in (larger, smaller))
    return f"{more / less:.1f}"


def _share(document: Mapping[str, Any], system: str) -> str:
    """A system's seconds of a round, of ours."""
    clock, *_ = _over(document["rows"][system], document["rows"][OURS])
    return f"{clock:.2f}"


def _simulated(row: Mapping[str, Any]) -> str:
    if not row["turns"]:
        return _line([row["system"], _error(row), *[""] * 4])
    middle, high, low = (60 / seconds for seconds in row["seconds"])
    return _line(
        [
            row["system"],
            f"{middle:.1f} ({low:.1f}-{high:.1f})",
            _spread(row["cpu"]),
            f"{row['peak_site'][0] / 1e6:.0f}",
            f"{row['first'][0]:.0f} s",
            f"{row['accuracy'][0]:.3f} ({row['off'][0]:.0e})",
        ]
    )


def _simulates(document: Mapping[str, Any], system: str = "pfl") -> str:
    """Our rounds a minute beside a system's."""
    ours, other = (document["rows"][f"{name}-simulated"] for name in (OURS, system))
    clock, cpu = (other[what][0] / ours[what][0] for what in ("seconds", "cpu"))
    return f"{clock:.2f} times by the clock, {cpu:.2f} by processor time"


def _error(row: Mapping[str, Any]) -> str:
    return str(row["error"]).strip().splitlines()[-1][:120].replace("|", "/")


def _spread(values: list[float]) -> str:
    middle, low, high = values
    return f"{middle:.2f}" + (f" ({low:.2f}-{high:.2f})" if low < high else "")


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(write())
    for file, text in pictures().items():
        file.write_text(text)
