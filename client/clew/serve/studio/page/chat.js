// One session: its conversation as it grows, what waits for a person, and what a person can do.

import { call, follow, makeId, pause, readBytes } from "./api.js";
import { makeAnswer, makeDecision } from "./approvals.js";
import { makeProviderCall, makeSources, makeText, makeThinking, makeToolFold, shorten } from "./conversation.js";
import { makeMarkdown } from "./markdown.js";
import { SHOWN, copy, describeCosts, formatBytes, get, getListedStatus, getText, make, makeButton, makeLink, makeSessionLink, number, percent, setContent, tell, words } from "./view.js";

const MAX_FILES = 10;
const MOST_TITLE = 80;
const OPEN = { working: true, awaiting_approval: true, awaiting_external: true };

const describeProgress = ({ text, fraction }) => (fraction === undefined ? text : `${text} (${percent(fraction)})`);

export class Chat {
  constructor(id, list) {
    this.id = id;
    this.list = list;
    this.path = `sessions/${encodeURIComponent(id)}`;
    this.stop = new AbortController();
    this.tools = new Map();   // The card of each tool call.
    this.subagents = new Map(); // The session and the agent of each call that a subagent works on.
    this.waiting = new Map(); // What was sent and is not in the thread yet, by the id that this page gave it.
    this.reply = null;        // The reply that the model is writing: there is at most one.
    this.requestId = null;
    this.state = "";
    this.hasFailed = false;   // Whether the newest run has failed.
    this.firstText = "";
    this.files = [];
    this.ended = () => {};    // Called when a run has ended.
    this.draw();
  }

