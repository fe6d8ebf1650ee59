"""A corpus: the files that one version of Clew has written, compressed into one file."""

from __future__ import annotations

import io
import json
import tarfile
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from obstore.store import MemoryStore
from temporalio.client import WorkflowHistory

from clew_activities.archive import Archive, Store
from clew_activities.archive.backends import Bucket
from clew_activities.checkpoint_signing import Keys
from clew_audit.exports import read_export
from clew_audit.histories import SavedHistories
from clew_workflows.encryption import NO_ENCRYPTION, Encryption, EncryptionKeys, Sealer
from clew_workflows.thread.entries import Entry

FOLDER = Path(__file__).parents[1] / "released"
NEXT = "next"
"""The name of the corpus of the version that is not released yet."""
SUFFIX = ".tar.xz"
NAMESPACE = "default"
SEALED = "results-1"
"""The session that is recorded with encryption, too."""


@dataclass(frozen=True)
class Corpus:
    """The recorded files of a version, by their paths.

        corpus.json                 the digests of the threads, the shapes of the formats, a checkpoint, all keys
        histories/<session>.jsonl   what `clew audit --save` writes
        exports/<session>.jsonl     what `clew export` writes
        store/…                     the archive
        sealed/export.jsonl         the export of `SEALED`, encrypted
        sealed/payload              a payload of its workflow, encrypted: the text `SEALED`
        sealed/store/…              its archive, encrypted

    Attributes:
        name: The version, or `next`.
        files: The contents.
    """

    name: str
    files: Mapping[str, bytes]

    @classmethod
    def read(cls, name: str) -> Corpus:
        """Read a corpus from its file."""
        with tarfile.open(FOLDER / f"{name}{SUFFIX}") as tar:
            members = [(member.name, tar.extractfile(member)) for member in tar if member.isfile()]
            return cls(name, {path: file.read() for path, file in members if file})

    def write(self) -> None:
        """Write the corpus to its file. Equal contents give equal bytes."""
        FOLDER.mkdir(exist_ok=True)
        with tarfile.open(FOLDER / f"{self.name}{SUFFIX}", "w:xz", preset=9) as tar:
            for path in sorted(self.files):
                info = tarfile.TarInfo(path)
                info.size = len(self.files[path])
                tar.addfile(info, io.BytesIO(self.files[path]))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of `corpus.json`."""
        manifest: dict[str, Any] = json.loads(self.files["corpus.json"])
        return manifest

    @property
    def threads(self) -> Mapping[str, str]:
        """The digest of the thread of each workflow run."""
        threads: Mapping[str, str] = self.manifest["threads"]
        return threads

    @cached_property
    def histories(self) -> list[WorkflowHistory]:
        """The histories of all workflow runs. Several of one session are numbered."""
        histories: list[WorkflowHistory] = []
        for session_id in self.sessions:
            lines = self.files[f"histories/{session_id}.jsonl"].splitlines()[1:-1]
            runs = [WorkflowHistory.from_json(session_id, json.loads(line)["history"]) for line in lines]
            histories += name_runs(session_id, runs)
        return histories

    def find_history(self, name: str) -> WorkflowHistory:
        """Find the history of a workflow run by its name in `threads`."""
        (found,) = (history for history in self.histories if history.workflow_id == name)
        return found

    @property
    def sessions(self) -> list[str]:
        """The sessions whose histories were recorded."""
        return sorted(path[10:-6] for path in self.files if path.startswith("histories/"))

    @property
    def exported(self) -> list[str]:
        """The sessions that were exported."""
        return sorted(path[8:-6] for path in self.files if path.startswith("exports/"))

    @property
    def checkpoint(self) -> tuple[str, Keys]:
        """A checkpoint, and the keys that verify it."""
        recorded = self.manifest["checkpoint"]
        return recorded["token"], Keys({kid: b64decode(key) for kid, key in recorded["keys"].items()})

    def open_histories(self, session_id: str) -> SavedHistories:
        """Open the histories of a session as a saved file."""
        return SavedHistories(io.BytesIO(self.files[f"histories/{session_id}.jsonl"]))

    def read_export(self, session_id: str) -> list[Entry]:
        """Read the entries of an exported session."""
        return read_export(io.BytesIO(self.files[f"exports/{session_id}.jsonl"]))

    async def open_archive(self) -> Archive:
        """Open the archive, in a store of its own."""
        return await self._open_store("store/", NO_ENCRYPTION)

    async def open_sealed_archive(self) -> Archive:
        """Open the encrypted archive, in a store of its own."""
        return await self._open_store("sealed/store/", self.encryption.sealer)

    async def _open_store(self, prefix: str, sealer: Sealer) -> Archive:
        objects = Bucket(MemoryStore())
        for path, data in self.files.items():
            if path.startswith(prefix):
                await objects.put(path.removeprefix(prefix), data)
        return Archive(Store(objects, sealer=sealer), NAMESPACE)

    @cached_property
    def encryption(self) -> Encryption:
        """The keys of what is encrypted."""
        recorded = self.manifest["encryption"]
        return Encryption(EncryptionKeys({kid: b64decode(key) for kid, key in recorded.items()}))


def name_runs(session_id: str, runs: list[WorkflowHistory]) -> list[WorkflowHistory]:
    """Name the workflow runs of a session: by the session alone, or with a number."""
    if len(runs) == 1:
        return runs
    return [WorkflowHistory(f"{session_id}.{number}", run.events) for number, run in enumerate(runs, 1)]


@cache
def read_corpus(name: str) -> Corpus:
    """Read a corpus once a process."""
    return Corpus.read(name)


def list_corpora() -> list[str]:
    """List the names of all corpora: those of the released versions, and the next one's."""
    return sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}"))
