// The page of a report: it shows the values of `clew.report.report_types`, which stand in the page as JSON without what is as
// its default. Nothing is loaded.

import { makeCharts, makeTimeline } from "./charts.js";
import { getContent, makeCode, makeProviderCall, makeSources, makeText, makeThinking, makeToolFold, noteLeftOut, shorten } from "./conversation.js";
import { makeFind } from "./find.js";
import { makeMarkdown } from "./markdown.js";
import { count, describeUsage, dollars, duration, formatBytes, formatTime, get, make, makeVisible, number, percent } from "./view.js";
import { findLargest, makeCall, makeMap } from "./windows.js";

const MOST_ROWS = 1000;
const MOST_OPEN_FAILURES = 20;
const OPEN_TURNS = 3;
const LONG_TURN = 40;  // Items of a turn from which on it is folded, however new it is.
const LONG_PAUSE = 3600;
const MOST_TITLE = 160;
const MOST_MARKDOWN = 10_000;

const { report, images, links, most_windows: mostWindows } = JSON.parse(get("data").textContent);
const { session_id: id, entries, first_shown: firstShown, last_shown: lastShown, calls, items, timeline, failures, relatives } = report;
const title = getContent(report.title) || id;
const largest = findLargest(calls);

const when = (at) => make("time", { dateTime: at }, formatTime(at));
const linkEntry = (seq) => (firstShown <= seq && seq <= lastShown ? make("a", { class: "seq", href: `#e${seq}` }, `#${seq}`) : make("span", { class: "seq" }, `#${seq}`));
const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
const command = (session, more = "") => make("code", {}, "clew report ", quote(session), more);
const note = (...parts) => make("p", { class: "note" }, parts);
const measure = (first, last) => Math.max((new Date(last) - new Date(first)) / 1000, 0);

function makeSection(name, heading, ...content) {
  return make("section", { id: name, "aria-labelledby": `${name}-title` }, make("h2", { id: `${name}-title` }, heading), content);
}

// A table that scrolls by itself. A column whose title begins with `#` has numbers.
function makeTable(label, caption, columns, rows) {
  const looks = columns.map((column) => (column.startsWith("#") ? "n" : null));
  return make("div", { class: "scroll", tabIndex: 0, role: "group", "aria-label": label }, make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, columns.map((column, index) => make("th", { scope: "col", class: looks[index] }, column.replace("#", ""))))),
    make("tbody", {}, rows.map((row) => make("tr", {}, row.map((cell, index) => make("td", { class: looks[index], dir: looks[index] ? null : "auto" }, cell)))))));
}

// The newest rows as a table, in a fold.
function makeFoldedTable(noun, caption, columns, all, makeRow) {
  const rows = all.slice(-MOST_ROWS);
  return rows.length > 0 && make("details", {}, make("summary", {}, `${count(all.length, noun)} as a table`),
    rows.length < all.length && note(`The newest ${number(MOST_ROWS)} are listed.`), makeTable(`${noun[0].toUpperCase()}${noun.slice(1)}s`, caption, columns, rows.map(makeRow)));
}

// ---- What stands above the conversation.

function makeHeader() {
  const parts = [...document.querySelectorAll("main > section")].map((section) => [section.id, section.querySelector("h2").textContent]);
  return make("header", {}, make("p", { class: "note" }, "Clew session ", make("code", {}, id)), make("h1", { dir: "auto" }, title),
    make("p", { class: "note" }, make("span", { class: `status ${report.status}` }, report.status), report.agent && ` agent ${report.agent},`, ` ${report.model ?? "no model"}`,
      report.first_at && [", ", when(report.first_at), " to ", when(report.last_at), " UTC"]),
    make("nav", { "aria-label": "Parts of the report" }, make("ul", {}, parts.map(([name, heading]) => make("li", {}, make("a", { href: `#${name}` }, heading))))));
}

const FAILURES = { request: "request failed", tool_call: "tool call failed", error: "error" };
function makeFailures() {
  if (!failures.length) return null;
  const shown = failures.slice(-MOST_ROWS);
  const kinds = ["request", "tool_call", "error"].map((kind) => [kind.replace("_", " "), failures.filter((failure) => failure.kind === kind).length]);
  return makeSection("failures", "Failures", make("details", { open: shown.length <= MOST_OPEN_FAILURES },
    make("summary", {}, kinds.map(([noun, size]) => size > 0 && [make("span", { class: "badge failed" }, count(size, noun)), " "])),
    shown.length < failures.length && note(`The newest ${number(MOST_ROWS)} are listed.`),
    make("ul", { class: "failures" }, shown.map(({ seq, kind, title: name, text, in_doubt: inDoubt }) => make("li", {}, linkEntry(seq), " ",
      make("b", {}, inDoubt ? "tool call in doubt" : FAILURES[kind]), " ", make("code", {}, name), getContent(text) && [" ", make("span", { dir: "auto" }, shorten(text, MOST_TITLE))])))));
}

