"""The plot of ``docs/performance.md``: processor seconds of every contender, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.table import KINDS

_WIDTH, _LABELS, _BAR, _GAP = 760, 310, 18, 6
_COLOURS = {"kbq": "#1a7f5a", "forgets": "#8a93a0", "writes": "#c2703d"}


def write_plot(results: Mapping[str, Any], path: Path) -> None:
    """A horizontal bar for each contender and topic; bars of one topic share a scale."""
    lines: list[str] = []
    top = 10
    for kind in KINDS:
        if kind in results:
            drawn, top = _topic(results[kind], top)
            lines += drawn
    style = "font-family: system-ui, sans-serif; font-size: 12px"
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}" '
        f'style="{style}">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(lines)
        + "\n</svg>\n"
    )


def _topic(topic: Mapping[str, Any], top: int) -> tuple[list[str], int]:
    """A topic's title and bars, and where the next thing may begin."""
    seconds = {c: topic["medians"][c]["cpu"] for c in CONTENDERS if c in topic["medians"]}
    scale = (_WIDTH - _LABELS - 60) / max(seconds.values())
    lines = [_text(10, top + 14, f"{topic['label']}: seconds of processor time", "#1d2530", "bold")]
    top += 24
    for contender, value in seconds.items():
        lines += _bar(contender, value, scale, top)
        top += _BAR + _GAP
    return lines, top + 14


def _bar(contender: str, value: float, scale: float, top: int) -> Iterator[str]:
    told = CONTENDERS[contender]
    colour = _COLOURS["kbq" if told.label.startswith("KBQ") else "writes" if told.writes else "forgets"]
    width = max(1, round(value * scale))
    yield _text(10, top + 13, told.label.replace("`", ""), "#1d2530")
    yield f'<rect x="{_LABELS}" y="{top}" width="{width}" height="{_BAR}" rx="2" fill="{colour}"/>'
    yield _text(_LABELS + width + 6, top + 13, f"{value:.1f}", "#1d2530")


def _text(x: int, y: int, text: str, colour: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
