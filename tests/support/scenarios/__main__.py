"""Records the corpus of the next version: `python -m tests.support.scenarios`, or `make record`.

It runs every scenario on a real server, and takes about a minute.
"""

from __future__ import annotations

import asyncio
import io
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.converter import WorkflowSerializationContext

from clew import Clew
from clew.local import scripted_model, temporal_server
from clew_activities.archive import Archive, Store
from clew_activities.checkpoint_signing import Keys
from clew_activities.providers import load_providers, make_http_client
from clew_activities.tools.registry import load_tools
from clew_activities.worker import WorkerSettings, make_worker
from clew_audit.exports import export_session
from clew_audit.histories import Run, ServerHistories, save_runs
from clew_audit.replay import replay_run
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.encryption import EncryptionKeys
from clew_workflows.protocol import RolloverThresholds
from tests.support.corpus import NAMESPACE, NEXT, SEALED, Corpus, name_runs
from tests.support.encrypted import make_encryption
from tests.support.scenarios import DEPLOYMENTS, REDEPLOYED, SCENARIOS, START, STARTS, reply_as_scenario
from tests.support.shapes import describe_shapes
from tests.support.stack import KEYS

ROOT = Path(__file__).parents[3]
OFTEN = RolloverThresholds(events=100)
CHECKPOINT_OF = "conversation-1"
TEN_YEARS = 3650 * 86_400
ENCRYPTION = make_encryption("k1")


class PortableHistories(ServerHistories):
    """Histories without this machine's folders, which stack traces name."""

    async def read_runs(self) -> AsyncIterator[Run]:
        async for run in super().read_runs():
            assert run.history
            text = run.history.to_json().replace(f"{ROOT}/", "")
            yield replace(run, history=WorkflowHistory.from_json(self.session_id, text))


async def record() -> Corpus:
    """Run the scenarios, and record what they leave behind."""
    load_encodings()
    files: dict[str, bytes] = {}
    manifest: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        async with (
            temporal_server(ui=False) as server,
            scripted_model(reply_as_scenario) as model,
            make_http_client() as http,
        ):
            clew = await Clew.connect(server.address, identity="recorder")
            store = Store.from_url(Path(folder).as_uri())
            for parts, deployed in zip((SCENARIOS, REDEPLOYED), DEPLOYMENTS, strict=True):
                async with make_worker(
                    clew.temporal,
                    WorkerSettings(
                        task_queue="clew",
                        providers=load_providers({"CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url}),
                        tools=load_tools(["tests.support.toolbox"]),
                        agents=deployed,
                        store=store,
                        keys=KEYS,
                        thresholds=OFTEN,
                    ),
                    http,
                ):
                    for name, scenario in parts.items():
                        await scenario(await clew.open(name, **STARTS.get(name, START)))
                    if parts is REDEPLOYED:
                        archive = Archive(store, NAMESPACE)
                        files, manifest = await read_sessions(clew, archive)
                        files |= await encrypt_session(server.address, archive)
        files |= read_folder(Path(folder))
        files |= {f"sealed/{path}": data for path, data in (await encrypt_archive(files)).items()}
    files["corpus.json"] = json.dumps(manifest, sort_keys=True).encode()
    return Corpus(NEXT, files)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read the files of a store."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {f"store/{path.relative_to(folder)}": path.read_bytes() for path in paths}


async def encrypt_session(address: str, archive: Archive) -> dict[str, bytes]:
    """Export a session with encryption, and encrypt a payload of its workflow."""
    client = (await Clew.connect(address, encryption=ENCRYPTION)).temporal
    await export_session(client, archive, SEALED, file := io.BytesIO())
    context = WorkflowSerializationContext(NAMESPACE, SEALED)
    (payload,) = await client.data_converter.with_context(context).encode([SEALED])
    return {"sealed/export.jsonl": file.getvalue(), "sealed/payload": payload.SerializeToString()}


async def encrypt_archive(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Write the archive of a session with encryption."""
    with TemporaryDirectory() as folder:
        store = Store.from_url(Path(folder).as_uri(), sealer=ENCRYPTION.sealer)
        for path, data in files.items():
            if path.startswith("store/") and f"/s-{SEALED}" in path:
                await store.put(path.removeprefix("store/"), data)
        return read_folder(Path(folder))


async def read_sessions(clew: Clew, archive: Archive) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Read the sessions from the server and the archive. Answers the files, and what `corpus.json` holds."""
    files: dict[str, bytes] = {}
    threads: dict[str, str] = {}
    token = await clew.session(CHECKPOINT_OF).checkpoint(expires_seconds=TEN_YEARS)
    for name in SCENARIOS:
        children = [child.id async for child in clew.temporal.list_workflows(f'WorkflowId STARTS_WITH "{name}."')]
        await export_session(clew.temporal, archive, name, file := io.BytesIO())
        files[f"exports/{name}.jsonl"] = file.getvalue()
        for session_id in (name, *children):
            saved, source = io.BytesIO(), PortableHistories(clew.temporal, session_id)
            runs = [run.history async for run in save_runs(saved, source) if run.history]
            files[f"histories/{session_id}.jsonl"] = saved.getvalue()
            for history in name_runs(session_id, runs):
                session = (await replay_run(history)).session
                assert session
                rows = [entry.as_dict() for entry in session.thread]
                threads[history.workflow_id] = compute_digest(rows)
    manifest = {
        "threads": threads,
        "shapes": describe_shapes(),
        "checkpoint": {"token": token, "keys": _write_keys(KEYS)},
        "encryption": _write_keys(ENCRYPTION.keys),
    }
    return files, manifest


def _write_keys(keys: Keys | EncryptionKeys) -> dict[str, str]:
    return {kid: b64encode(key).decode() for kid, key in keys.by_kid.items()}


if __name__ == "__main__":
    asyncio.run(record()).write()
