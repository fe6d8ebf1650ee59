"""What callers are told of errors: one table of words for every face, with statuses and what tenants read.

Operators read each error as it is. It may name agents and providers of others, variables, commands, files and hosts,
so a tenant reads the reason itself only where it is about its own request, and else the text of this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from clew.session.events import Change, EntryCommitted, Retrying, SubagentWaiting
from clew_workflows.contract.errors import ClewError, Refusal, RequestFailed
from clew_workflows.contract.outcomes import OutcomeError
from clew_workflows.contract.payloads import ToolMessage
from clew_workflows.thread.entries import Entry

ALL_TENANTS = "*"
"""The tenant of an operator's key, which reaches all sessions of the namespace by the ids that Temporal knows."""
AWAY = "the service cannot do it at present: repeat it later"
FAILED = "the service has failed: its operator can find out why"

WORDS: Mapping[str, tuple[int, bool, str]] = {
    # The word: its HTTP status; whether its reason is about the request itself, so that it is shown; and the text in
    # its place.
    # The session's refusals.
    "already_answered": (409, True, "a result of the tool call has been submitted before"),
    "already_resolved": (409, True, "the tool call was already approved or denied"),
    "archive_damaged": (500, False, "the session's archive is damaged: its operator can repair it"),
    "archive_unavailable": (503, False, AWAY),
    "archived": (409, True, "the answer needs entries that are in the archive alone"),
    "busy": (409, True, "the session serves another request"),
    "call_ended": (409, True, "the tool call waits for no result any more"),
    "checkpoint_unavailable": (501, False, "the service makes no checkpoints"),
    "closed": (409, True, "the session has ended or hibernates: open it to continue it"),
    "content_mismatch": (400, True, "the bytes are not what their description says"),
    "empty_content": (400, True, "the content is empty"),
    "encoding_unavailable": (500, False, FAILED),
    "idle": (409, True, "no request is active or waits"),
    "interrupted": (409, False, "the session was interrupted: its operator can repair it"),
    "invalid_input": (400, True, "the request cannot be served as it is"),
    "invalid_operation": (400, True, "the context operation cannot be applied"),
    "invalid_token_budget": (400, True, "the policy, or the budget of the window, leaves no token for the context"),
    "newer_version": (500, False, FAILED),
    "not_encrypted": (400, False, "the service takes only what is encrypted"),
    "not_found": (404, True, "there is no such thing"),
    "nothing_to_summarize": (409, True, "there are no messages to summarize"),
    "queue_full": (429, True, "too much waits already: repeat it later"),
    "refused": (409, False, FAILED),
    "clew_error": (502, False, FAILED),
    "repeated": (409, True, "the same input came before, and was carried out"),
    "request_failed": (409, False, FAILED),
    "request_reused": (409, True, "the id is that of another input: send this one under its own id"),
    "request_mismatch": (409, True, "another request than the named one is running"),
    "search_attributes_missing": (501, False, "the service has no such lists"),
    "server_unreachable": (503, False, AWAY),
    "starting": (503, False, "the session is starting: repeat it"),
    "thread_mismatch": (409, False, "the session and its archive do not belong together: its operator can repair it"),
    "token_expired": (400, True, "the checkpoint has expired"),
    "token_foreign": (400, True, "the checkpoint is of another place"),
    "token_key": (400, False, "the checkpoint was signed with a key that the service does not have"),
    "token_legacy": (400, True, "checkpoints of a thread are not taken"),
    "token_malformed": (400, True, "the text is no complete checkpoint"),
    "token_mismatch": (409, False, "the agent has changed since the checkpoint was made"),
    "token_signature": (400, True, "the signature does not match the checkpoint"),
    "token_version": (400, True, "the checkpoint has another version"),
    "too_large": (413, True, "the input exceeds its limit"),
    "unknown_approval": (404, True, "no approval is pending for that tool call"),
    "unknown_blob": (404, True, "the session has no such blob: store it first"),
    "unknown_key": (500, False, FAILED),
    "unknown_lane": (404, True, "the thread has no lane of that name"),
    "unknown_request": (404, True, "the session has no such request"),
    "unknown_tool": (400, True, "the session has no such tool"),
    "unknown_tool_call": (404, True, "no external tool call of that id waits for a result"),
    "unknown_upload": (404, True, "the session has no such upload"),
    "unsupported_content": (400, True, "no model can read a file of that type"),
    "unsupported_strategy": (400, True, "the strategy is not served"),
    "upload_expired": (410, True, "the upload was not finished in its time: start another one"),
    "upload_unavailable": (501, False, "the service takes no uploads to its store: store the blob with a request"),
    "worker_unavailable": (503, False, "no worker serves the session at present: repeat it later, with the same id"),
    # How requests and summaries fail.
    "item_refused": (500, False, "the model's provider refuses a part of the context, which was left out"),
    "bad_request": (400, False, "the model's provider refuses the request as invalid"),
    "cancelled": (409, True, "it was cancelled"),
    "content_refused": (400, False, "the model's provider refuses the content"),
    "context_damaged": (500, False, FAILED),
    "context_length_exceeded": (400, False, "the conversation is too long for the model"),
    "context_overflow": (400, True, "what the context must have does not fit into it"),
    "cost_limit": (500, True, "the session's limit of costs is used up"),
    "empty_reply": (500, False, "the model has sent an empty reply"),
    "hook_failed": (500, False, FAILED),
    "insufficient_quota": (500, False, "the model cannot be called at present"),
    "internal": (500, False, FAILED),
    "invalid_output": (500, True, "the answer does not meet the schema"),
    "max_output_tokens": (500, True, "the replies ended within tool calls: they reached the limit of their length"),
    "mcp_unavailable": (500, False, "a tool of the agent cannot be reached at present: repeat the message later"),
    "overloaded": (500, False, "the model is overloaded: repeat the message later"),
    "provider_unavailable": (500, False, "the model cannot be reached at present: repeat the message later"),
    "rate_limited": (429, False, "the model's rate limit is reached: repeat the message later"),
    "refused_by_hook": (400, True, "the message or the answer is refused"),
    "timeout": (500, False, "the request has timed out"),
    "token_limit": (500, True, "the session's limit of tokens is used up"),
    "truncated_stream": (500, False, "the model's reply ended too early"),
    "unauthorized": (500, False, "the model cannot be called at present"),
    "unknown_agent": (500, False, "there is no such agent"),
    "unknown_model": (500, False, "there is no such model"),
    "unknown_price": (500, False, "the price of the model is not known, so a limit of costs cannot be kept"),
    "unusable_summary": (500, False, "the model wrote no usable summary"),
    "worker_lost": (500, False, FAILED),
}
"""What HTTP and tenants have for each word of the contract."""

