"""The servers of all dialects, and one worker that a user has configured for them."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import client, worker, workflow

from clew import Clew, File, Image, ToolContext, tool
from clew.content import Media
from clew.local import TemporalServer
from clew_activities.tools.mcp.mcp_settings import McpSettings, ProcessSettings
from clew_activities.tools.registry import load_tools
from tests.providers import mcp_tools
from tests.providers.dialects import DIALECTS
from tests.providers.strict_server import Dialect, StrictServer, run_strict_servers
from tests.support import toolbox
from tests.support.media import make_pdf, make_png
from tests.support.stack import serve

KEY = "key-of-the-tests"


@dataclass
class Matrix:
    """A client of the worker, the servers by the dialects' names, and the variables that a user sets for them."""

    clew: Clew
    servers: dict[str, StrictServer]
    environ: dict[str, str]


def list_variables(provider: str) -> tuple[str, str]:
    """List the variables of a provider's address and of its key."""
    name = provider.upper()
    prefix = name if name in ("OPENAI", "ANTHROPIC", "GOOGLE", "SECOND_GOOGLE") else f"CLEW_PROVIDER_{name}"
    return f"{prefix}_BASE_URL", f"{prefix}_API_KEY"


def make_environ(dialect: Dialect, url: str) -> dict[str, str]:
    """Make the variables that a user sets for a server."""
    if dialect.configure:
        return {**dialect.configure(url), **dialect.environ}
    address, key = list_variables(dialect.provider)
    return {address: url, key: KEY, **dialect.environ}


class PatientOutbound(worker.WorkflowOutboundInterceptor):
    """Gives activities a minute between two heartbeats."""

    def start_activity(self, input: worker.StartActivityInput) -> workflow.ActivityHandle[Any]:  # noqa: A002
        """Start an activity."""
        if input.heartbeat_timeout:
            input.heartbeat_timeout = timedelta(minutes=1)
        return super().start_activity(input)


class PatientInbound(worker.WorkflowInboundInterceptor):
    """Puts the patience before what a workflow starts."""

    def init(self, outbound: worker.WorkflowOutboundInterceptor) -> None:
        """Begin a run of a workflow."""
        super().init(PatientOutbound(outbound))


class Patience(client.Interceptor, worker.Interceptor):
    """On a machine that stands still for seconds no call is given up and made twice: its script would be spoiled."""

    def workflow_interceptor_class(
        self,
        input: worker.WorkflowInterceptorClassInput,  # noqa: A002
    ) -> type[worker.WorkflowInboundInterceptor]:
        """Return the class of the workflows' interceptor."""
        return PatientInbound


@asynccontextmanager
async def run_matrix(server: TemporalServer) -> AsyncIterator[Matrix]:
    """Run the servers of all dialects, and a worker."""
    async with run_strict_servers(DIALECTS) as servers:
        environ: dict[str, str] = {}
        for one in servers.values():
            environ |= make_environ(one.dialect, one.url)
        connection = (await Clew.connect(server.address)).temporal
        config = connection.config()
        config["interceptors"] = [*config["interceptors"], Patience()]
        clew = Clew(client.Client(**config), f"matrix-{uuid.uuid4().hex}")
        program = str(Path(mcp_tools.__file__))
        mcp = {name: ProcessSettings(command=sys.executable, args=(program, name)) for name in ("hard", "many")}
        tools = load_tools([toolbox.__name__, __name__])
        async with serve(clew, environ, tools=tools, mcp=McpSettings(mcp)):
            yield Matrix(clew, servers, environ)


runs: dict[str, list[str]] = {}
"""The tools that have run, by session."""


@tool
def erase(context: ToolContext, scope: str = "everything") -> str:
    """Erases files. Without a scope it erases everything."""
    runs.setdefault(context.session_id, []).append(f"erase {scope}")
    return f"erased {scope}"


@tool(name="3d_render")
def render(angle: int) -> str:
    """Renders a scene from an angle."""
    return f"rendered at {angle}"


REPORT = "The report."
"""The text of the tool `show_report`, which an image and a PDF file follow."""


def list_report() -> list[Media]:
    """List the image and the PDF file that the tool `show_report` answers."""
    return [Image.from_bytes(make_png(31), name="curve.png"), File.from_bytes(make_pdf(3), name="three pages.pdf")]


@tool
def show_report() -> list[Any]:
    """Shows the report."""
    return [REPORT, *list_report()]
