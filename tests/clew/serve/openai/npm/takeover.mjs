// Read one stream with a client from npm, unchanged. Prints each text that the client hands out, and its end: JSON lines.
import { createOpenAI } from "@ai-sdk/openai";
import { StreamProviderError, streamText } from "ai";
import OpenAI from "openai";

const [baseURL, apiKey, model, name] = process.argv.slice(2);
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const client = new OpenAI({ baseURL, apiKey });
const openai = createOpenAI({ baseURL, apiKey });

async function readResponse() {
  const stream = client.responses.stream({ model, input: "Hi" });
  stream.on("response.output_text.delta", (event) => print({ piece: event.delta }));
  return (await stream.finalResponse()).output_text;
}

async function readCompletion() {
  const stream = client.chat.completions.stream({ model, messages: [{ role: "user", content: "Hi" }] });
  stream.on("content", (delta) => print({ piece: delta }));
  return (await stream.finalChatCompletion()).choices[0].message.content;
}

// The answer of a step is its last text: those before it have the phase `commentary`.
async function readWithSDK(used) {
  let error;
  const streamed = streamText({ model: used, prompt: "Hi", onError: (event) => (error = event.error) });
  for await (const piece of streamed.textStream) print({ piece });
  if (error !== undefined) throw error;
  const texts = (await streamed.content).filter((part) => part.type === "text");
  for (const text of texts.slice(0, -1)) {
    const { phase } = text.providerMetadata.openai;
    if (phase !== "commentary") throw new Error(`a text before the last one has the phase ${phase}`);
  }
  return texts.at(-1).text;
}

const read = {
  "openai responses": readResponse,
  "openai chat": readCompletion,
  "sdk responses": () => readWithSDK(openai(model)),
  "sdk chat": () => readWithSDK(openai.chat(model)),
}[name];
try {
  print({ answer: await read() });
} catch (error) {
  const isTyped = error instanceof OpenAI.APIError || StreamProviderError.isInstance(error);
  print({ error: isTyped ? error.code : String(error) });
}
