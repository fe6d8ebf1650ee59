// A client of AG-UI from npm, against the service of examples/web: `node ag_ui_client.mjs URL`. It prints what it has
// seen as JSON. The client verifies the order of the events, and throws an error if it is wrong.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const url = process.argv[2];

class Chat {
  constructor(threadId, initialMessages = []) {
    this.agent = new HttpAgent({ url, threadId, initialMessages, headers: { Cookie: "user=ann" } });
    this.events = [];
    this.agent.subscribe({
      onEvent: ({ event }) => {
        this.events.push(event.type);
        if (event.type === "TEXT_MESSAGE_CONTENT" && --this.breaksAfter === 0) this.agent.abortRun();
      },
      onRunFinishedEvent: ({ event }) => { this.outcome = event.outcome.type; },
      onRunErrorEvent: ({ event }) => { this.outcome = event.code; },
    });
  }

  async run(text, parameters) {
    this.events = [];
    this.outcome = null;
    if (text) this.agent.addMessage({ id: crypto.randomUUID(), role: "user", content: text });
    await this.agent.runAgent(parameters);
    return { events: this.events, outcome: this.outcome };
  }
}

const seen = {};
const chat = new Chat("npm");
seen.reply = await chat.run("hello");
seen.tools = await chat.run("look");
seen.interrupt = await chat.run("refund");
const { pendingInterrupts } = chat.agent;
const answers = Object.fromEntries(pendingInterrupts.map(({ id }) => [id, { status: "resolved", payload: { approved: true } }]));
seen.resumed = await chat.run(null, { resume: buildResumeArray(pendingInterrupts, answers) });
seen.error = await chat.run("break");
chat.breaksAfter = 3;
seen.aborted = await chat.run("story");
seen.partial = chat.agent.messages.at(-1);
seen.reconnected = await chat.run();
seen.messages = chat.agent.messages;
const other = new Chat("npm");
seen.connected = await other.run();
seen.others = other.agent.messages;
console.log(JSON.stringify(seen));
