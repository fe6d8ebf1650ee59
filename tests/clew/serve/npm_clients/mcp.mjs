// Calls an agent as a tool of the MCP server: its progress, an approval that this client answers, and its session.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [address, token] = process.argv.slice(2);
const seen = { asked: [], progress: [] };
const client = new Client(
  { name: "test", version: "1.0.0" },
  { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: "auto" } },
);
client.setRequestHandler("elicitation/create", async request => {
  seen.asked.push(request.params.message);
  return { action: "accept", content: { approved: true } };
});
await client.connect(
  new StreamableHTTPClientTransport(new URL(`${address}/v1/mcp`), {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  }),
);
seen.tools = (await client.listTools()).tools.map(tool => tool.name);
const result = await client.callTool(
  { name: "shop", arguments: { message: "guard" } },
  { onprogress: progress => seen.progress.push(progress.message) },
);
seen.result = result.structuredContent;
const { contents } = await client.readResource({ uri: `clew://sessions/${seen.result.session_id}` });
seen.status = JSON.parse(contents[0].text).status;
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
