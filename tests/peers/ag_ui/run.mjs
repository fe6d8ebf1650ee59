// Runs a session as an AG-UI client does: the package verifies the order of all events, and applies them to its messages.
import { HttpAgent, verifyEvents } from "@ag-ui/client";

const [address, token, threadId] = process.argv.slice(2);
const tools = [
  { name: "show_map", description: "Show a map.", parameters: { type: "object", properties: { city: { type: "string" } } } },
];
const types = new Set();
const agent = new HttpAgent({
  url: `${address}/v1/ag-ui/run`,
  headers: { Authorization: `Bearer ${token}` },
  threadId,
});
const errors = [];
agent.subscribe({
  onEvent: ({ event }) => void types.add(event.type),
  onRunErrorEvent: ({ event }) => void errors.push(event.message),
  onRunFailed: ({ error }) => void errors.push(String(error)),
});
let number = 0;
const say = async content => {
  agent.addMessage({ id: `said-${(number += 1)}`, role: "user", content });
  return run();
};
let outcome;
agent.subscribe({ onRunFinishedEvent: ({ event }) => void (outcome = event.outcome) });
const run = async (parameters = {}) => {
  outcome = undefined;
  await agent.runAgent({ tools, ...parameters });
  return outcome;
};
const seen = { verifies: typeof verifyEvents };

await say("hello");
seen.hello = agent.messages.at(-1).content;

// Two calls wait for approval, and one for this client.
let ended = await say("mixed");
seen.interrupts = [ended.interrupts.length];
const answer = (interrupt, approved) => ({ interruptId: interrupt.id, status: "resolved", payload: { approved } });
const [first, second] = ended.interrupts;
ended = await run({ resume: [answer(first, true), answer(second, false)] });
seen.pending = ended.pendingToolCallIds.length;
agent.addMessage({ id: "shown", role: "tool", toolCallId: ended.pendingToolCallIds[0], content: "shown" });
ended = await run();
seen.ended = ended.type;
seen.roles = agent.messages.slice(2).map(message => message.role);

console.log(JSON.stringify({ ...seen, types: [...types], errors }));
process.exit(0);
