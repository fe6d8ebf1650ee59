// The package in Node, with a service at CLEW_URL. The model of CLEW_MODEL does what its messages say.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Clew, ClewError, EMPTY_VIEW, fold } from "clew-client";

const { CLEW_URL: baseUrl, CLEW_KEY: key, CLEW_MODEL: model, CLEW_STORY: story } = process.env;
const clew = new Clew({ baseUrl, key });
const showMap = { name: "show_map", parameters: { type: "object", properties: { city: { type: "string" } } } };
let number = 0;

const open = (options = {}) => clew.open(`node-${process.pid}-${++number}`, { model, tools: ["guarded"], ...options });

/** Fold events until the view is as wanted, and return it. */
async function see(events, isWanted) {
  let view = EMPTY_VIEW;
  for await (const event of events) {
    view = fold(view, event);
    if (isWanted(view)) return view;
  }
  return view;
}

/** A client whose streams are cut after some chunks, again and again, as a proxy does. */
function makeCutting(chunks) {
  const cuts = { count: 0 };
  const fetchAndCut = async (url, request) => {
    const response = await fetch(url, request);
    if (!String(url).includes("/events")) return response;
    let left = chunks;
    const cut = new TransformStream({
      transform(chunk, controller) {
        if (left-- > 0) return controller.enqueue(chunk);
        cuts.count += 1;
        controller.error(new TypeError("terminated"));
      },
    });
    return new Response(response.body.pipeThrough(cut), { status: response.status, headers: response.headers });
  };
  return { cuts, cutting: new Clew({ baseUrl, key: async () => key, fetch: fetchAndCut }) };
}

test("a message, its answer, and what is read of it", async () => {
  const session = await open({ metadata: { user: "ada" } });
  const answer = await session.ask("hello", { metadata: { page: "1" } });
  assert.equal(answer.status, "completed");
  assert.equal(answer.answer, "You said hello");
  assert.deepEqual((await session.messages()).map(message => message.content), ["hello", "You said hello"]);
  const kinds = [];
  for await (const entry of session.entries({ limit: 2 })) kinds.push(entry.kind);
  assert.deepEqual(kinds.filter(kind => kind === "ai_message").length, 2);
  assert.equal((await session.request(answer.request_id).read()).answer, "You said hello");
  assert.equal((await session.status()).status, "idle");
});

test("a repeated message has one effect", async () => {
  const session = await open();
  const ids = [await session.ask("one", { request_id: "r-1" }), await session.ask("one", { request_id: "r-1" })];
  assert.deepEqual(ids.map(answer => answer.request_id), ["r-1", "r-1"]);
  assert.equal((await session.messages()).length, 2);
});

test("a reply grows, and the iteration ends with the request", async () => {
  const session = await open();
  const request = await session.message("story");
  const types = new Set();
  let view = EMPTY_VIEW;
  for await (const event of request.events()) {
    types.add(event.type);
    view = fold(view, event);
  }
  assert.ok(types.has("text"));
  assert.equal(view.messages.at(-1).text, story);
  assert.equal(view.ending.status, "completed");
});

test("the newest report of a tool is in the view while it runs", () => {
  const call = { id: "t-1", name: "count", arguments: {} };
  const payload = { role: "assistant", content: "", tool_calls: [call] };
  const report = { type: "tool_progress", tool_call_id: "t-1", name: "count" };
  const events = [
    { type: "entry", seq: 1, entry: { id: "e-1", seq: 1, kind: "ai_message", payload, refs: {} } },
    { type: "tool_started", tool_call_id: "t-1", name: "count", arguments: {} },
    { ...report, text: "half of it", fraction: 0.5 },
    { ...report, text: "nearly all" },
  ];
  const shown = events.map((_, index) => events.slice(0, index + 1).reduce(fold, EMPTY_VIEW).messages[0].calls[0]);
  assert.deepEqual(shown[2], { ...call, state: "running", progress: "half of it", fraction: 0.5 });
  assert.deepEqual([shown[3].progress, shown[3].fraction], ["nearly all", undefined]);
});

test("streams that are cut go on: each entry once, the whole text, nothing twice", async () => {
  const session = await open();
  const { cuts, cutting } = makeCutting(2);
  const cutSession = cutting.session(session.id);
  for (const follow of [request => cutSession.request(request.id).events(), () => cutSession.events({ from: 0 })]) {
    const request = await session.message("story");
    const seqs = [];
    let view = EMPTY_VIEW;
    for await (const event of follow(request)) {
      if (event.type === "entry") seqs.push(event.seq);
      view = fold(view, event);
      const growing = view.messages.find(message => message.isGrowing);
      if (growing) assert.ok(story.startsWith(growing.text));
      if (view.ending?.requestId === request.id) break;
    }
    assert.deepEqual(seqs, [...new Set(seqs)].sort((one, other) => one - other));
    assert.equal(view.messages.at(-1).text, story);
  }
  assert.ok(cuts.count > 2, `${cuts.count} cuts`);
});