function makeNumbers() {
  const { requests, usage, unpriced_calls: unpriced = 0, subagent_usage: others } = report;
  const { input_tokens: input = 0, cached_input_tokens: cached = 0, cost_usd: cost, estimated_calls: estimated } = usage;
  const ended = Object.values(requests).reduce((all, size) => all + size, 0);
  const figures = [
    ["Requests", number(ended), (requests.failed || requests.cancelled) && `${requests.failed ?? 0} failed, ${requests.cancelled ?? 0} cancelled`],
    ["Model calls", number(usage.model_calls), estimated && `${number(estimated)} interrupted, with estimated tokens`],
    ["Tool calls", number(report.tool_calls)],
    ["Input tokens", number(input), `${percent(input ? cached / input : 0)} cached`],
    ["Output tokens", number(usage.output_tokens)],
    ["Cost", dollars(cost) || "not known", unpriced > 0 && cost !== undefined && `without ${number(unpriced)} calls of unknown price`],
    ...(others ? [["Subagents", `${number((others.input_tokens ?? 0) + (others.output_tokens ?? 0))} tokens`, dollars(others.cost_usd)]] : []),
    ["Entries", number(entries)],
  ];
  const metadata = Object.entries(report.metadata);
  return makeSection("numbers", "Numbers",
    make("dl", { class: "numbers" }, figures.map(([name, value, more]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, more && [" ", make("small", {}, more)])))),
    !report.has_texts && note("This report was made without the texts of the conversation."),
    metadata.length > 0 && make("details", {}, make("summary", {}, "Metadata"), makeTable("Metadata", "Metadata of the session", ["Name", "Value"], metadata.map(([name, value]) => [name, [getContent(value), noteLeftOut(value)]]))),
    report.system_prompt && make("details", {}, make("summary", {}, "System prompt in force at the end"), makeText(report.system_prompt)));
}

function makeLanes() {
  return makeSection("timeline", "Timeline",
    note(`Each row is a lane. From left to right are the ${number(entries)} entries: the filled bars are runs, the pale ones say which lane was active.`), makeTimeline(report),
    makeFoldedTable("operation", "Operations, changes of the configuration, errors and events of the session", ["#Entry", "Time (UTC)", "What", "Lane", "Details"], timeline.operations,
      ({ seq, at, kind, lane, title: text }) => [linkEntry(seq), when(at), kind, lane, text.content]),
    makeFoldedTable("run", "Runs", ["Run", "Lane", "Entries", "Began (UTC)", "#Took", "Status"], timeline.runs,
      (run) => [run.run_id, run.lane, `${run.first_seq} to ${run.last_seq}`, when(run.at), duration(run.seconds), run.status ?? "not ended"]));
}

function makeCalls() {
  if (!calls.length) return makeSection("charts", "Tokens, cost and latency", make("p", {}, "No model was called."));
  return makeSection("charts", "Tokens, cost and latency",
    note("Each bar is a model call, the oldest on the left. Tokens and cost are those that the providers reported; latency is the time from the newest entry that the call could read to its reply."),
    makeCharts(calls),
    makeFoldedTable("model call", "Model calls, with the tokens that the providers reported", ["Call", "#Entry", "Time (UTC)", "Model", "Lane", "#Input", "#Cached", "#Output", "#Cost", "#Latency"], calls,
      ({ call_id: call, seq, at, model, lane, usage = {}, seconds }) => [call, linkEntry(seq), when(at), model, lane, number(usage.input_tokens), number(usage.cached_input_tokens), number(usage.output_tokens), dollars(usage.cost_usd), duration(seconds)]));
}

