// What the model saw: the window of each call, and what it left out.

import { count, describeUsage, draw, duration, get, make, number } from "./view.js";

const MOST_MAP_ROWS = 160;
const STRIP_HEIGHT = 14;
const THIN_HEIGHT = 6;
const LEAST_WIDTH = 0.15;
const NAMES = { user: "user", assistant: "assistant", tool_calls: "tool calls with results", system: "system prompt", tools: "tool schemas", summary: "summary", snapshot: "snapshot", messages: "several kinds" };
const STATES = { cleared: "results cleared", truncated: "results truncated", summarized: "summarized", replaced: "replaced by a snapshot", dropped: "no room", excluded: "excluded by the policy" };
const LOOKS = [...Object.entries(NAMES), ["tool_calls cleared", "results cleared or truncated"], ["user pinned", "pinned"],
  ...["dropped", "summarized", "replaced", "excluded"].map((state) => [`out ${state}`, STATES[state]])];

// ---- Boxes: rectangles whose places and widths are percentages of a picture.

export const round = (value) => Math.round(value * 100) / 100;
export const placeEntries = (all, first, last) => ({ x: round((100 * first) / all), width: round(Math.max((100 * (last - first + 1)) / all, LEAST_WIDTH)) });
const isDrawnOver = ({ look }) => /cleared|truncated|summarized|replaced|pinned/.test(look);

