"""The pictures of the documents: all there, all shown, light together. bin/screenshots takes them."""

from __future__ import annotations

import re

from PIL import Image

from tests.screenshots import FOLDER, MOST_BYTES, SHOTS
from tests.support.processes import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"(?:\]\(|src(?:set)?=\")((?:docs/)?screenshots/[^)\"]+)")


def test_every_picture_is_one_of_the_set_and_is_shown_somewhere() -> None:
    taken = {file.name for file in FOLDER.iterdir()}
    assert taken == {f"{shot.name}.png" for shot in SHOTS}
    shown = {(page.parent / name).resolve() for page in PAGES for name in SHOWN.findall(page.read_text())}
    assert {file.name for file in shown if file.is_file()} == taken
    assert [str(file) for file in shown if not file.is_file()] == []


def test_the_pictures_are_light_together_and_as_wide_as_the_set_says() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= MOST_BYTES
    for shot in SHOTS:
        view, scale = shot.seen["viewport"], shot.seen.get("device_scale_factor", 1)
        with Image.open(FOLDER / f"{shot.name}.png") as picture:
            assert picture.width == view["width"] * scale, shot.name
            assert picture.height <= view["height"] * scale, shot.name


def test_every_picture_in_the_documents_has_words_for_those_who_do_not_see_it() -> None:
    for page in PAGES:
        text = page.read_text()
        assert not re.search(r"!\[\s*\]\(", text), page
        assert all('alt="' in tag for tag in re.findall(r"<img [^>]*>", text)), page
