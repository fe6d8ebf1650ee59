"""URLs that a store signs for uploads, checked without a network, and the reading of what others have written."""

from __future__ import annotations

import asyncio
import json
import uuid
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

import httpx
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from clew.errors import TooLarge, UnknownKey
from clew_activities.archive import Archive, ObjectMissing, Store, StoreUnavailable
from clew_activities.archive.backends import Bucket, SignedPut
from clew_workflows.encryption import Changed, Encryption, Unsealed
from tests.support.archives import begin_archive, list_objects, make_entries
from tests.support.encrypted import Reversing, make_encryption
from tests.support.s3 import make_s3_env

MINUTE = timedelta(minutes=1)
PATH = "n/staged/s-a:b/upload"


async def sign(store: Store, path: str = PATH) -> SignedPut:
    """Sign a URL that is valid for a minute."""
    signed = await store.sign_put(path, MINUTE)
    assert signed is not None
    return signed


def read_url(url: str) -> tuple[str, str, dict[str, str]]:
    """Split a URL into its host, its path and its parameters."""
    parts = urlsplit(url)
    return (
        parts.hostname or "",
        unquote(parts.path),
        {name: value[0] for name, value in parse_qs(parts.query).items()},
    )


async def test_s3_signs_one_write_of_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signature is that of AWS for a PUT of this object with this lifetime, and of no other method or object."""
    env = make_s3_env("https://s3.example")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    signed = await sign(Store.from_url("s3://bucket/a prefix"))
    host, path, query = read_url(signed.url)
    assert (host, path, signed.headers) == ("s3.example", f"/bucket/a prefix/{PATH}", {})
    assert query["X-Amz-Expires"] == "60"
    auth = S3SigV4QueryAuth(
        Credentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]), "s3", env["AWS_REGION"]
    )

    def compute_signature(method: str, url: str) -> str:
        parts = urlsplit(url)
        unsigned = "&".join(sorted(pair for pair in parts.query.split("&") if "Signature" not in pair))
        request = AWSRequest(method=method, url=urlunsplit(parts._replace(query=unsigned)))
        request.context["timestamp"] = query["X-Amz-Date"]
        return str(auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request))

    assert compute_signature("PUT", signed.url) == query["X-Amz-Signature"]
    others = {
        compute_signature("GET", signed.url),
        compute_signature("DELETE", signed.url),
        compute_signature("PUT", signed.url.replace("/upload?", "/upload.json?")),
        compute_signature("PUT", signed.url.replace("Expires=60", "Expires=600")),
    }
    assert query["X-Amz-Signature"] not in others


async def test_azure_signs_one_write_of_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """The URL may write this blob and do nothing else, until its end; the request names the type of the blob."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", b64encode(b"k" * 32).decode())
    signed = await sign(Store.from_url("az://container/prefix"))
    host, path, query = read_url(signed.url)
    assert (host, path) == ("account.blob.core.windows.net", f"/container/prefix/{PATH}")
    assert (query["sr"], query["sp"]) == ("b", "w")
    assert MINUTE / 2 < datetime.fromisoformat(query["se"]) - datetime.now(UTC) <= MINUTE
    assert signed.headers == {"x-ms-blob-type": "BlockBlob"}


async def test_google_signs_one_write_of_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service account's key signs a URL of this object for a minute, without a call to Google."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {"private_key": key.decode(), "private_key_id": "1", "client_email": "clew@example.com"}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    signed = await sign(Store.from_url("gs://bucket/prefix"))
    host, path, query = read_url(signed.url)
    assert (host, path, signed.headers) == ("storage.googleapis.com", f"/bucket/prefix/{PATH}", {})
    assert (query["X-Goog-Expires"], query["X-Goog-SignedHeaders"]) == ("60", "host")
    assert query["X-Goog-Credential"].startswith("clew@example.com/")


