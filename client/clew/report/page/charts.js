// Charts of tokens, cost and latency over the model calls, and the timeline of lanes.

import { count, dollars, draw, duration, formatTime, make, number, percent } from "./view.js";
import { drawBoxes, makeLegend, placeEntries, round } from "./windows.js";

const CHART_HEIGHT = 110;
const MOST_BARS = 240;  // Of more calls, neighbours are drawn as one bar.

const average = (values) => values.reduce((total, value) => total + value, 0) / values.length;

// A bar of the mean of the values that are known; no bar if none is.
const averageKnown = (look, values) => {
  const known = values.filter((value) => value !== undefined);
  return known.length ? [[look, average(known)]] : [];
};
const read = (calls, name) => calls.map(({ usage }) => usage?.[name] ?? 0);
const total = (calls, name) => read(calls, name).reduce((all, value) => all + value, 0);

// What each chart shows of a group of calls: the parts of a bar, from below, each with its look.
const MEASURES = [
  { title: "Tokens", form: number, legend: [["cached", "input read from the cache"], ["fresh", "other input"], ["output", "output"]],
    parts: (calls) => [["cached", average(read(calls, "cached_input_tokens"))], ["fresh", average(read(calls, "input_tokens")) - average(read(calls, "cached_input_tokens"))], ["output", average(read(calls, "output_tokens"))]] },
  { title: "Cached share of the input", form: percent, most: 1,
    parts: (calls) => [["cached", total(calls, "input_tokens") ? total(calls, "cached_input_tokens") / total(calls, "input_tokens") : 0]] },
  { title: "Cost", form: dollars, parts: (calls) => averageKnown("cost", calls.map(({ usage }) => usage?.cost_usd)) },
  { title: "Latency", form: duration, parts: (calls) => averageKnown("latency", calls.map(({ seconds }) => seconds)) },
];

// Round up to a number of one or two digits times a power of ten, for the upper edge of a chart.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 1.5, 2, 3, 4, 6, 8].find((step) => step * power >= value * 0.9999) ?? 10);
}

export function makeCharts(calls) {
  const size = Math.max(Math.ceil(calls.length / MOST_BARS), 1);
  const groups = Array.from({ length: Math.ceil(calls.length / size) }, (_, index) => calls.slice(index * size, (index + 1) * size));
  return make("div", { class: "charts" }, MEASURES.map((measure) => makeChart(measure, groups, size)));
}

function makeChart({ title, parts, form, legend, most }, groups, size) {
  const bars = groups.map(parts);
  const heights = bars.map((bar) => bar.reduce((all, [, value]) => all + value, 0));
  const known = heights.filter((_, index) => bars[index].length);
  const head = make("figcaption", {}, make("h3", {}, title));
  if (!known.length) return make("figure", {}, head, make("p", { class: "note" }, "Not known of any call."));
  const top = most ?? roundUp(Math.max(...known));
  const boxes = bars.flatMap((bar, index) => {
    const [first, last] = [groups[index][0], groups[index].at(-1)];
    const label = `${first.call_id}${first === last ? "" : ` to ${last.call_id}`}, ${formatTime(first.at)}: ${form(heights[index])}`;
    let y = CHART_HEIGHT;
    return bar.filter(([, value]) => value).map(([look, value]) => {
      const height = (value / top) * CHART_HEIGHT;
      y -= height;
      return { x: round((100 * index) / bars.length), width: round(86 / bars.length), y: round(y), height: round(height), look, title: label };
    });
  });
  const note = size > 1 ? `Each bar is the mean of ${size} calls.` : Math.max(...known) ? "" : "0 in all calls.";
  const label = `${title} of ${groups.flat().length} model calls: from ${form(Math.min(...known))} to ${form(Math.max(...known))}, ${form(known.at(-1))} at the end. ${note}`.trim();
  return make("figure", {}, head,
    make("div", { class: "plot" }, make("div", { class: "axis", "aria-hidden": "true" }, [form(top), form(top / 2), "0"].map((text) => make("span", {}, text))),
      draw("svg", { width: "100%", height: CHART_HEIGHT, role: "img", "aria-label": label },
        [0.5, CHART_HEIGHT / 2, CHART_HEIGHT - 0.5].map((y) => draw("line", { x1: 0, x2: "100%", y1: y, y2: y, class: "grid" })), drawBoxes(boxes))),
    legend && makeLegend(legend), note && make("p", { class: "note" }, note));
}

