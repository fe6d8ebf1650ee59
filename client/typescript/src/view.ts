/** What a page shows of a session, folded from its events. Pure: each event makes a new value. */

import type { SessionEvent } from "./events.js";
import type { Content } from "./session.js";
import type { Entry, OutcomeError, ToolCall } from "./openapi.js";

/** A tool call. */
export interface Call {
  id: string;
  name: string;
  arguments: Record<string, unknown>;
  /** `approval`: a person decides; `result`: the caller answers; `failed`: its result describes a failure. */
  state: "called" | "running" | "approval" | "result" | "finished" | "failed";
  /** The newest report of its progress. */
  progress?: string;
  /** The part of the work that is done, from 0 to 1, if the report has it. */
  fraction?: number | undefined;
  /** The result that the model reads. */
  result?: Content;
  /** The session in which it is decided: a subagent's; absent: this one. */
  sessionId?: string;
}

/** A message of a user, or a reply of a model. */
export interface Message {
  /** The id of its entry; of a reply that grows, that of the model call. */
  id: string;
  role: "user" | "assistant";
  text: string;
  /** The text, or the parts. */
  content: Content;
  /** The model's reasoning, if the provider sends it. */
  thinking: string;
  calls: Call[];
  requestId?: string;
  /** Whether a model writes it at the moment. */
  isGrowing: boolean;
  /** Whether it was cut short, by a cancellation or a failure. */
  isInterrupted: boolean;
}

/** How a request has ended. */
export interface Ending {
  requestId: string;
  status: "completed" | "failed" | "cancelled";
  reason: string;
  error?: OutcomeError;
}

/** A session as a page shows it. */
export interface SessionView {
  /** The session's status, such as `idle`; `unknown` until the first event. */
  status: string;
  messages: readonly Message[];
  /** The calls that wait for a person or for the page, also those of subagents. */
  waiting: readonly Call[];
  /** The request that has ended last. */
  ending?: Ending;
}

/** The view before the first event. */
export const EMPTY_VIEW: SessionView = { status: "unknown", messages: [], waiting: [] };

/** Fold an event into a view. */
export function fold(view: SessionView, event: SessionEvent): SessionView {
  switch (event.type) {
    case "status":
      return { ...view, status: event.status };
    case "entry":
      return foldEntry(view, event.entry);
    case "text":
    case "thinking": {
      const reply = findGrowing(view, event.call_id) ?? makeReply(event.call_id, event.request_id);
      const field = event.type;
      // Characters are Unicode's, of which some are two of JavaScript's.
      const text = [...reply[field]].slice(0, event.offset).join("") + event.text;
      const grown = { ...reply, [field]: text };
      return putGrowing(view, { ...grown, content: grown.text });
    }
    case "restarted": {
      const reply = findGrowing(view, event.call_id);
      return reply ? putGrowing(view, { ...reply, text: "", content: "", thinking: "" }) : view;
    }
    case "tool_started":
      return putCall(view, { id: event.tool_call_id, name: event.name, arguments: event.arguments, state: "running" });
    case "tool_progress":
      return changeCall(view, event.tool_call_id, {
        state: "running",
        progress: event.text,
        fraction: event.fraction,
      });
    case "tool_finished":
      return changeCall(view, event.tool_call_id, { state: event.is_error ? "failed" : "finished" });
    case "approval_required":
      return putCall(view, { id: event.tool_call_id, name: event.name, arguments: event.arguments, state: "approval" });
    case "result_required":
      return putCall(view, { id: event.tool_call_id, name: event.name, arguments: event.arguments, state: "result" });
    case "subagent_waiting":
      return putWaiting(view, {
        id: event.tool_call_id,
        name: event.name,
        arguments: event.arguments,
        state: event.needs,
        sessionId: event.session_id,
      });
    case "retrying":
      return view;
  }
}

/** Take a call out of those that wait: it was decided or answered. */
export function settle(view: SessionView, callId: string): SessionView {
  return changeCall(view, callId, { state: "running" });
}

function foldEntry(view: SessionView, entry: Entry): SessionView {
  if (entry.kind === "approval" && entry.payload.decision === "approve") {
    return settle(view, entry.payload.tool_call_id);
  }
  if (entry.kind === "run") {
    const { status, termination_reason, error } = entry.payload;
    const ending: Ending = { requestId: entry.refs.request_id ?? "", status, reason: termination_reason };
    const messages = view.messages.filter(message => !message.isGrowing);
    return { ...view, messages, waiting: [], ending: error ? { ...ending, error } : ending };
  }
  if (entry.kind !== "ai_message") {
    return view;
  }
  const said = entry.payload;
  if (said.role === "tool") {
    const changed = changeCall(view, said.tool_call_id, {
      state: said.is_error ? "failed" : "finished",
      result: said.content,
    });
    return { ...changed, waiting: changed.waiting.filter(call => call.id !== said.tool_call_id) };
  }
  const message: Message = {
    id: entry.id,
    role: said.role,
    text: joinText(said.content),
    content: said.content,
    thinking: said.role === "assistant" ? (said.thinking ?? "") : "",
    calls: said.role === "assistant" ? (said.tool_calls ?? []).map(makeCall) : [],
    isGrowing: false,
    isInterrupted: said.role === "assistant" && said.interrupted === true,
  };
  const requestId = entry.refs.request_id;
  const others = said.role === "assistant" ? view.messages.filter(one => !one.isGrowing) : [...view.messages];
  // A reply that grows stays behind what was said meanwhile.
  const place = others.findIndex(one => one.isGrowing);
  others.splice(place < 0 ? others.length : place, 0, requestId === undefined ? message : { ...message, requestId });
  return { ...view, messages: others };
}

function joinText(content: Content): string {
  return typeof content === "string"
    ? content
    : content.map(one => (one.type === "text" ? one.text : "")).filter(Boolean).join("\n\n");
}

function makeCall(call: ToolCall): Call {
  return { id: call.id, name: call.name, arguments: call.arguments, state: "called" };
}

function makeReply(callId: string, requestId?: string): Message {
  const reply: Message = {
    id: callId,
    role: "assistant",
    text: "",
    content: "",
    thinking: "",
    calls: [],
    isGrowing: true,
    isInterrupted: false,
  };
  return requestId === undefined ? reply : { ...reply, requestId };
}

function findGrowing(view: SessionView, callId: string): Message | undefined {
  return view.messages.find(message => message.isGrowing && message.id === callId);
}

function putGrowing(view: SessionView, reply: Message): SessionView {
  return { ...view, messages: [...view.messages.filter(message => !message.isGrowing), reply] };
}

function putCall(view: SessionView, call: Call): SessionView {
  const { id, ...change } = call;
  const changed = changeCall(view, id, change);
  return call.state === "running" ? changed : putWaiting(changed, call);
}

function putWaiting(view: SessionView, call: Call): SessionView {
  return { ...view, waiting: [...view.waiting.filter(one => one.id !== call.id), call] };
}

function changeCall(view: SessionView, callId: string, change: Partial<Call>): SessionView {
  const messages = view.messages.map(message =>
    message.calls.some(call => call.id === callId)
      ? { ...message, calls: message.calls.map(call => (call.id === callId ? { ...call, ...change } : call)) }
      : message,
  );
  const waits = change.state === "approval" || change.state === "result";
  return { ...view, messages, waiting: waits ? view.waiting : view.waiting.filter(call => call.id !== callId) };
}
