// Calls an agent as a tool of the MCP server, in a version of the protocol: its progress, an approval that this client
// answers, a call that it cancels, and its sessions.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [address, token, protocol, story] = process.argv.slice(2);
// The client's own 60 s are too few for a busy machine.
const timeout = 300_000;
const seen = { asked: [], progress: [] };
const versions =
  protocol === "2026-07-28"
    ? { versionNegotiation: { mode: "auto" } }
    : { versionNegotiation: { mode: "legacy" }, supportedProtocolVersions: [protocol] };
const client = new Client(
  { name: "test", version: "1.0.0" },
  { capabilities: { elicitation: { form: {} } }, ...versions },
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
seen.protocol = client.getNegotiatedProtocolVersion();
seen.tools = (await client.listTools()).tools.map(tool => tool.name);
const result = await client.callTool(
  { name: "shop", arguments: { message: "guard" } },
  { timeout, onprogress: progress => seen.progress.push(progress.message) },
);
seen.result = result.structuredContent;
const { contents } = await client.readResource({ uri: `clew://sessions/${seen.result.session_id}` });
seen.status = JSON.parse(contents[0].text).status;
const cancelling = new AbortController();
await client
  .callTool(
    { name: "shop", arguments: { message: "long story", session_id: story } },
    { timeout, signal: cancelling.signal, onprogress: () => cancelling.abort() },
  )
  .catch(error => (seen.cancelled = String(error)));
await client.close();
console.log(JSON.stringify(seen));
process.exit(0);