// ---- The timeline: a row for each lane, with its runs and operations.

const LANE_HEIGHT = 30;
const MOST_MARKS = 1500;
const SHAPES = {
  configuration: "M-5 -5H5V5H-5Z", summary: "M-6 -5H6L2 1V6H-2V1Z", replace: "M0 -7L7 0L0 7L-7 0Z", switch: "M-6 -6L6 0L-6 6Z", pin: "M0 7L-5 -6H5Z",
  error: "M-6 -4L-4 -6L0 -2L4 -6L6 -4L2 0L6 4L4 6L0 2L-4 6L-6 4L-2 0Z", fork: "M-1 7V0L-6 -5L-4 -7L0 -3L4 -7L6 -5L1 0V7Z", session: "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0 -5 0Z",
};
const LOOKS = { compaction: "summary", expand: "replace", unpin: "pin", withdraw: "error" };
const SHAPE_NAMES = [["configuration", "configuration"], ["switch", "switch of lanes"], ["replace", "context replaced or expanded"], ["summary", "summary, compaction"], ["pin", "pin"], ["fork", "fork"], ["session", "hibernated, woken, closed"], ["error", "error"]];

function drawMark(kind, x, y, title) {
  const look = LOOKS[kind] ?? (kind in SHAPES ? kind : "session");
  return draw("svg", { x, y, class: `mark ${look}` }, title ? draw("title", {}, title) : [], draw("path", { d: SHAPES[look] }));
}

export function makeTimeline({ timeline, entries, first_at: first, last_at: last }) {
  const { lanes, active, runs, operations } = timeline;
  const find = (lane) => Math.max(lanes.indexOf(lane), 0) * LANE_HEIGHT;
  const stretches = active.map((stretch) => ({ ...placeEntries(entries, stretch.first_seq, stretch.last_seq), y: find(stretch.lane) + 4, height: LANE_HEIGHT - 8,
    look: "active", title: `${stretch.lane} is active, entries ${stretch.first_seq} to ${stretch.last_seq}` }));
  const filled = runs.map((run) => {
    const { x, width } = placeEntries(entries, run.first_seq, run.last_seq);
    return { x, width: round(Math.max(width - 0.1, 0.1)), y: find(run.lane) + 9, height: LANE_HEIGHT - 18, look: `run ${run.status ?? "open"}`,
      title: `${run.run_id}, ${run.status ?? "not ended"}, ${duration(run.seconds)}, ${formatTime(run.at)}` };
  });
  const marks = operations.slice(-MOST_MARKS).map(({ kind, seq, at, lane, title }) =>
    drawMark(kind, `${round((100 * (seq + 0.5)) / entries)}%`, find(lane ?? active.findLast((stretch) => stretch.first_seq <= seq)?.lane) + LANE_HEIGHT / 2, `${kind}, entry ${seq}, ${formatTime(at)}: ${title.content}`));
  const label = `${count(lanes.length, "lane")}, ${count(runs.length, "run")} and ${count(operations.length, "operation")} over ${number(entries)} entries.`;
  return make("figure", {},
    make("div", { class: "timeline" }, make("ul", { class: "lanes", "aria-hidden": "true" }, lanes.map((lane) => make("li", {}, lane))),
      draw("svg", { width: "100%", height: LANE_HEIGHT * lanes.length, role: "img", "aria-label": label }, drawBoxes([...stretches, ...filled]), marks)),
    first && make("div", { class: "ticks", "aria-hidden": "true" }, [first, last].map((at) => make("span", {}, formatTime(at)))),
    make("figcaption", {}, makeLegend([["run completed", "run"], ["run failed", "failed"], ["run cancelled", "cancelled"]]),
      make("p", { class: "legend" }, SHAPE_NAMES.map(([kind, name]) => make("span", {}, draw("svg", { width: 16, height: 14, "aria-hidden": "true" }, drawMark(kind, 8, 7)), name)))));
}
