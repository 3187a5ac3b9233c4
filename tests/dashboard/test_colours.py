"""The stylesheet's colours: every pair of text and ground that a page shows is readable, in both schemes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wakeboard.core.states import Status

CSS = (Path(__file__).parents[2] / "static" / "app.css").read_text()
TOKENS = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", CSS))
GROUNDS = ("bg", "surface", "hover", "selected")
STATES = [*(status.value for status in Status), "stuck"]
# WCAG 2.2: 1.4.3 for text, 1.4.11 for the shape of a control or a state.
TEXT, SHAPE = 4.5, 3.0


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def colour(token: str, scheme: int) -> str:
    return TOKENS[token].split(", ")[scheme]


def pairs() -> list[tuple[str, str, float]]:
    texts = [(text, ground, TEXT) for text in ("text", "muted", "accent", "danger") for ground in GROUNDS]
    texts += [("text", "sunken", TEXT), ("muted", "sunken", TEXT), ("on-accent", "accent", TEXT)]
    # Queued, succeeded and cancelled are words without a ground of their own.
    words = [f"{state}-text" for state in ("queued", "succeeded", "cancelled")]
    texts += [(word, ground, TEXT) for word in words for ground in GROUNDS]
    badges = [(f"{state}-text", f"{state}-badge", TEXT) for state in STATES]
    solids = [(f"{state}-solid", ground, SHAPE) for state in STATES for ground in ("bg", "surface", "hover")]
    return [*texts, *badges, *solids, ("control", "bg", SHAPE), ("control", "surface", SHAPE)]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("front", "back", "least"), pairs(), ids=lambda value: str(value))
def test_a_colour_is_readable_on_its_ground(front: str, back: str, least: float, scheme: int) -> None:
    assert contrast(colour(front, scheme), colour(back, scheme)) >= least


def test_the_contrast_formula_knows_black_on_white() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_the_ribbon_is_readable_in_every_colour() -> None:
    ribbons = re.findall(r"--where: (#\w{6})", CSS)
    assert len(ribbons) == 6
    for background in ribbons:
        assert contrast("#ffffff", background) >= TEXT


def test_colours_are_written_in_the_tokens_alone() -> None:
    rest = CSS.split("@layer elements", 1)[1]
    loose = re.findall(r"#[0-9a-fA-F]{3,8}\b", re.sub(r"\.ribbon[^\n]*", "", rest))
    assert loose == []