async def test_a_store_that_cannot_sign_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder and memory sign nothing, and neither does a bucket whose address would give a password away."""
    for name, value in make_s3_env("https://user:pa55word@s3.example").items():
        monkeypatch.setenv(name, value)
    for url in ((tmp_path / "store").as_uri(), "memory://", "s3://bucket/prefix"):
        assert await Store.from_url(url).sign_put(PATH, MINUTE) is None


async def test_a_signed_url_writes_the_object_that_the_store_reads(s3_env: str) -> None:
    """Bytes that are sent to the URL are the object, also below a prefix."""
    store = Store.from_url(f"s3://clew/{uuid.uuid4().hex}/a prefix")
    signed = await sign(store)
    assert urlsplit(signed.url).netloc == urlsplit(s3_env).netloc
    async with httpx.AsyncClient() as browser:
        answer = await browser.put(signed.url, content=b"from a browser", headers=signed.headers)
    assert answer.status_code == 200
    assert await store.get_foreign(PATH, 100) == b"from a browser"


class Counting(Bucket):
    """A bucket that counts the bytes which are read from it."""

    read = 0

    async def get(self, path: str) -> bytes:
        data = await super().get(path)
        self.read += len(data)
        return data

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        data = await super().get_range(path, start, length)
        self.read += len(data)
        return data


async def test_no_more_is_read_of_what_others_wrote_than_is_allowed() -> None:
    """An object that is larger is refused by its size: not a byte of it is read."""
    objects = Counting(Store.from_url("memory://")._objects._objects)  # type: ignore[attr-defined]
    store = Store(objects)
    await store.put(PATH, bytes(1001))
    with pytest.raises(TooLarge):
        await store.get_foreign(PATH, 1000)
    assert objects.read == 0
    assert len(await store.get_foreign(PATH, 1001)) == 1001
    with pytest.raises(ObjectMissing):
        await store.get_foreign(f"{PATH}2", 1000)


async def test_what_others_wrote_must_be_encrypted_where_objects_are() -> None:
    """Plain bytes are refused, also in a migration that accepts plain objects; so are another name and key."""
    for encryption in (make_encryption("k1"), make_encryption("k1", accepts_plain=True)):
        backend = Store.from_url("memory://")._objects
        store, name = Store(backend, sealer=encryption.sealer), PATH.partition("/")[2]
        for data, refusal in (
            (b"plain", Unsealed),
            (b"", Unsealed),
            (encryption.sealer.seal(b"secret", "another name"), Changed),
            (make_encryption("k2").sealer.seal(b"secret", name), UnknownKey),
            (encryption.sealer.seal(bytes(101), name), TooLarge),
        ):
            await backend.put(PATH, data)
            with pytest.raises(refusal):
                await store.get_foreign(PATH, 100)
        await backend.put(PATH, encryption.sealer.seal(b"secret", name))
        assert await store.get_foreign(PATH, 100) == b"secret"


async def test_what_others_wrote_with_a_codec_of_ones_own_is_read() -> None:
    """A codec of one's own encrypts uploads as it encrypts the archive."""
    sealer = Encryption(own_codec=Reversing()).sealer
    backend = Store.from_url("memory://")._objects
    await backend.put(PATH, sealer.seal(b"secret", PATH.partition("/")[2]))
    assert await Store(backend, sealer=sealer).get_foreign(PATH, 100) == b"secret"


async def test_what_is_staged_is_no_object_of_the_archive() -> None:
    """It is not listed with the archive's objects, and is deleted with its session alone."""
    store = Store.from_url("memory://")
    archive = Archive(store, "n")
    for session_id in ("a", "ab"):
        await archive.put_ticket(session_id, "upload", b"{}")
        await store.put(f"n/staged/s-{session_id}/upload", b"bytes")
    assert [path async for path in archive.list_paths()] == []
    await archive.delete("a")
    assert sorted([path async for path in store.list("n/staged")]) == [
        "n/staged/s-ab/upload",
        "n/staged/s-ab/upload.json",
    ]


class Leased(Store):
    """A store in which others hold what is staged, as a lease in Azure does."""

    async def delete(self, path: str) -> None:
        if "/staged/" in path:
            raise StoreUnavailable(path, "there is a lease on the blob")
        await super().delete(path)


async def test_an_object_that_a_caller_holds_does_not_keep_a_session() -> None:
    """A staged object that cannot be deleted does not hinder the deletion of its session."""
    store = Leased(Store.from_url("memory://")._objects)
    archive = Archive(store, "n")
    await begin_archive(archive, "a", make_entries(0, 3))
    await store.put("n/staged/s-a/upload", b"bytes")
    await archive.delete("a")
    assert await list_objects(store, "n") == {"n/staged/s-a/upload"}


async def test_a_store_that_sends_more_than_was_asked_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's store unpacks an object that was uploaded as gzip and ignores the range: nothing of that is taken."""
    sent = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        head = await reader.readuntil(b"\r\n\r\n")
        size = 10 if head.startswith(b"HEAD") else 10**10
        writer.write(b"HTTP/1.1 200 OK\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\netag: 1\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % size)
        with suppress(ConnectionError):
            while not head.startswith(b"HEAD"):
                writer.write(bytes(65_536))
                await writer.drain()
                sent += 65_536
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for name, value in make_s3_env(f"http://127.0.0.1:{port}").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StoreUnavailable):
            await Store.from_url("s3://bucket").get_foreign(PATH, 100)
    assert sent < 32 * 2**20