test("approvals, and tools of the caller", async () => {
  const session = await open({ external_tools: [showMap] });
  const guarded = await session.message("guard");
  let view = await see(session.events({ from: 0 }), one => one.waiting.length > 0);
  assert.deepEqual([view.waiting[0].name, view.waiting[0].state], ["guarded", "approval"]);
  assert.deepEqual((await session.waiting()).map(row => row.needs), ["approval"]);
  await session.approve(view.waiting[0].id, { by: "grace" });
  assert.equal((await guarded.result()).answer, "I read: done");

  const denied = await session.message("guard");
  view = await see(session.events({ from: 0 }), one => one.waiting.length > 0);
  await session.deny(view.waiting[0].id, { reason: "no" });
  assert.notEqual((await denied.result()).answer, "I read: done");

  const map = await session.message("map");
  view = await see(session.events({ from: 0 }), one => one.waiting.some(call => call.state === "result"));
  assert.deepEqual(view.waiting[0].arguments, { city: "Rome" });
  await session.submitToolResult(view.waiting[0].id, { shown: "Rome" });
  assert.equal((await map.result()).answer, 'I read: {"shown":"Rome"}');
  view = await see(map.events(), one => one.ending);
  assert.equal(view.messages.flatMap(message => message.calls)[0].state, "finished");
});

test("a steer and a cancellation reach the active request", async () => {
  const session = await open();
  const request = await session.message("long story");
  await see(request.events(), view => view.messages.some(message => message.isGrowing));
  assert.equal((await session.steer("shorter")).request_id, request.id);
  await request.cancel({ reason: "enough" });
  assert.equal((await request.result()).status, "cancelled");
});

test("files", async () => {
  const session = await open();
  const text = "order 1234 arrived broken";
  const blob = await session.upload(new Blob([text]), { name: "note.txt", mediaType: "text/plain" });
  assert.deepEqual([blob.bytes, blob.name], [text.length, "note.txt"]);
  assert.equal(await (await session.readBlob(blob.digest)).text(), text);
});

test("lists of sessions and of agents, a fork, and the end of a session", async () => {
  const user = `user-${process.pid}`;
  const session = await open({ metadata: { user } });
  await session.ask("hello");
  for (let found = []; !found.includes(session.id); ) {
    found = [];
    for await (const row of clew.sessions({ user })) found.push(row.session_id);
  }
  assert.ok(Array.isArray(await clew.agents()));
  const fork = await session.fork();
  assert.notEqual(fork.id, session.id);
  assert.equal((await fork.messages()).length, 2);
  const following = see(session.events({ from: 0 }), () => false);
  await session.close({ reason: "done" });
  assert.equal((await following).status, "closed");
});

test("schedules", async () => {
  const name = `daily-${process.pid}`;
  const made = await clew.schedules.create({
    schedule_id: name,
    message: { content: "hello" },
    session_id: `${name}-chat`,
    config: { model },
    cron: "0 0 1 1 *",
    time_zone: "Europe/Berlin",
    note: "a test",
  });
  assert.deepEqual([made.schedule_id, made.session_id, made.overlap], [name, `${name}-chat`, "skip"]);
  await clew.schedules.trigger(name);
  let state = made;
  while (!state.recent.length || state.running.length) state = await clew.schedules.read(name);
  const answer = await clew.session(`${name}-chat`).request(state.recent[0].request_id).result();
  assert.equal(answer.answer, "You said hello");
  assert.equal((await clew.schedules.pause(name, { note: "later" })).paused, true);
  assert.equal((await clew.schedules.resume(name)).paused, false);
  assert.deepEqual((await clew.schedules.change(name, { cron: "0 6 * * *" })).times, ["0 6 * * *"]);
  for (let rows = []; !rows.some(row => row.schedule_id === name); ) rows = await clew.schedules.list();
  await clew.schedules.delete(name);
  await assert.rejects(clew.schedules.read(name), error => error instanceof ClewError && error.code === "not_found");
});

test("errors have the contract's words", async () => {
  await assert.rejects(
    clew.session("nothing").status(),
    error => error instanceof ClewError && error.code === "not_found" && error.status === 404,
  );
  const stranger = new Clew({ baseUrl, key: "clew_wrong" });
  await assert.rejects(stranger.agents(), error => error.code === "unauthorized" && error.retrySeconds === null);
  const control = new AbortController();
  control.abort(new Error("left"));
  await assert.rejects(clew.session("nothing").status({ signal: control.signal }), /left/);
});
