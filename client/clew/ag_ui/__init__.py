"""Sessions for clients of AG-UI, the protocol of existing chat components. It needs the extra `ag-ui`.

`running` serves the inputs of such a client. `mapping` makes the protocol's messages of threads, and its events of
those of a request, purely; `ag_ui_parts` converts images, recordings and files.
"""

from clew_workflows.contract.extras import name_install

try:
    import ag_ui.core  # noqa: F401 - says now what is missing
except ImportError as error:  # pragma: no cover - tested in a process of its own
    raise ImportError(f"clew.ag_ui needs the extra `ag-ui`: {name_install('ag-ui')}") from error

from clew.ag_ui.running import run_agent

__all__ = ["run_agent"]
