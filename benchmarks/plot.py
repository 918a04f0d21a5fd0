"""The plots in ``docs/performance.md`` as SVG: CPU seconds of every contender, and the samples of a soak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import OWN
from benchmarks.table import KINDS

_WIDTH, _LABELS, _BAR, _GAP = 760, 310, 18, 6
_COLOURS = {"kbq": "#1a7f5a", "forgets": "#8a93a0", "writes": "#c2703d"}


def write_plot(results: Mapping[str, Any], path: Path) -> None:
    """Draw a horizontal bar for each contender and topic. The bars of a topic share a scale."""
    lines: list[str] = []
    top = 10
    for kind in KINDS:
        if kind in results:
            drawn, top = _topic(results[kind], top)
            lines += drawn
    path.write_text(_svg(lines, top))


def write_lines(path: Path, minutes: Sequence[float], lines: Mapping[str, Sequence[float]]) -> None:
    """Draw a panel for each line, over the same minutes."""
    height, drawn, right = 90, list[str](), _WIDTH - 20
    for number, (label, values) in enumerate(lines.items()):
        top, most = 20 + number * (height + 40), max(*values, 1)
        points = " ".join(
            f"{60 + (right - 60) * minute / minutes[-1]:.1f},{top + 10 + height * (1 - value / most):.1f}"
            for minute, value in zip(minutes, values, strict=True)
        )
        drawn += [
            _text(60, top, f"{label}: at most {most:,.0f}", "#1d2530", "bold"),
            f'<polyline points="{points}" fill="none" stroke="{_COLOURS["kbq"]}" stroke-width="1.5"/>',
            f'<line x1="60" x2="{right}" y1="{top + height + 10}" y2="{top + height + 10}" stroke="#8a93a0"/>',
        ]
    bottom = 20 + len(lines) * (height + 40)
    drawn += [
        _text(60, bottom, "0 min", "#8a93a0"),
        _text(right - 50, bottom, f"{minutes[-1]:.0f} min", "#8a93a0"),
    ]
    path.write_text(_svg(drawn, bottom + 10))


def _svg(drawn: Iterable[str], height: int) -> str:
    style = "font-family: system-ui, sans-serif; font-size: 12px"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'style="{style}">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _topic(topic: Mapping[str, Any], top: int) -> tuple[list[str], int]:
    """A topic's title and bars, and the position below them."""
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
    colour = _COLOURS["kbq" if contender in ("kbq", *OWN) else "writes" if told.writes else "forgets"]
    width = max(1, round(value * scale))
    yield _text(10, top + 13, told.label.replace("`", ""), "#1d2530")
    yield f'<rect x="{_LABELS}" y="{top}" width="{width}" height="{_BAR}" rx="2" fill="{colour}"/>'
    yield _text(_LABELS + width + 6, top + 13, f"{value:.1f}", "#1d2530")


def _text(x: int, y: int, text: str, colour: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="{weight}">{escape(text)}</text>'
