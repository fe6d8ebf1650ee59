"""Images, recordings and files before they are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Audio, File, Image


def test_the_type_of_a_text_is_that_of_its_ending(tmp_path: Path) -> None:
    """A worker cannot tell the types of texts by their bytes, and decides those of all others."""
    (tmp_path / "a.csv").write_text("a,b")
    assert File.from_path(tmp_path / "a.csv").media_type == "text/csv"
    assert Image.from_bytes(b"", name="a.png").media_type is None
    assert Audio.from_bytes(b"", "audio/wav").media_type == "audio/wav"


@pytest.mark.parametrize(("name", "clean"), [("../a\x00b.png", "a_b.png"), ("C:\\x\\y.png", "y.png"), ("", None)])
def test_names_are_the_last_part_of_paths(name: str, clean: str | None) -> None:
    """A name has no folders and no control characters."""
    assert Image.from_bytes(b"", name=name).name == clean


def test_a_stored_blob_has_no_bytes_here() -> None:
    """The bytes of a blob are read through a session."""
    with pytest.raises(ValueError, match="read_blob"):
        Image.from_url("https://example.com/a.png").read()
