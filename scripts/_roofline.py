"""A roofline plot as SVG: multiply-adds a second over multiply-adds for each byte read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 860, 520, 64, 56, 40, 130
_COLOURS = ("#0969da", "#1a7f37", "#bf8700", "#cf222e", "#8250df")


class Point(NamedTuple):
    """One kernel. Units: `intensity` in multiply-adds a byte, `rate` a second."""

    label: str
    series: str
    intensity: float
    rate: float


def svg(title: str, points: list[Point], read: float, roofs: dict[str, float]) -> str:
    """The plot: memory's slope, one flat roof for each arithmetic limit, and the points."""
    top = 2 * max([*roofs.values(), *(p.rate for p in points)])
    low = min([*(p.rate for p in points), read]) / 2
    left, right = 0.1, 2 * max([p.intensity for p in points] + [max(roofs.values()) / read])

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * _share(value, left, right)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * _share(value, low, top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 22, title, size=15),
        _text(_LEFT, _HEIGHT - 14, "multiply-adds for each byte of weights"),
        f'<text transform="translate(16 {_HEIGHT - _BOTTOM}) rotate(-90)">GMAC/s</text>',
    ]
    for value in _ticks(left, right):
        parts += [_line(x(value), y(low), x(value), y(top), "#eee")]
        parts += [_text(x(value), _HEIGHT - _BOTTOM + 16, f"{value:g}", anchor="middle")]
    for value in _ticks(low, top):
        parts += [_line(x(left), y(value), x(right), y(value), "#eee")]
        parts += [_text(_LEFT - 6, y(value) + 4, f"{value / 1e9:g}", anchor="end")]
    highest = max(roofs.values())
    start = max(left, low / read)
    parts.append(_line(x(start), y(read * start), x(highest / read), y(highest), "#333"))
    parts.append(_text(x(start) + 8, y(read * start) - 24, f"memory {read / 1e9:.1f} GB/s"))
    for name, roof in roofs.items():
        parts.append(_line(x(roof / read), y(roof), x(right), y(roof), "#333"))
        parts.append(_text(x(right) + 4, y(roof) + 4, f"{name} {roof / 1e9:.0f}"))
    series = list(dict.fromkeys(p.series for p in points))
    for i, name in enumerate(series):
        at = _TOP + 14 + 16 * i
        parts.append(_dot(_WIDTH - _RIGHT + 16, at + 60, _COLOURS[i % len(_COLOURS)], name))
        parts.append(_text(_WIDTH - _RIGHT + 24, at + 64, name))
    for p in points:
        colour = _COLOURS[series.index(p.series) % len(_COLOURS)]
        parts.append(_dot(x(p.intensity), y(p.rate), colour, f"{p.label}: {p.rate / 1e9:.1f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _ticks(low: float, high: float) -> Iterable[float]:
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**n for n in range(first, last + 1)]


def _line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}"/>'


def _dot(x: float, y: float, colour: str, title: str) -> str:
    """A point; browsers show its title when it is pointed at."""
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"'
    return f"<circle {place}><title>{title}</title></circle>"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{text}</text>'
