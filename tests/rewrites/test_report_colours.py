"""Colours of pages: text can be read on every ground, in light and in dark, and nothing is wider than a phone."""

import re
from pathlib import Path

import pytest

STYLE = (Path(__file__).resolve().parents[2] / "rewrites" / "report" / "page" / "style.css").read_text()
ENOUGH = 4.5  # the contrast that the W3C asks for
Colour = tuple[float, float, float]


def colours(scheme: str) -> dict[str, Colour]:
    """The colours of a scheme by name."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)[:2]
    given = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if scheme == "light" else light + dark))
    return {name: tuple(int(value[i : i + 2], 16) / 255 for i in (1, 3, 5)) for name, value in given.items()}


def contrast(a: Colour, b: Colour) -> float:
    def luminance(colour: Colour) -> float:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


def mixed(a: Colour, share: float, b: Colour) -> Colour:
    return tuple(share * x + (1 - share) * y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(scheme):
    known = colours(scheme)
    for text in ("ink", "dim", "accent", "applied", "declined", "near", "bad", "good"):
        for ground in ("paper", "card", "sunk"):
            assert contrast(known[text], known[ground]) >= ENOUGH, (text, ground)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_full_cells_can_be_read(scheme):
    """The matrix of many models: a cell is filled by up to 30% of the colour of what was applied."""
    known = colours(scheme)
    full = mixed(known["applied"], 0.3, known["card"])
    assert "calc(8% + var(--fill) * 22%)" in STYLE
    for text in ("near", "declined"):
        assert f".{text}-n {{ color: color-mix(in srgb, var(--{text}) 60%, var(--ink)); }}" in STYLE
        assert contrast(mixed(known[text], 0.6, known["ink"]), full) >= ENOUGH, text


def test_nothing_is_wider_than_a_phone():
    """Fixed widths and least widths; what is wider scrolls in a box of its own."""
    widths = [int(w) for w in re.findall(r"(?<![\w-])(?:min-)?width: (\d+)px", STYLE.replace("(max-width", "("))]
    assert widths and max(widths) <= 360
