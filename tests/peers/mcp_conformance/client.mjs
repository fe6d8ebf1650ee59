// Asks the test's process, which has the client, to run a scenario: node client.mjs ADDRESS URL.
const [address, url] = process.argv.slice(2);
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const response = await fetch(address, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ url, scenario: process.env.MCP_CONFORMANCE_SCENARIO, context }),
});
console.log(await response.text());
process.exitCode = response.ok ? 0 : 1;
