"""The environment of a round's processes: their settings, their models, and the way to their store."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

from clew_activities.archive import Store
from clew_workflows.encryption.cipher import KEYS_VARIABLE
from clew_workflows.encryption.sealing import KeySealer
from tests.chaos.bounds import PROVIDER_KEY
from tests.chaos.keys import FIRST_KEYS, Keys
from tests.chaos.model import FIRST, SECOND, SPARE
from tests.chaos.receiver import WEBHOOK_ENV
from tests.chaos.store import STORE
from tests.chaos.tools import EFFECTS
from tests.support.encrypted import write_keys

EFFECTS_FILE = "effects.jsonl"
THRESHOLDS = {"EVENTS": "150", "BYTES": "400000", "UPDATES": "25", "SIGNALS": "30"}


def make_env(folder: Path, provider: str, spare: str, *, encrypts: bool) -> dict[str, str]:
    """Make the environment of the workers.

    Args:
        folder: The folder of the round.
        provider: Host and port of the faults before the model.
        spare: The URL of the spare model.
        encrypts: Whether all processes encrypt.
    """
    thresholds = {f"CLEW_ROLLOVER_{name}": value for name, value in THRESHOLDS.items()}
    return {
        **thresholds,
        "CLEW_STORE": STORE,
        "CLEW_PROVIDER_CHAOS_BASE_URL": f"http://{provider}/v1",
        "CLEW_PROVIDER_CHAOS_API_KEY": PROVIDER_KEY,
        "CLEW_CHECKPOINT_KEYS": f"chaos:{base64.b64encode(b'k' * 32).decode()}",
        "CLEW_PROVIDER_SPARE_BASE_URL": spare,
        "CLEW_MODELS": str(_write_models(folder)),
        "CLEW_HOOKS": "tests.chaos.hooks",
        "CLEW_AGENTS": "tests.chaos.tools",
        "CLEW_MODEL_CALLS": "50",
        **WEBHOOK_ENV,
        KEYS_VARIABLE: write_keys(*FIRST_KEYS) if encrypts else "",
        EFFECTS: str(folder / EFFECTS_FILE),
    }


def _write_models(folder: Path) -> Path:
    """Write what the workers know of the models."""
    file = folder / "models.json"
    file.write_text(json.dumps({model: {"window": 16_000, "takes": ["image"]} for model in (FIRST, SECOND, SPARE)}))
    return file


def open_store(env: Mapping[str, str], keys: Keys) -> Store:
    """Open the bucket that the variables name: its server, or the faults before it."""
    with patch.dict(os.environ, env):
        return Store.from_url(STORE, sealer=KeySealer(keys))
