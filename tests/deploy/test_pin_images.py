"""Images of other makers are pinned by digest: in one file, from which the files of the deployment have them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deploy import pin_images
from deploy.pin_images import UNKNOWN, fetch_digest, find_references, list_files, read_images, write_digests

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
OWN = {"clew"}
"""The images that this repository makes. They have no tag here: their builder gives them one."""


class Registry(BaseHTTPRequestHandler):
    """A registry with one image, and others that it answers wrongly."""

    def do_GET(self) -> None:
        """Give a token, or an index to a client that has the token."""
        if self.path.startswith("/token"):
            self._send(json.dumps({"token": "t"}).encode(), "application/json")
        elif self.headers["Authorization"] != "Bearer t":
            self.send_error(401)
        elif self.path == "/v2/library/python/manifests/3":
            self._send(INDEX, pin_images.ACCEPTED[0])
        elif self.path == "/v2/made/up/manifests/1":
            self._send(INDEX + b" ", pin_images.ACCEPTED[0])
        elif self.path == "/v2/one/platform/manifests/1":
            self._send(INDEX, "application/vnd.oci.image.manifest.v1+json")
        else:
            self.send_error(404)

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's name
        """Write no log."""


@pytest.fixture
def registry() -> Iterator[str]:
    """The address of a registry."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_image_of_others_is_in_the_list_with_the_digest_that_the_files_have() -> None:
    """A file that names an image that is not listed, or without the digest that is known, is refused."""
    images, used = read_images(), set[str]()
    for file in list_files():
        for image, digest in find_references(file.read_text()):
            assert image in images, f"{file}: list {image} in {pin_images.IMAGES}"
            assert (digest or UNKNOWN) == images[image], f"{file}: {image}: run `make pin-images`"
            used.add(image)
    assert used == images.keys()
    assert all(digest == UNKNOWN or re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in images.values())


def test_no_image_of_others_has_no_tag() -> None:
    """What a file names without a tag is made by this repository, or is a stage of the same file."""
    for file in list_files():
        text = file.read_text()
        named = set(re.findall(r"(?m)^(?:FROM +|\s*(?:- )?image: *)([^\s#]+)", text))
        with_tags = {image + (f"@{digest}" if digest else "") for image, digest in find_references(text)}
        assert named - with_tags <= OWN, file


def test_a_digest_is_that_of_the_index_that_the_registry_has(registry: str) -> None:
    """An answer that does not have the digest of its header, no index, and no image are refused."""
    tokens = f"{registry}/token?scope={{name}}"
    assert fetch_digest("python:3", registry, tokens) == DIGEST
    for image in ("made/up:1", "one/platform:1"):
        with pytest.raises(ValueError, match=image):
            fetch_digest(image, registry, tokens)
    with pytest.raises(OSError, match="404"):
        fetch_digest("not/there:1", registry, tokens)


def test_digests_are_written_behind_the_names_and_replace_older_ones() -> None:
    """Comments and other images stay as they are; writing again changes nothing."""
    text = "FROM python:3 AS packages\n    image: postgres:15@sha256:" + "0" * 64 + " # why\n    image: clew\n"
    pinned = write_digests(text, {"python:3": DIGEST, "postgres:15": DIGEST})
    assert pinned == f"FROM python:3@{DIGEST} AS packages\n    image: postgres:15@{DIGEST} # why\n    image: clew\n"
    assert write_digests(pinned, {"python:3": DIGEST, "postgres:15": DIGEST}) == pinned
