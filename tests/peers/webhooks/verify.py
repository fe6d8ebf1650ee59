"""Verify a notice: the secret, the id, the time and the signatures of its headers, and the file with its body."""

import sys
from pathlib import Path

import standardwebhooks

secret, notice_id, timestamp, signature, body = sys.argv[1:]
headers = {"webhook-id": notice_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
try:
    standardwebhooks.Webhook(secret).verify(Path(body).read_bytes(), headers)
except standardwebhooks.WebhookVerificationError as error:
    print(f"refused: {error}")  # noqa: T201 - it is a program
    sys.exit(3)
