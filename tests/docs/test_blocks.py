"""Every block of code on the pages runs in a test. A new block needs a test that runs it, and is counted here."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate import DOCS
from tests.docs.test_names import ALL
from tests.support.page_code import list_blocks

LANGUAGES = ("dockerfile", "go", "js", "json", "jsx", "python", "toml", "ts", "tsx", "typescript", "yaml")
"""The languages of blocks that run, or that a program reads. Commands have checks of their own, in `test_calls`."""
TESTED: dict[str, tuple[int, *tuple[str, ...]]] = {
    "README.md": (2, "docs/test_readme.py"),
    "agents.md": (5, "docs/test_agents_page.py"),
    "approvals.md": (3, "docs/test_approvals_page.py"),
    "client.md": (12, "docs/test_client_page.py"),
    "configuration.md": (1, "docs/test_operate_pages.py"),
    "content.md": (5, "docs/test_content_page.py"),
    "context.md": (4, "docs/test_context_page.py"),
    "costs.md": (4, "docs/test_costs_page.py"),
    "data.md": (1, "docs/test_operate_pages.py"),
    "deployment.md": (2, "deploy/test_image.py"),
    "extending.md": (2, "docs/test_extending_page.py", "contract/test_own_encoding.py"),
    "first-hour.md": (6, "docs/test_first_hour.py"),
    "guardrails.md": (3, "docs/test_guardrails_page.py"),
    "how-it-works.md": (1, "docs/test_how_it_works_page.py"),
    "looking.md": (1, "docs/test_looking_page.py"),
    "mcp-server.md": (1, "docs/test_mcp_server_page.py"),
    "mcp.md": (2, "docs/test_mcp_page.py"),
    "models.md": (7, "docs/test_models_page.py"),
    "moving.md": (6, "docs/test_moving_page.py"),
    "operations.md": (1, "docs/test_operate_pages.py"),
    "queues.md": (1, "docs/test_operate_pages.py"),
    "requests.md": (1, "docs/test_requests_page.py"),
    "serve-openai.md": (4, "docs/test_serve_openai_page.py"),
    "serve.md": (2, "docs/test_serve_page.py"),
    "sessions.md": (1, "docs/test_sessions_page.py"),
    "testing.md": (7, "docs/test_testing_page.py", "clew/testing/test_plugin.py"),
    "tools.md": (14, "docs/test_tools_page.py", "docs/test_go.py"),
    "typescript.md": (4, "clew/serve/test_typescript_client.py", "docs/test_go.py"),
    "upgrading.md": (1, "docs/test_operate_pages.py"),
    "web.md": (5, "docs/test_front_end_page.py", "clew/serve/test_typescript_client.py"),
    "webhooks.md": (7, "docs/test_webhooks_page.py"),
}
"""The pages with such blocks: their number, and the modules whose tests run them."""


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)
def test_every_block_of_a_page_has_its_test(page: Path) -> None:
    """A page has as many blocks as were counted when their tests were written, and these tests name the page."""
    number, *modules = TESTED.get(page.name, (0,))
    assert sum(len(list_blocks(str(page), language)) for language in LANGUAGES) == number
    for module in modules:
        assert page.name in (DOCS.parent / "tests" / module).read_text(encoding="utf-8")
