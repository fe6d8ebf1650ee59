"""Pin the images of other makers by digest: `python -m deploy.pin_images` needs the network.

A tag may name another image tomorrow. A digest is the hash of the image's index, so that what is pulled is what was
pinned. The registry's answer is hashed here, too: its header alone is not believed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
IMAGES = FOLDER / "images.txt"
"""The images, one a line: the name with its tag, and the digest."""
UNKNOWN = "unknown"
"""The digest of an image that no registry has been asked for."""
HUB = "https://registry-1.docker.io"
"""The registry of images whose name has no host."""
TOKENS = "https://auth.docker.io/token?service=registry.docker.io&scope=repository:{name}:pull"
"""Where it gives anybody a token to read an image."""
ACCEPTED = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
"""The types of an index, which names an image for each platform."""
MAX_BYTES = 1_000_000
"""Largest index, in bytes."""
SECONDS = 30

_REFERENCE = re.compile(
    r"(?m)^(?P<before>FROM +|\s*image: *)(?P<image>[a-z0-9][a-z0-9./-]*:[\w.-]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


def read_images() -> dict[str, str]:
    """Read the file of images: the digest, or `UNKNOWN`, of each name with its tag."""
    lines = [line for line in IMAGES.read_text().splitlines() if line and not line.startswith("#")]
    pairs = (line.split() for line in lines)
    return {pair[0]: pair[1] for pair in pairs}


def find_references(text: str) -> list[tuple[str, str | None]]:
    """Find the images that a file of the deployment names with a tag, each with the digest that it has there."""
    return [(found["image"], found["digest"]) for found in _REFERENCE.finditer(text)]


def list_files() -> list[Path]:
    """List the files of the deployment that may name images of others: those of the chart name none."""
    return [FOLDER / "Dockerfile", *sorted(FOLDER.glob("*.yaml"))]


def write_digests(text: str, digests: Mapping[str, str]) -> str:
    """Write the known digests behind the names of the images in a file."""

    def pin(found: re.Match[str]) -> str:
        digest = digests.get(found["image"], UNKNOWN)
        return found["before"] + found["image"] + ("" if digest == UNKNOWN else f"@{digest}")

    return _REFERENCE.sub(pin, text)


def fetch_digest(image: str, registry: str = HUB, tokens: str = TOKENS) -> str:
    """Fetch the digest of an image's index.

    Args:
        image: The name with its tag.
        registry: The address of the registry.
        tokens: Where it gives tokens, with `{name}` for the image's.

    Raises:
        OSError: The registry does not answer, or has no such image.
        ValueError: Its answer is no index, or not what its header says.
    """
    name, _, tag = image.partition(":")
    name = name if "/" in name else f"library/{name}"
    with urllib.request.urlopen(tokens.format(name=name), timeout=SECONDS) as answer:
        token = json.loads(answer.read(MAX_BYTES))["token"]
    headers = {"Authorization": f"Bearer {token}", "Accept": ", ".join(ACCEPTED)}
    request = urllib.request.Request(f"{registry}/v2/{name}/manifests/{tag}", headers=headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        index, said = answer.read(MAX_BYTES), answer.headers.get("Docker-Content-Digest")
        if answer.headers.get_content_type() not in ACCEPTED:
            raise ValueError(f"{image}: the registry has no index of it, but {answer.headers.get_content_type()}")
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    if said != digest:
        raise ValueError(f"{image}: the registry says {said}, and its answer has {digest}")
    return digest


def main() -> None:
    """Ask for the digests and write them; with `--check` only say which images have none."""
    parser = argparse.ArgumentParser(prog="deploy.pin_images", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if an image is not pinned, and change nothing")
    images = read_images()
    if parser.parse_args().check:
        if missing := [image for image, digest in images.items() if digest == UNKNOWN]:
            sys.exit(f"not pinned by digest: {', '.join(missing)}: run `make pin-images` with a network")
        return
    digests = {image: fetch_digest(image) for image in images}
    comments = [line for line in IMAGES.read_text().splitlines() if line.startswith("#")]
    IMAGES.write_text("\n".join([*comments, *(f"{image} {digests[image]}" for image in sorted(digests))]) + "\n")
    for file in list_files():
        file.write_text(write_digests(file.read_text(), digests))


if __name__ == "__main__":
    main()