  draw() {
    this.badge = make("span", { class: "status" }, "…");
    this.costs = make("span", { class: "note costs" });
    this.cancel = makeButton("Cancel", () => this.act("cancel", { request_id: this.requestId }), { hidden: true });
    this.fork = makeButton("Fork", () => this.forkAt(), { title: "Begin another session with this conversation" });
    this.hibernate = makeButton("Hibernate", () => this.act("hibernate", {}), { title: "Archive it until somebody writes" });
    this.look = makeButton("What the model saw", () => this.toggleSeen(), { "aria-expanded": "false", "aria-controls": "seen", title: "w" });
    this.log = make("div", { class: "log", role: "log", "aria-label": "Conversation", tabIndex: 0 });
    this.text = make("textarea", { id: "message", rows: 1, placeholder: "Message", "aria-label": "Message", dir: "auto" });
    this.picked = make("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files" });
    this.chosen = make("div", { class: "files", hidden: true });
    this.send = make("button", { class: "first" }, "Send");
    this.queue = makeButton("Queue", () => this.submit("queue"), { hidden: true, title: "Answer it after the present request" });
    const attach = makeButton("Attach", () => this.picked.click(), { title: "Files can be dropped and pasted, too" });
    this.composer = make("form", { class: "composer" }, this.chosen, this.text, make("div", { class: "buttons" }, attach, this.picked, this.queue, this.cancel, this.send));
    this.composer.onsubmit = (event) => { event.preventDefault(); this.submit(); };
    this.text.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); }
    };
    this.text.oninput = () => this.fitText();
    this.picked.onchange = () => { this.attach(this.picked.files); this.picked.value = ""; };
    this.title = make("h1", { dir: "auto" }, this.id);
    this.parent = make("span", { class: "note", hidden: true });
    this.more = makeButton("⋯", () => this.more.setAttribute("aria-expanded", String(this.room.classList.toggle("more"))),
      { class: "show-more", "aria-expanded": "false", "aria-label": "Actions" });
    this.room = make("section", { class: "chat", "aria-label": `Session ${this.id}` },
      make("header", { class: "about" },
        make("div", {}, this.title,
          make("div", { class: "row" }, this.badge, this.costs, this.parent,
            make("span", { class: "note id" }, make("code", {}, this.id), makeButton("Copy", () => copy(this.id), { class: "plain", "aria-label": "Copy the session's id" })))),
        this.more,
        make("div", { class: "buttons" }, this.look, this.fork, this.hibernate,
          make("a", { class: "button", href: "#", onclick: (event) => { event.preventDefault(); this.openReport(); } }, "Report"))),
      this.log, this.composer);
    this.room.ondragover = (event) => { event.preventDefault(); this.room.classList.add("dropping"); };
    this.room.ondragleave = () => this.room.classList.remove("dropping");
    this.room.ondrop = (event) => { event.preventDefault(); this.room.classList.remove("dropping"); this.attach(event.dataTransfer.files); };
    this.room.onpaste = (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.attach(event.clipboardData.files);
    };
  }

  async open() {
    get("main").replaceChildren(this.room);
    this.list.changed = () => this.showFacts();
    this.readStatus();
    try {
      const events = follow(`${this.path}/events?from_seq=0`, this.stop.signal, (is) => this.room.classList.toggle("lost", !is));
      for await (const event of events) this.take(event);
    } catch (refusal) {
      if (!this.stop.signal.aborted) this.show(make("p", { class: "note bad", role: "alert" }, refusal.message));
    }
  }

  close() {
    this.stop.abort();
    this.list.changed = () => {};
  }

  async readStatus() {
    try {
      const status = await call("GET", this.path, undefined, { signal: this.stop.signal });
      this.status = status;
      for (const { tool_call_id: call, session_id: id, agent } of status.subagents ?? []) this.linkSubagent(call, id, agent);
      if (status.parent) {
        this.parent.replaceChildren("subagent of ", makeSessionLink(status.parent.session_id));
        this.parent.hidden = false;
      }
      this.publish();
    } catch { /* The events say what is wrong. */ }
  }

  // Tell the list what this session is, and show the same in the header.
  publish() {
    const { usage, subagent_usage: others, config, model } = this.status ?? {};
    const known = { session_id: this.id };
    if (this.state) known.status = getListedStatus(this.state, this.hasFailed);
    if (usage) {
      known.tokens = count(usage) + count(others);
      const costs = [usage.cost_usd, others?.cost_usd].filter((cost) => cost !== undefined && cost !== null);
      if (costs.length) known.cost_usd = costs.reduce((sum, cost) => sum + cost, 0);
    }
    const title = config?.metadata?.title ?? this.firstText;
    if (title) known.title = title.split(/\s+/).filter(Boolean).join(" ").slice(0, MOST_TITLE);
    if (config) Object.assign(known, { agent: config.agent, model });
    // Each piece of a reply asks for this: the list is drawn again for a change only.
    const written = JSON.stringify([known, this.trouble, this.status?.active_context_ref]);
    if (written === this.published) return;
    this.published = written;
    this.list.update(known);
  }

  showFacts() {
    const known = this.list.find(this.id) ?? {};
    const { usage, active_context_ref: lane } = this.status ?? {};
    setContent(this.title, known.title || this.id);
    this.costs.textContent = [known.agent ?? known.model, lane !== "default" && lane, describeCosts(known)].filter(Boolean).join(" · ");
    const cached = usage?.cached_input_tokens ? ` (${number(usage.cached_input_tokens)} cached)` : "";
    this.costs.title = usage ? `${number(usage.input_tokens)} in${cached}, ${number(usage.output_tokens)} out` : "";
    const status = known.status ?? this.state;
    this.badge.textContent = this.trouble || words(status) || "…";
    this.badge.className = `status ${status}`;
  }

  show(element) {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 120;
    if (element) this.log.insertBefore(element, [...this.waiting.values()][0] ?? null);
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  // ---- Events between two entries: for display only. They may be sent again after a reconnection.

  take(event) {
    const { type } = event;
    if (type === "entry") this.takeEntry(event.entry);
    else if (type === "text") this.grow("content", event);
    else if (type === "thinking") this.grow("thinking", event);
    else if (type === "restarted") this.voidReply();
    else if (type === "tool_started") this.setTool(event.tool_call_id, event.name, event.arguments, "runs …");
    else if (type === "tool_progress") this.setTool(event.tool_call_id, event.name, null, `runs: ${describeProgress(event)}`);
    else if (type === "approval_required") this.setTool(event.tool_call_id, event.name, event.arguments, "asks", makeDecision);
    else if (type === "result_required") this.setTool(event.tool_call_id, event.name, event.arguments, "waits for its result", makeAnswer);
    else if (type === "subagent_waiting") this.noteSubagent(event);
    else if (type === "tool_finished" && event.name) this.setTool(event.tool_call_id, event.name, null, event.is_error ? "failed" : "done");
    else if (type === "retrying") this.setState(`tries again: ${event.message}`);
    else if (type === "status") {
      this.requestId = event.request_id ?? null;
      this.state = event.status;
      this.setState();
      // The calls that wait may be those of subagents, which only the status names.
      if (["awaiting_tools", "awaiting_external"].includes(event.status)) this.readStatus();
    }
  }

  // A call that waits in a subagent is decided on the page of its session. The event may come again.
  noteSubagent({ session_id: id, tool_call_id: call, name }) {
    this.noted ??= new Set();
    if (this.noted.has(`${id} ${call}`)) return;
    this.noted.add(`${id} ${call}`);
    this.show(make("p", { class: "note" }, `${name} waits in `, makeSessionLink(id)));
  }

  setState(text) {
    const isBusy = Boolean(this.requestId);
    this.trouble = text ?? "";
    this.publish();
    this.cancel.hidden = this.queue.hidden = !isBusy;
    this.send.textContent = isBusy ? "Steer" : "Send";
    this.text.placeholder = isBusy ? "Correct the agent while it works" : "Message";
    this.log.setAttribute("aria-busy", String(Boolean(OPEN[this.state])));
  }

  // A text keeps its first `offset` characters, and `text` follows. They are Unicode characters, not UTF-16 units.
  grow(name, event) {
    if (this.reply?.callId !== event.call_id) {
      this.voidReply();
      this.reply = { callId: event.call_id };
    }
    this.setState();
    this.reply[name] ??= { element: make("div", { class: `${name === "content" ? "assistant" : "thinking"} writing`, dir: "auto", "aria-live": "off" }), characters: [] };
    const { element, characters } = this.reply[name];
    characters.length = Math.min(characters.length, event.offset);
    characters.push(...event.text);
    setContent(element, characters.join(""));
    this.show(element.isConnected ? null : element);
  }

  voidReply() {
    this.reply?.thinking?.element.remove();
    this.reply?.content?.element.remove();
    this.reply = null;
  }

  setTool(id, name, args, state, makeQuestion) {
    let card = this.tools.get(id);
    if (!card) {
      card = makeToolFold(name, "", "", make("pre", { class: "arguments", tabIndex: 0, "aria-label": `Arguments of ${name}` }), make("div", { class: "question" }), make("div", { class: "result" }));
      card.dataset.call = id;
      card.querySelector("summary").append(make("span", { class: "subagent", hidden: true }));
      this.tools.set(id, card);
      this.show(card);
      if (this.subagents.has(id)) this.linkSubagent(id, this.subagents.get(id).id, this.subagents.get(id).agent);
    }
    if (name) {
      card.tool = name;
      setContent(card.querySelector("summary code"), name);
    }
    if (args) {
      card.arguments = args;
      setContent(card.querySelector(".arguments"), JSON.stringify(args, null, 2));
      setContent(card.querySelector(".preview"), shorten(JSON.stringify(args)));
    }
    const asks = Boolean(makeQuestion);
    setContent(card.querySelector(".state"), state === "asks" ? "needs your approval" : state);
    card.classList.toggle("bad", state === "failed");
    if (asks !== card.classList.contains("asks") || !asks) {
      const done = () => { card.querySelector(".question").replaceChildren(); card.classList.remove("asks"); };
      const known = { id, name: card.tool, args: card.arguments };
      card.querySelector(".question").replaceChildren(...(asks ? [makeQuestion(this.id, known, done)] : []));
      if (asks) card.open = true;
    }
    card.classList.toggle("asks", asks);
    this.show();
    return card;
  }

  // ---- Entries: the thread. Each comes once and in order.

  takeEntry(entry) {
    const { kind, payload, seq, refs } = entry;
    if (kind === "ai_message") this.takeMessage(entry);
    else if (kind === "approval") this.setTool(payload.tool_call_id, "", payload.arguments, payload.decision === "approve" ? "approved" : "denied");
    else if (kind === "input") {
      this.forget(payload.input_id ?? payload.request_id);
      this.note(seq, `“${getText(payload.content)}” was not read: ${words(payload.reason)}`);
    } else if (kind === "run") this.endRun(entry);
    else if (kind === "summary") this.note(seq, "Earlier messages were summarized", payload.content);
    else if (kind === "ai_context_operation") this.note(seq, `Context: ${words(payload.operation?.type)} ${refs?.context_ref ?? payload.context_ref ?? ""}`);
    else if (kind === "fork") this.noteFork(seq, payload);
    else if (kind === "error") this.note(seq, payload.message ?? payload.error?.message ?? "an error", null, true);
    else if (kind === "session") this.note(seq, words(payload.event));
    else if (kind === "config" && seq > 0) this.note(seq, "The configuration was changed");
  }

  takeMessage({ seq, at, payload, refs }) {
    if (payload.role === "user") {
      this.forget(payload.input_id ?? refs.request_id);
      this.addBubble("user", seq, at, [payload.source && make("small", {}, payload.source), ...makeContent(payload.content, this.id)]);
      if (!this.firstText) {
        this.firstText = getText(payload.content);
        this.publish();
      }
    } else if (payload.role === "assistant") this.takeReply(seq, at, payload, refs);
    else if (payload.role === "tool") {
      const card = this.setTool(payload.tool_call_id, payload.name, payload.edited_arguments, payload.is_error ? "failed" : "done");
      setContent(card.querySelector(".result"), makeContent(payload.content, this.id));
      card.dataset.seq = seq;
      if (payload.subagent) this.linkSubagent(payload.tool_call_id, payload.subagent.session_id, payload.subagent.agent);
    }
  }

  takeReply(seq, at, payload, refs) {
    if (this.reply?.callId === refs.call_id || !payload.interrupted) this.voidReply();
    if (payload.thinking) this.show(makeThinking(payload.thinking));
    const content = makeContent(payload.content, this.id, makeMarkdown);
    if (content.length) this.addBubble(payload.interrupted ? "assistant interrupted" : "assistant", seq, at, [...content, makeSources(listPages(payload.citations))]);
    for (const { tool, sources, ...ran } of payload.provider_calls ?? []) this.show(makeProviderCall({ ...ran, name: tool, pages: sources }));
    for (const asked of payload.tool_calls ?? []) this.setTool(asked.id, asked.name, asked.arguments, "");
  }

  addBubble(look, seq, at, content) {
    const fork = makeButton("Fork from here", () => this.forkAt(seq), { class: "plain" });
    const bubble = make("article", { class: look, "data-seq": seq, "aria-label": look.split(" ")[0] === "user" ? "User" : "Agent" }, ...content,
      make("footer", {}, make("time", { dateTime: at }, new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })), make("span", {}, `#${seq}`), fork));
    this.show(bubble);
  }

  note(seq, text, more, isBad = false) {
    const look = `note${isBad ? " bad" : ""}`;
    this.show(more
      ? make("details", { class: look, "data-seq": seq }, make("summary", {}, text), makeText(more))
      : make("p", { class: look, "data-seq": seq }, text));
  }

  noteFork(seq, { event, session_id: id }) {
    const text = event === "forked_from" ? "A fork of " : "Forked to ";
    this.show(make("p", { class: "note", "data-seq": seq }, text, makeSessionLink(id)));
  }

  // Link the session of a subagent in the card of the call that started it.
  linkSubagent(call, id, agent) {
    this.subagents.set(call, { id, agent });
    const box = this.tools.get(call)?.querySelector(".subagent");
    if (!box) return;
    box.replaceChildren(`${agent}: `, makeSessionLink(id));
    box.hidden = false;
  }

  endRun({ seq, payload }) {
    this.voidReply();
    this.hasFailed = payload.status === "failed";
    for (const card of this.log.querySelectorAll(".asks")) this.setTool(card.dataset.call, "", null, "ended");
    if (payload.status !== "completed") this.note(seq, payload.error?.message ?? words(payload.status), null, payload.status !== "cancelled");
    this.readStatus();
    this.ended();
  }

  // ---- What a person does.

  async act(path, body) {
    try {
      return await call("POST", `${this.path}/${path}`, body);
    } catch (refusal) {
      tell(refusal.message, !["idle", "request_mismatch"].includes(refusal.type));
      return null;
    }
  }

  async forkAt(seq) {
    const made = await this.act("fork", seq === undefined ? {} : { at_seq: seq });
    if (made) {
      // The person may be writing, or elsewhere, by now.
      tell("Forked:", false, makeSessionLink(made.session_id, "open the fork"));
    }
  }

  async openReport() {
    try {
      const page = URL.createObjectURL(await readBytes(`${this.path}/report`));
      const link = make("a", { href: page, download: `${this.id}.html` });
      link.click();
      await pause(60_000);
      URL.revokeObjectURL(page);
    } catch (refusal) {
      tell(refusal.message, true);
    }
  }

  async submit(how) {
    const text = this.text.value.trim();
    const files = this.files;
    if (!text && !files.length) return;
    const steers = Boolean(this.requestId) && how !== "queue";
    this.text.value = "";
    this.setFiles([]);
    this.fitText();
    const id = makeId();
    const bubble = make("article", { class: `user waiting${steers ? " steer" : ""}` }, [text, ...files.map((file) => file.name)].filter(Boolean).join("\n"));
    this.waiting.set(id, bubble);
    this.log.append(bubble);
    this.log.scrollTop = this.log.scrollHeight;
    try {
      const blobs = await Promise.all(files.map((file) => this.upload(file)));
      const content = blobs.length ? [...(text ? [{ type: "text", text }] : []), ...blobs.map(makeBlobPart)] : text;
      if (steers) await call("POST", `${this.path}/steer`, { content }, { id });
      else await call("POST", `${this.path}/messages`, { content, on_busy: "queue" }, { id });
    } catch (refusal) {
      if (steers && refusal.type === "idle") {
        // The run has just ended: the correction becomes the next message.
        this.forget(id);
        this.text.value = text;
        this.setFiles(files);
        this.requestId = null;
        this.submit();
        return;
      }
      this.forget(id);
      this.text.value ||= text;
      this.setFiles([...files, ...this.files]);
      this.show(make("p", { class: "note bad", role: "alert" }, refusal.message));
    }
  }

  forget(id) {
    this.waiting.get(id)?.remove();
    this.waiting.delete(id);
  }

  async upload(file) {
    const { blob } = await call("POST", `${this.path}/blobs?name=${encodeURIComponent(file.name.slice(-200))}`, file, { raw: true });
    return blob;
  }

  attach(files) {
    const all = [...this.files, ...[...files].filter((file) => file.size)];
    if (all.length > MAX_FILES) tell(`A message has at most ${MAX_FILES} files.`, true);
    this.setFiles(all.slice(0, MAX_FILES));
  }

  setFiles(files) {
    for (const image of this.chosen.querySelectorAll("img")) URL.revokeObjectURL(image.src);
    this.files = files;
    this.chosen.hidden = !files.length;
    this.chosen.replaceChildren(...files.map((file) => make("figure", {},
      SHOWN.includes(file.type) && make("img", { alt: "", src: URL.createObjectURL(file) }),
      make("figcaption", {}, `${file.name} (${formatBytes(file.size)})`),
      makeButton("×", () => this.setFiles(this.files.filter((other) => other !== file)), { "aria-label": `Remove ${file.name}` }))));
  }

  fitText() {
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(this.text.scrollHeight + 2, 240)}px`;
  }

  toggleSeen() {
    dispatchEvent(new CustomEvent("toggle-seen"));
  }
}

const count = (usage) => (usage?.input_tokens ?? 0) + (usage?.output_tokens ?? 0);

function makeBlobPart(blob) {
  const kind = blob.media_type.split("/")[0];
  return { type: ["image", "audio"].includes(kind) ? kind : "file", blob };
}

// The pages that a reply names, each once, with their words.
function listPages(citations) {
  const pages = new Map();
  for (const { url, title, quote } of citations ?? []) {
    const page = pages.get(url) ?? { url, quotes: [] };
    page.title ??= title;
    if (quote && !page.quotes.includes(quote)) page.quotes.push(quote);
    pages.set(url, page);
  }
  return [...pages.values()];
}

// ---- Contents: a text, or parts with files, which are read with the key.

function describePart(part) {
  if (!part.blob) return `image: ${part.url}`;
  const { name, media_type, bytes, pages, seconds } = part.blob;
  const facts = [media_type, pages && `${pages} page${pages === 1 ? "" : "s"}`, seconds && `${Math.round(seconds)} s`, formatBytes(bytes)];
  return `${name ?? part.type} (${facts.filter(Boolean).join(", ")})`;
}

// `show` makes elements of the text; without it the text stays as it is.
function makeContent(content, session, show) {
  const text = getText(content);
  const parts = typeof content === "string" ? [] : (content ?? []).filter((part) => part.type !== "text");
  return [
    text && (show ? make("div", { class: "markdown" }, show(text)) : makeText(text)),
    ...parts.map((part) => makePart(part, session)),
  ].filter(Boolean);
}

function makePart(part, session) {
  const box = make("div", { class: "part" });
  if (!part.blob) {
    box.append(makeLink(part.url, describePart(part)));
    return box;
  }
  const path = `sessions/${encodeURIComponent(session)}/blobs/${part.blob.digest}`;
  const title = describePart(part);
  const save = makeButton(title, async () => {
    const link = make("a", { href: URL.createObjectURL(await readBytes(path)), download: part.blob.name ?? part.blob.digest.slice(0, 12) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }, { class: "plain", title: "Save" });
  box.append(save);
  if (part.type === "image" && SHOWN.includes(part.blob.media_type)) {
    // The key goes with the request, which an image's address cannot.
    readBytes(path).then((bytes) => {
      const image = make("img", { alt: title, src: URL.createObjectURL(bytes) });
      image.onload = () => URL.revokeObjectURL(image.src);
      box.prepend(image);
    }, () => box.append(make("span", { class: "bad" }, " cannot be read")));
  }
  return box;
}