_OPAQUE = frozenset({"arguments", "content", "metadata", "meta", "tools", "external_tools", "parameters"})
"""The fields of answers that hold what callers, models and tools have written."""
PROBLEM = "problem"
"""The field of a tool's result that tells operators what is wrong with their setup."""
_INSIDE = re.compile(
    r"\bworkers?\b|\bCLEW_|`clew |(?<![\w-])--[a-z]|\b[A-Z][A-Z0-9]*_[A-Z0-9_]*(?:KEY|KEYS|URL|TOKEN|REGION)\b"
    r"|\btask queue|\bTemporal\b|\bnamespace\b|[a-z]://|(?<![\w.])/(?:home|srv|etc|usr|var|tmp|opt|root|data|mnt)/"
)
"""Words of operators. A reason with one of them is not shown, also of a later error that nobody has thought of."""


@dataclass(frozen=True)
class Reader:
    """The reader of errors and of threads.

    Attributes:
        prefix: What the workflow ids of its sessions begin with, and no name that it knows.
        is_operator: It reads each error as it is.
    """

    prefix: str = ""
    is_operator: bool = False

    def name_sessions(self, text: str) -> str:
        """Name the sessions in a text as the reader does: without the prefix."""
        if not self.prefix:
            return text
        return re.sub(rf"(?<![A-Za-z0-9_.:-]){re.escape(self.prefix)}(?=[A-Za-z0-9_.-])", "", text)

    def tell(self, word: str, reason: str) -> str:
        """Tell why something has failed: the reason, or the text in its place."""
        if self.is_operator:
            return self.name_sessions(reason)
        _, is_shown, text = WORDS.get(word, (500, False, FAILED))
        return self.name_sessions(reason) if is_shown and not _INSIDE.search(reason) else text

    def tell_error(self, error: ClewError, word: str) -> str:
        """Tell an error, whose word it is."""
        if isinstance(error, RequestFailed) and error.outcome.error is not None:
            failure = error.outcome.error
            return self.tell(failure.type, str(error) if self.is_operator else failure.message)
        if type(error) is Refusal:
            # A word that the contract has for failures, and not for refusals, stands before the reason.
            known, _, reason = str(error).partition(": ")
            if reason and known in WORDS:
                return self.tell(known, str(error) if self.is_operator else reason)
        return self.tell(word, str(error))

    def show_error(self, error: OutcomeError | None) -> OutcomeError | None:
        """Show the error of an outcome."""
        return error and error.model_copy(update={"message": self.tell(error.type, error.message)})

    def show(self, value: Any) -> Any:
        """Show a JSON value of the contract: an answer, an entry or an event, with what the reader may read of it."""
        return value if self.is_operator else self._hide(value)

    def show_entry(self, entry: Entry) -> Entry:
        """Show an entry of a thread."""
        if self.is_operator or not _has_inside(entry):
            return entry
        return Entry.from_json(self._hide(entry.as_dict()))

    def show_event(self, event: Change) -> Change:
        """Show an event of a session, or a change."""
        if isinstance(event, EntryCommitted):
            shown = self.show_entry(event.entry)
            return event if shown is event.entry else replace(event, entry=shown)
        if isinstance(event, SubagentWaiting):
            return replace(event, session_id=self.name_sessions(event.session_id))
        if isinstance(event, Retrying):
            return replace(event, message=self.tell(event.error, event.message))
        return event

    def _hide(self, value: Any) -> Any:
        match value:
            case {"kind": "error", "payload": {"type": word, "message": reason} as payload}:
                # Details have the failures of single attempts.
                details = {
                    name: payload["details"][name] for name in ("op_id", "retried") if name in payload["details"]
                }
                payload = payload | {"message": self.tell(word, reason), "details": details}
                return value | {"payload": payload}
            case {"kind": "ai_message", "payload": {"problem": _} as payload}:
                return value | {"payload": {name: part for name, part in payload.items() if name != PROBLEM}}
            case {"kind": "input", "payload": {"reason": reason} as payload}:
                return value | {"payload": payload | {"reason": self.tell("invalid_input", reason)}}
            case {"type": "retrying", "error": word, "message": reason}:
                return value | {"message": self.tell(word, reason)}
            case dict():
                return {name: self._hide_field(name, part) for name, part in value.items()}
            case list() | tuple():
                return [self._hide(part) for part in value]
        return value

    def _hide_field(self, name: str, value: Any) -> Any:
        if name in _OPAQUE:
            return value
        match name, value:
            case "webhooks", list() | tuple():
                # They are the operator's: where its receivers are, and the names of its secrets.
                return []
            case "error", {"type": str(word), "message": str(reason)}:
                return value | {"message": self.tell(word, reason)}
        return self._hide(value)


def _has_inside(entry: Entry) -> bool:
    """Whether an entry may tell of the operator's inside."""
    if entry.kind == "ai_message":
        return isinstance(entry.body, ToolMessage) and entry.body.problem is not None
    return entry.kind in ("config", "error", "input", "run")


TENANT = Reader()
"""A tenant whose sessions' names have no prefix."""


def make_reader(tenant: str, *, is_operator: bool) -> Reader:
    """Make the reader with a key of a tenant."""
    is_everywhere = tenant == ALL_TENANTS
    return Reader("" if is_everywhere else f"{tenant}:", is_operator or is_everywhere)
