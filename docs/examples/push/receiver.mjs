// Receives events `message.unreached` of a webhook and calls `push` for each device. PORT is its
// port, SECRET_FILE the file with the secret of the webhook, and DEVICES_FILE a JSON file with the
// devices of each user: {"alice": ["token of a device"]}. Keep them in your database.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { Webhook } from "standardwebhooks"; // npm install standardwebhooks

const { PORT, SECRET_FILE, DEVICES_FILE } = process.env;
const seen = new Set(); // use your database: an event can arrive twice

/** Reports a refusal. Any other error makes the webhook repeat the request. */
function report(error) {
  if (!(error instanceof Refused)) throw error;
  process.stderr.write(`${error.message}\n`);
}

/** Returns the text to show. Clients choose payloads, and push services refuse long texts. */
function textOf(payload) {
  try {
    const { content = "" } = JSON.parse(Buffer.from(payload, "base64"));
    return String(content).slice(0, 500);
  } catch {
    return ""; // not a JSON object
  }
}

/** Error of a push that no repetition helps, such as a device whose app was removed. */
export class Refused extends Error {}

/** `push(device, message)` resolves when the push service has accepted the message. */
export function receive(push) {
  const server = createServer(async (request, response) => {
    const pieces = [];
    for await (const piece of request) pieces.push(piece);
    const reply = (status) => response.writeHead(status).end();
    if (request.method === "GET") return reply(204);
    let content;
    try {
      const webhook = new Webhook(readFileSync(SECRET_FILE, "utf8").trim());
      content = webhook.verify(Buffer.concat(pieces), request.headers);
    } catch {
      return reply(401);
    }
    const devices = JSON.parse(readFileSync(DEVICES_FILE, "utf8"));
    const events = content.type === "batch" ? content.data.events : [content];
    try {
      for (const { id, type, data } of events) {
        if (type !== "message.unreached" || data.gone || seen.has(id)) continue;
        const { from_uid: from, channel_key: channel, payload } = data;
        const message = { id, from, text: textOf(payload), channel };
        const targets = data.uids.flatMap((uid) => devices[uid] ?? []);
        await Promise.all(targets.map((device) => push(device, message).catch(report)));
        seen.add(id);
        process.stdout.write(`pushed ${data.message_seq} to ${data.uids.join(" ")}\n`);
      }
      reply(204);
    } catch (error) {
      process.stderr.write(`${error}\n`);
      reply(503); // the webhook repeats the request
    }
  });
  server.listen(PORT, "127.0.0.1");
}
