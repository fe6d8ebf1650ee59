// Chats with the service as `useChat` does, without a page. Every chunk passes the package's own validator, for the
// transport ends a stream with one that does not.
import { Chat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  uiMessageChunkSchema,
  validateUIMessages,
} from "ai";

const [address, token, id] = process.argv.slice(2);
const headers = { Authorization: `Bearer ${token}` };
const external_tools = [
  { name: "show_map", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
];
const types = new Set();
const errors = [];
const seen = {};

function makeChat(id, messages = []) {
  const chat = new Chat({
    id,
    messages,
    transport: new DefaultChatTransport({ api: `${address}/v1/ui/chat`, headers, body: { external_tools } }),
    sendAutomaticallyWhen: options =>
      lastAssistantMessageIsCompleteWithApprovalResponses(options) ||
      lastAssistantMessageIsCompleteWithToolCalls(options),
    onToolCall({ toolCall }) {
      if (toolCall.toolName === "show_map") {
        chat.addToolOutput({ tool: "show_map", toolCallId: toolCall.toolCallId, output: { shown: toolCall.input.city } });
      }
    },
    onFinish({ finishReason }) {
      seen.finished = [...(seen.finished ?? []), finishReason];
    },
    onError(error) {
      errors.push(String(error));
    },
  });
  return chat;
}

const until = async condition => {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 20));
};
const read = message => message.parts.filter(part => part.type === "text").map(part => part.text);
const note = message => message.parts.forEach(part => types.add(part.type));

const chat = makeChat(id);
await chat.sendMessage({ text: "hello" });
seen.hello = read(chat.lastMessage);

await chat.sendMessage({ text: "guard and add" });
const guarded = chat.lastMessage.parts.find(part => isToolUIPart(part) && part.state === "approval-requested");
seen.requested = guarded.type;
await chat.addToolApprovalResponse({ id: guarded.approval.id, approved: true });
await until(() => chat.status === "ready" && read(chat.lastMessage).length > 1);
seen.approved = read(chat.lastMessage).at(-1);
note(chat.lastMessage);

// Two calls wait. A page sends nothing before both are decided; one that does hears of the other again.
await chat.sendMessage({ text: "guard twice" });
const waiting = () => chat.lastMessage.parts.filter(part => isToolUIPart(part) && part.state === "approval-requested");
seen.waiting = [waiting().length];
const [first, second] = waiting();
await chat.addToolApprovalResponse({ id: first.approval.id, approved: true });
await chat.sendMessage();
seen.waiting.push(waiting().length);
await chat.addToolApprovalResponse({ id: second.approval.id, approved: false });
await until(() => chat.status === "ready" && read(chat.lastMessage).length > 0);
seen.decided = chat.lastMessage.parts.filter(isToolUIPart).map(part => part.state);

// A page that is reloaded gets the message again; one of a chat that is new gets nothing, and no error.
const reloaded = makeChat(id, chat.messages.slice(0, -1));
await reloaded.resumeStream();
seen.reloaded = reloaded.lastMessage.parts.filter(isToolUIPart).map(part => part.state);
const fresh = makeChat(`${id}-new`);
await fresh.resumeStream();
seen.fresh = [fresh.status, fresh.messages.length];

await chat.sendMessage({ text: "cut" });

await chat.sendMessage({ text: "map" });
await until(() => chat.status === "ready" && read(chat.lastMessage).length > 0);
seen.mapped = read(chat.lastMessage).at(-1);
note(chat.lastMessage);

const before = chat.messages.length;
const sending = chat.sendMessage({ text: "story" });
await until(() => chat.messages.length === before + 2 && read(chat.lastMessage).join("").length > 0);
seen.partial = read(chat.lastMessage).join("");
const partial = structuredClone(chat.messages);
await chat.stop();
await sending;
const other = makeChat(chat.id, partial.slice(0, -1));
await other.resumeStream();
seen.story = read(other.lastMessage).join("");
await other.resumeStream();

const response = await fetch(`${address}/v1/ui/chat/${chat.id}/messages`, { headers });
const listed = await response.json();
await validateUIMessages({ messages: listed });
seen.listed = listed.map(message => [message.role, message.parts.filter(part => part.type === "text").length]);

const stream = await fetch(`${address}/v1/ui/chat`, {
  method: "POST",
  headers: { ...headers, "content-type": "application/json" },
  body: JSON.stringify({ id: chat.id, messages: [{ id: "last", role: "user", parts: [{ type: "text", text: "bye" }] }] }),
});
const lines = (await stream.text()).split("\n").filter(line => line.startsWith("data: {"));
const validate = (typeof uiMessageChunkSchema === "function" ? uiMessageChunkSchema() : uiMessageChunkSchema).validate;
const checked = await Promise.all(lines.map(line => validate(JSON.parse(line.slice(6)))));
seen.valid = checked.every(result => result.success) && checked.length > 3;

console.log(JSON.stringify({ ...seen, types: [...types], errors }));
process.exit(0);
