// Receives events `message.unreached` of a webhook and calls `push` for each device. PORT is its
// port, SECRET_FILE the file with the secret of the webhook, and DEVICES_FILE a JSON file with the
// devices of each user: {"alice": ["token of a device"]}. Keep them in your database.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { buffer } from "node:stream/consumers";
import { Webhook } from "standardwebhooks"; // npm install standardwebhooks

const { PORT, SECRET_FILE, DEVICES_FILE } = process.env;
const seen = new Set(); // use your database: an event can arrive twice

/** `push(device, message)` resolves when the push service has accepted the message. */
export function receive(push) {
  const pushEvent = async ({ id, type, data }) => {
    if (type !== "message.unreached" || data.gone || seen.has(id)) return;
    const { from_uid: from, channel_key: channel, payload, uids } = data;
    const message = { id, from, text: textOf(payload), channel };
    const devices = JSON.parse(readFileSync(DEVICES_FILE, "utf8"));
    const targets = uids.flatMap((uid) => devices[uid] ?? []);
    await Promise.all(targets.map((device) => push(device, message)));
    seen.add(id);
    process.stdout.write(`pushed ${data.message_seq} to ${uids.join(" ")}\n`);
  };
  const server = createServer(async (request, response) => {
    const content = await verified(request).catch(() => undefined);
    if (content === undefined) return response.writeHead(401).end();
    try {
      const events = content.type === "batch" ? content.data.events : [content];
      for (const event of events) await pushEvent(event);
      response.writeHead(204).end();
    } catch (error) {
      process.stderr.write(`${error}\n`);
      response.writeHead(503).end(); // the webhook repeats the request
    }
  });
  server.listen(PORT, "127.0.0.1");
}

async function verified(request) {
  const webhook = new Webhook(readFileSync(SECRET_FILE, "utf8").trim());
  return webhook.verify(await buffer(request), request.headers);
}

/** Throws if a push must be repeated. A device with a status in `gone` is to be deleted. */
export function check(service, status, gone) {
  const error = `${service} replied ${status}`;
  if (gone.includes(status)) process.stderr.write(`${error}\n`);
  else if (status >= 300) throw new Error(error);
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