function makeRelatives() {
  if (!relatives.length) return null;
  const isParent = ({ relation }) => relation === "forked_from";
  const others = relatives.filter((relative) => !isParent(relative));
  return makeSection("relatives", "Forks and subagents",
    make("ul", { class: "tree" },
      relatives.filter(isParent).map(({ session_id: parent, fork_seq: seq }) =>
        make("li", {}, make("code", {}, parent), " ", make("span", { class: "note" }, `this session is its fork, with the entries up to ${seq} `), command(parent))),
      make("li", {}, make("b", {}, make("code", {}, id)), " ", make("span", { class: "note" }, "this session"),
        others.length > 0 && make("ul", {}, others.slice(0, MOST_ROWS).map(({ session_id: other, relation, agent, fork_seq: fork, status, usage, seq, at }) =>
          make("li", {}, make("span", { class: "badge" }, relation === "subagent" ? `subagent ${agent}` : `fork at ${fork}`), " ", make("code", {}, other), " ",
            make("span", { class: "note" }, [status, usage && describeUsage(usage)].filter(Boolean).map((fact) => `${fact}, `), "entry ", linkEntry(seq), ", ", when(at), " "), command(other)))))),
    others.length > MOST_ROWS && note(`The first ${number(MOST_ROWS)} of ${number(others.length)} are listed.`));
}

// ---- The conversation: a fold for each turn, which is a message to the session and all that happens until the next one.

function splitTurns() {
  const turns = [];
  let request;
  for (const item of items) {
    const begins = item.role === "user" && (item.request_id === undefined || item.request_id !== request);
    // A message of the request that is being served is a correction of it.
    if (begins || !turns.length) turns.push([]);
    if (item.role === "user") request = item.request_id;
    turns.at(-1).push(item);
  }
  return turns;
}

function makeConversation() {
  const turns = splitTurns();
  const folds = turns.map((turn, index) => makeTurn(turn, turns[index + 1]?.[0].seq ?? Infinity, index >= turns.length - OPEN_TURNS));
  const section = makeSection("conversation", "Conversation", makeBounds(), folds.map((fold, index) => [index > 0 && makePause(turns[index - 1].at(-1), turns[index][0]), fold]));
  return [section, folds];
}

function makeBounds() {
  if (firstShown > lastShown) return note(`The session has no entry ${number(firstShown)}${entries ? `: its last one is ${number(entries - 1)}` : ""}.`);
  if (firstShown === 0 && lastShown === entries - 1) return null;
  const before = Math.max(firstShown - (lastShown - firstShown + 1), 0);
  return note(`This part shows the entries ${number(firstShown)} to ${number(lastShown)} of ${number(entries)}. The parts above include all entries, but for windows. To see others, name the first with `,
    command(id, ` --from ${before}`), ", or raise ", make("code", {}, "--limit"), ".");
}

function makePause(before, item) {
  const seconds = measure(before.at, item.at);
  return seconds >= LONG_PAUSE && make("p", { class: "pause" }, make("span", {}, `${duration(seconds)} later`));
}

function makeTurn(turn, end, isNew) {
  const [first] = turn;
  const failed = failures.filter(({ seq }) => first.seq <= seq && seq < end).length;
  const asked = turn.filter(({ call }) => call).length;
  const used = turn.reduce((all, { tools = [] }) => all + tools.length, 0);
  const seconds = measure(first.at, turn.at(-1).at);
  const facts = [asked > 0 && count(asked, "model call"), used > 0 && count(used, "tool call"), seconds > 0 && duration(seconds)].filter(Boolean);
  return make("details", { class: `turn${failed ? " failed" : ""}`, id: `t${first.seq}`, open: isNew && turn.length < LONG_TURN },
    make("summary", {}, make("h3", { dir: "auto" }, findTitle(first)),
      make("span", { class: "note" }, failed > 0 && [make("span", { class: "badge failed" }, `${failed} failed`), " "], facts.map((fact) => `${fact} · `), when(first.at))),
    turn.map((item, index) => [index > 0 && makePause(turn[index - 1], item), item.role ? makeMessage(item) : makeEvent(item)]));
}

function findTitle({ role, parts = [], text }) {
  if (role !== "user") return "Before the first message";
  const said = parts.map((part) => getContent(part.text)).join("\n").trim() || getContent(text);
  return shorten(said.slice(0, 4 * MOST_TITLE).split(/\s+/).filter(Boolean).join(" "), MOST_TITLE - 1) || "Message";
}

const ROLES = { user: "User", assistant: "Assistant", tool: "Tool" };
function makeMessage({ seq, at, lane, role, text, parts = [], tokens, source, thinking, tools = [], provider_calls: provided = [], sources, result_of: call, interrupted, call: made }) {
  const label = `Result of ${call}`;
  return make("article", { class: `message ${role}${interrupted ? " interrupted" : ""}`, id: `e${seq}` },
    make("header", {}, make("h4", {}, ROLES[role]), [source, interrupted && "interrupted", timeline.lanes.length > 1 && `lane ${lane}`].filter(Boolean).map((badge) => make("span", { class: "badge" }, badge)),
      make("span", { class: "note" }, when(at), ` · ${number(tokens)} tokens${call ? ` · result of ${call}` : ""} `, linkEntry(seq))),
    thinking && makeThinking(thinking), parts.length ? makeParts(parts, role, label) : makeContent(text, role, label),
    makeSources(sources), provided.map(makeProviderCall), tools.map(makeTool), made && makeCall(made, largest));
}

