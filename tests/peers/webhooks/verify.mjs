// Verifies a notice: the secret, the id, the time and the signatures of its headers, and the file with its body.
import { readFileSync } from "node:fs";
import { Webhook, WebhookVerificationError } from "standardwebhooks";

const [secret, id, timestamp, signature, body] = process.argv.slice(2);
const headers = { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature };
try {
  new Webhook(secret).verify(readFileSync(body), headers);
} catch (error) {
  if (!(error instanceof WebhookVerificationError)) throw error;
  console.log(`refused: ${error.message}`);
  process.exit(3);
}
