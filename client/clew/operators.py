"""The door to what operators do with sessions from outside, where the extra `worker` is installed.

It replays histories with the workflow's own code, and reads the archive's store.

Raises:
    ImportError: when it is imported without the extra.
"""

try:
    from clew_activities.archive import Archive, store_from_env
    from clew_activities.prices import prices_of
    from clew_audit.auditing import Report, audit_file, audit_session
    from clew_audit.exchange import export_session, exported, import_session
    from clew_audit.histories import Saved
    from clew_audit.recovery import recover
    from clew_audit.verifying import verify
except ModuleNotFoundError as error:
    message = f"this needs the worker's libraries ({error.name} is missing): pip install 'clew[worker]'"
    raise ImportError(message, name=__name__) from error

__all__ = [
    "Archive",
    "Report",
    "Saved",
    "audit_file",
    "audit_session",
    "export_session",
    "exported",
    "import_session",
    "prices_of",
    "recover",
    "store_from_env",
    "verify",
]
