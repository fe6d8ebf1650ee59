"""The functions of operators: audit, export, import, recovery, evaluation. They need the extra `worker`.

They replay histories with the workflow's own code, and read the archive's store.

Raises:
    ImportError: The extra is not installed.
"""

from clew_workflows.contract.extras import name_install

try:
    from clew_activities.archive import Archive, open_store
    from clew_activities.http_server import serve_http
    from clew_activities.model.model_table import find_prices, read_own_models
    from clew_activities.user_modules import import_extensions
    from clew_audit.audit import Report, audit_file, audit_session
    from clew_audit.codec_server import CodecServer
    from clew_audit.evaluation import Evaluation, Turn, TurnReply, evaluate_thread, load_evaluation_settings
    from clew_audit.exports import export_session, import_session, read_export, read_exported_blobs
    from clew_audit.histories import SavedHistories
    from clew_audit.recovery import recover
    from clew_audit.verification import rekey_archive, verify_archive
except ModuleNotFoundError as error:
    message = f"this needs the worker's libraries ({error.name} is missing): {name_install('worker')}"
    raise ImportError(message, name=__name__) from error

__all__ = [
    "Archive",
    "CodecServer",
    "Evaluation",
    "Report",
    "SavedHistories",
    "Turn",
    "TurnReply",
    "audit_file",
    "audit_session",
    "evaluate_thread",
    "export_session",
    "find_prices",
    "import_extensions",
    "import_session",
    "load_evaluation_settings",
    "open_store",
    "read_export",
    "read_exported_blobs",
    "read_own_models",
    "recover",
    "rekey_archive",
    "serve_http",
    "verify_archive",
]
