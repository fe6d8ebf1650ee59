// Use a service with the clients from npm, unchanged: they have a base URL and a key. Prints what they got, as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const [baseURL, apiKey, model] = process.argv.slice(2);
const seen = {};

async function collect(stream) {
  let text = "";
  for await (const piece of stream) text += piece;
  return text;
}

// The official client.
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const made = await client.responses.create({ model, input: "one" });
const next = await client.responses.create({ model, input: "two", previous_response_id: made.id });
seen.responses = [made.output_text, next.output_text];
seen.retrieved = (await client.responses.retrieve(next.id)).output_text;

const stream = client.responses.stream({ model, input: "story" });
let deltas = "";
stream.on("response.output_text.delta", (event) => (deltas += event.delta));
seen.streamed = [(await stream.finalResponse()).output_text, deltas];

const conversation = await client.conversations.create({ metadata: { topic: "tea" } });
await client.responses.create({ model, input: "one", conversation: conversation.id });
seen.items = (await client.conversations.items.list(conversation.id)).data.map((item) => item.type);

const chat = client.chat.completions.stream({ model, messages: [{ role: "user", content: "story" }] });
seen.chat = (await chat.finalChatCompletion()).choices[0].message.content;

const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: "Weather?" }],
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "Tell the weather.",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        parse: JSON.parse,
        function: ({ city }) => `sun in ${city}`,
      },
    },
  ],
});
seen.chatTools = await runner.finalContent();

seen.errors = [];
for (const request of [
  () => client.responses.retrieve("resp_unknown"),
  () => client.responses.create({ model, input: "one", truncation: "disabled" }),
  () => new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).responses.create({ model, input: "one" }),
]) {
  try {
    await request();
  } catch (error) {
    seen.errors.push([error.constructor.name, error.code]);
  }
}

// The AI SDK, over the Responses API and over Chat Completions.
const openai = createOpenAI({ baseURL, apiKey });
const tools = {
  get_weather: tool({
    description: "Tell the weather.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sun in ${city}`,
  }),
};
for (const [name, used] of [["sdkResponses", openai(model)], ["sdkChat", openai.chat(model)]]) {
  const generated = await generateText({ model: used, system: "Be brief.", prompt: "one" });
  const streamed = streamText({ model: used, prompt: "story" });
  const story = await collect(streamed.textStream);
  const looped = await generateText({ model: used, tools, stopWhen: isStepCount(4), prompt: "Weather?" });
  const streamedLoop = streamText({ model: used, tools, stopWhen: isStepCount(4), prompt: "Weather?" });
  await streamedLoop.consumeStream();
  const object = await generateText({
    model: used,
    output: Output.object({ schema: z.object({ name: z.string() }) }),
    prompt: "city",
  });
  seen[name] = {
    text: generated.text,
    story,
    usage: generated.usage.outputTokens > 0,
    loop: looped.text,
    steps: looped.steps.length,
    streamedLoop: await streamedLoop.text,
    object: object.output,
  };
}

process.stdout.write(JSON.stringify(seen));