// Replies are Markdown, if they are shown in full and not too long; links in them show their address and lead nowhere.
function makeContent(text, role, label) {
  const isMarkdown = role === "assistant" && !text.left_out && text.content.length <= MOST_MARKDOWN;
  return isMarkdown ? make("div", { class: "markdown", dir: "auto" }, makeMarkdown(text.content, (_, shown) => make("span", { class: "link" }, shown)))
    : role === "tool" ? makeCode(text, label) : makeText(text);
}

const makeParts = (parts, role, label) => parts.map(({ media, text }, index) => (media ? makeMedia(media) : makeContent(text, role, `${label}, part ${index + 1}`)));

// An image is shown from the bytes in the page; a file beside the page is linked, and opens apart.
function makeMedia({ digest, description, width, height }) {
  const [shown, name] = [images[digest], getContent(description)];
  return make("figure", { class: "part" }, shown && make("img", { src: shown, alt: name, width, height, decoding: "async" }),
    make("figcaption", { dir: "auto" }, links[digest] ? make("a", { href: links[digest], rel: "noopener noreferrer", target: "_blank" }, name) : name));
}

function makeTool({ name, arguments: given, decision, reason, by, edited_arguments: edited, result, result_parts: parts = [], result_seq: seq, stored_bytes: stored, seconds, is_error: failed, in_doubt: inDoubt, late, subagent }) {
  const state = [failed ? "failed" : inDoubt ? "in doubt" : result ? "" : "no result yet", late && "late", decision, by && `by ${by}`, duration(seconds)].filter(Boolean).join(" ");
  const fold = makeToolFold(name, given, state, make("h5", {}, "Arguments"), makeCode(given, `Arguments of ${name}`),
    reason && [make("h5", {}, `Why it was ${decision}`), makeText(reason)],
    edited && [make("h5", {}, "Arguments as a person changed them"), makeCode(edited, `Changed arguments of ${name}`)],
    result && [make("h5", {}, "Result ", make("span", { class: "seq", id: `e${seq}` }, `#${seq}`)), parts.length ? makeParts(parts, "tool", `Result of ${name}`) : makeCode(result, `Result of ${name}`),
      stored !== undefined && note(`The archive has the full result, ${formatBytes(stored)}.`)],
    subagent && note(`Worked on by the subagent ${subagent}: `, command(subagent)));
  fold.classList.toggle("bad", Boolean(failed || inDoubt));
  return fold;
}

function makeEvent({ seq, at, kind, title: text, text: more, parts = [], is_error: failed }) {
  const head = (place) => [make("b", {}, kind), " ", make("span", { dir: "auto" }, text.content), " ", make("span", { class: "note" }, when(at), " ", place)];
  return make("article", { class: `event${failed ? " failed" : ""}`, id: `e${seq}`, "aria-label": kind }, more
    ? make("details", { open: Boolean(failed) }, make("summary", {}, head(`#${seq}`)), makeText(more), makeParts(parts, "event", kind))
    : make("p", {}, head(linkEntry(seq))));
}

// ---- All of it.

function showReport() {
  const [conversation, folds] = makeConversation();
  const { tools, reveal } = makeFind(folds);
  if (folds.length) (conversation.querySelector(".turn") ?? conversation).before(tools);
  const main = make("main", {}, makeFailures(), makeNumbers(), makeLanes(), makeCalls(), makeSection("windows", "What the model saw", makeMap(report, mostWindows)), makeRelatives(), conversation);
  get("unscripted").remove();
  document.body.append(make("a", { class: "skip", href: "#conversation" }, "Skip to the conversation"), main,
    make("footer", {}, make("p", {}, "Made by ", make("code", {}, "clew report"), " from the session's entries at ", when(report.made_at),
      " UTC. The page loads nothing, and its policy lets no script of the session run. Hidden characters of the session are shown by their codes, as in [U+202E].")));
  main.before(makeHeader());
  document.title = makeVisible(`${title} · session ${id}`);
  if (location.hash) reveal(location.hash);
}

showReport();
