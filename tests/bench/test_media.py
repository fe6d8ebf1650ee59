"""The parts of `bench.media` that measure."""

from __future__ import annotations

from pathlib import Path

from bench.media import HEIGHT, WIDTH, Stored, Times, count_images, make_image
from clew_activities.file_types import find_type
from clew_activities.inspection import measure_image


def test_images_have_their_size_and_differ() -> None:
    """Each is a PNG of the size that was asked for, with its own bytes, and the same each time."""
    images = [make_image(number, 50_000) for number in range(3)]
    assert {find_type(image) for image in images} == {"image/png"}
    assert {measure_image(image, "image/png") for image in images} == {(WIDTH, HEIGHT)}
    assert all(abs(len(image) - 50_000) < 100 for image in images)
    assert len(set(images)) == 3
    assert make_image(2, 50_000) == images[2]


def test_a_store_is_counted(tmp_path: Path) -> None:
    """Blobs are counted without their descriptions, and chunks of uploads apart."""
    family = tmp_path / "default" / "families" / "s-1"
    for name in ("blobs/aa", "blobs/aa.json", "blobs/bb", "segments/1.jsonl", "uploads/u/0"):
        file = family / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")
    assert Stored.read(tmp_path) == Stored(blobs=2, bytes=25, chunks=1)


def test_ratios_compare_turns_of_the_same_number() -> None:
    """The median of the pairs, of the turns that are named."""
    times = Times(turn=[2.0, 4.0, 9.0], text=[1.0, 2.0, 3.0])
    assert times.compute_ratio(0, 2) == 2.0
    assert times.compute_ratio(2, 3) == 3.0


def test_images_of_a_request_are_counted() -> None:
    """Those of all messages; texts are none."""
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    body = {
        "messages": [{"content": "text"}, {"content": [image, {"type": "text", "text": "a"}]}, {"content": [image]}]
    }
    assert count_images(body) == 2
