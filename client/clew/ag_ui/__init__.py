"""Sessions for clients of AG-UI, the protocol of existing chat components. It needs the extra `ag-ui`.

`run_agent` serves one input of such a client. `messages` converts threads to the protocol's messages, `mapping` makes
the protocol's events, purely, from those of a request.
"""

try:
    import ag_ui.core  # noqa: F401 - says now what is missing
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise ImportError("clew.ag_ui needs the extra `ag-ui`: pip install 'clew[ag-ui]'") from error

from clew.ag_ui.running import run_agent

__all__ = ["run_agent"]
