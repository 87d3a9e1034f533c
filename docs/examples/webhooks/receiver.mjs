// A receiver of webhooks with Express. PORT is its port, and SECRET_FILE the file with the secret of
// the webhook. Install it with: npm install express standardwebhooks

import { readFileSync } from "node:fs";
import express from "express";
import { Webhook } from "standardwebhooks";

const { PORT, SECRET_FILE } = process.env;
const seen = new Set(); // use your database: an event can arrive twice
const app = express();

app.get("/", (_, response) => response.sendStatus(204));

// The signature is over the bytes of the body, so the body must not be parsed before.
app.post("/hook", express.raw({ type: "*/*", limit: "2mb" }), (request, response) => {
  let content;
  try {
    const webhook = new Webhook(readFileSync(SECRET_FILE, "utf8").trim());
    content = webhook.verify(request.body, request.headers);
  } catch {
    return response.sendStatus(401);
  }
  const events = content.type === "batch" ? content.data.events : [content];
  for (const { id, type, data } of events) {
    if (seen.has(id)) continue;
    seen.add(id);
    process.stdout.write(`${type} ${data.channel_key ?? ""} ${data.message_seq ?? ""}\n`);
  }
  response.sendStatus(204);
});

app.listen(PORT, "127.0.0.1");