export function drawBoxes(boxes) {
  if (!get("patterns")) {
    document.body.append(draw("svg", { id: "patterns", width: 0, height: 0, "aria-hidden": "true" }, draw("defs", {},
      draw("pattern", { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, draw("rect", { width: 2.5, height: 6 })),
      draw("pattern", { id: "dots", width: 5, height: 5, patternUnits: "userSpaceOnUse" }, draw("circle", { cx: 2, cy: 2, r: 1.2 })))));
  }
  return boxes.map(({ x, width, y, height, look, title }) => {
    const place = { x: `${x}%`, y, width: `${width}%`, height };
    const pattern = /cleared|truncated/.test(look) ? "stripes" : /summarized|replaced/.test(look) ? "dots" : null;
    return [draw("rect", { ...place, class: look }, title ? draw("title", {}, title) : []),
      pattern ? draw("rect", { ...place, class: "over", fill: `url(#${pattern})` }) : [],
      look.includes("pinned") ? draw("rect", { ...place, height: 2, class: "pin-line" }) : []];
  });
}

// Draw boxes of one look as one path, for a page has thousands of them; a pattern would be stretched.
function drawJoined(boxes, height) {
  const plain = boxes.filter((box) => !isDrawnOver(box));
  const looks = new Set(plain.map(({ look }) => look));
  const paths = [...looks].map((wanted) =>
    draw("path", { class: wanted, d: plain.filter(({ look }) => look === wanted).map(({ x, y, width, height: high }) => `M${x} ${y}h${width}v${high}h-${width}z`).join("") }));
  return [draw("svg", { viewBox: `0 0 100 ${height}`, width: "100%", height, preserveAspectRatio: "none" }, paths), drawBoxes(boxes.filter(isDrawnOver))];
}

export const makeLegend = (looks) => make("p", { class: "legend" }, looks.map(([look, name]) =>
  make("span", {}, draw("svg", { width: 14, height: 14, "aria-hidden": "true" }, drawBoxes([{ x: 0, width: 100, y: 1, height: 12, look }])), name)));

export const makeWindowLegend = (...more) => makeLegend([...LOOKS, ...more]);

// ---- One window.

const sum = (segments, name) => segments.reduce((total, segment) => total + (segment[name] ?? (name === "messages" ? 1 : 0)), 0);
const findLook = ({ kind, state, pinned }) => `${["shown", "cleared", "truncated"].includes(state) ? kind : "out"} ${state}${pinned ? " pinned" : ""}`;

export const findLargest = (calls) => Math.max(...calls.map(({ window }) => window?.tokens ?? 0), 1);

function describeWindow({ tokens, budget, left_out: out }) {
  return `${number(tokens)} of ${number(budget)} tokens${out.length ? `, ${count(sum(out, "messages"), "message")} left out` : ""}`;
}

function describeSegment({ kind, state, first_seq: first, last_seq: last, messages = 1, tokens, pinned, results, media = 0, cleared_media: cleared = 0 }) {
  const all = media + cleared;
  return [`${NAMES[kind]}${first === undefined ? "" : ` ${first}${first === last ? "" : ` to ${last}`}`}`, messages && count(messages, "message"), `${number(tokens)} tokens`,
    STATES[state] && `${STATES[state]}${results ? ` (${count(results, "result")})` : ""}`, all && `${number(all)} ${all === 1 ? "medium" : "media"}`, cleared && `${cleared} of them as a marker`, pinned && "pinned"].filter(Boolean).join(", ");
}

function drawStrip(segments, total, height, label) {
  const boxes = [];
  let x = 0;
  for (const segment of segments) {
    const width = (100 * (segment.tokens ?? 0)) / total;
    if (width > 0) boxes.push({ x: round(x), width: round(Math.max(width - 0.12, width * 0.7)), y: 0, height, look: findLook(segment) });
    x += width;
  }
  return draw("svg", { class: "strip", width: "100%", height, role: "img", "aria-label": label }, drawJoined(boxes, height));
}

// A call with its window as a fold. `heading` is the element of a heading inside.
export function makeCall(call, largest, heading = "h5", isOpen = false) {
  const { call_id: id, model, usage = {}, seconds, window, problem, attempt, stop_reason: stop, provider_tools: provided, request_digest: sent, encoder, dialect } = call;
  const facts = [model, describeUsage(usage), duration(seconds), attempt > 1 && `attempt ${attempt}`, stop === "length" && "stopped at its limit"].filter(Boolean).join(" · ");
  const request = sent && make("p", { class: "note" }, "The provider received a request with the SHA-256 ", make("code", {}, sent), `, encoded by ${encoder}${dialect ? ` in the dialect ${dialect}` : ""}.`);
  if (!window) return make("div", { class: "call" }, make("p", {}, make("b", {}, id), problem && `: its window could not be built again: ${problem}`), request, make("p", { class: "note" }, facts));
  const { segments, left_out: out } = window;
  const list = (parts) => make("p", { class: "parts" }, parts.map(describeSegment).join("\n"));
  return make("div", { class: "call" },
    make("details", { "data-call": id, open: isOpen },
      make("summary", {}, make("span", { class: "sum" }, make("b", {}, id), ` saw ${describeWindow(window)}`),
        drawStrip(segments, largest, STRIP_HEIGHT, `The window of ${id}: ${segments.slice(0, 12).map(describeSegment).join("; ")}`),
        out.length > 0 && drawStrip(out, Math.max(sum(out, "tokens"), 1), THIN_HEIGHT, `What the window of ${id} left out`)),
      make(heading, {}, "In the window"), list(segments),
      out.length > 0 && [make(heading, {}, "Left out"), list(out)],
      make("p", { class: window.matches_record ? "note" : "note bad" }, window.matches_record
        ? "The context was built again for this page and has the digest that was recorded when the model was called."
        : "The context that was built again for this page does not have the digest that was recorded when the model was called: a program that builds contexts has changed, or the entries have."),
      provided?.length > 0 && make("p", { class: "note" }, `The provider might run ${provided.join(", ")} itself.`),
      request),
    make("p", { class: "note" }, facts));
}

// ---- All windows: a row for each call, a column for each entry.

export function makeMap({ calls, entries, timeline }, mostWindows) {
  const seen = calls.filter(({ window }) => window);
  if (!seen.length) return [make("p", {}, "None of the entries that this report shows is a model's reply.")];
  const every = Math.ceil(seen.length / MOST_MAP_ROWS);
  const drawn = seen.filter((_, index) => (seen.length - 1 - index) % every === 0);
  const height = drawn.length > 80 ? 4 : drawn.length > 20 ? 7 : 12;
  const describe = ({ call_id: id, window }) => `${id}, ${describeWindow(window)}`;
  const boxes = drawn.flatMap((call, row) => {
    const place = { y: row * height, height: height - 1 };
    const parts = [...call.window.left_out, ...call.window.segments].filter(({ first_seq: first }) => first !== undefined);
    return [...parts.flatMap((segment) => splitByLane(timeline, call.lane, segment).map(([first, last]) => ({ ...placeEntries(entries, first, last), ...place, look: findLook(segment) }))),
      { ...placeEntries(entries, call.seq, call.seq), ...place, look: "reply" }];
  });
  const rows = drawn.map((call, row) => ({ x: 0, width: 100, y: row * height, height, look: "row", title: describe(call) }));
  const all = height * drawn.length;
  const label = `Windows of ${count(seen.length, "model call")}, the oldest above. From left to right are the ${number(entries)} entries of the session. The first window: ${describe(drawn[0])}. The last: ${describe(drawn.at(-1))}.`;
  return [
    make("p", { class: "note" }, `Each row is a model call, the oldest above${every > 1 ? `; one call of ${every} is drawn` : ""}${seen.length === mostWindows ? `; the newest ${number(mostWindows)} calls have their windows` : ""}. From left to right are the entries of the session. What is filled was in the window of that call; what is grey or dotted was left out. In the conversation below, each reply has its window in detail; there the widths are tokens, at the scale of the largest window, and the thin bar is what was left out, at a scale of its own.`),
    make("figure", {}, draw("svg", { class: "map", width: "100%", height: all, role: "img", "aria-label": label }, drawJoined(boxes, all), drawBoxes(rows)), makeWindowLegend(["reply", "the reply"])),
  ];
}

// Split a segment's entries into the stretches in which its lane was active.
function splitByLane({ active }, lane, { kind, first_seq: first, last_seq: last = first }) {
  if (kind === "summary") return [[first, last]];
  return active.filter((stretch) => stretch.lane === lane && stretch.first_seq <= last && first <= stretch.last_seq)
    .map((stretch) => [Math.max(first, stretch.first_seq), Math.min(last, stretch.last_seq)]);
}
