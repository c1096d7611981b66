// Verifies one request with the reference library of Standard Webhooks. Reads it from the standard
// input, and prints `accepted` or `rejected`. The argument is the directory of the npm package.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/`);
const { Webhook, WebhookVerificationError } = require("standardwebhooks");
const { secret, headers, body } = JSON.parse(readFileSync(0, "utf8"));
try {
  new Webhook(secret).verify(body, headers);
  console.log("accepted");
} catch (error) {
  if (!(error instanceof WebhookVerificationError)) throw error;
  console.log("rejected");
}
