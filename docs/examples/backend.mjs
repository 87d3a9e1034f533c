// A backend for the two pages beside it, on Node.js: node docs/examples/backend.mjs
// API and CLIENT are the addresses of the broker, PORT is the port of the pages.
import { randomBytes, randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { createBackend } from "../../dist-backend/backend.js"; // in your backend: "jindou-server"

const { API = "http://127.0.0.1:5001", CLIENT = "ws://127.0.0.1:5200" } = process.env;
const { API_TOKEN, SDK = "dist-client", PORT = "8080" } = process.env;
const LOBBY = { channel_id: "lobby", channel_type: 2 };
const jindou = createBackend({ url: API, token: API_TOKEN });
const tokens = new Map(); // in production: a database, behind your own login

async function join({ name: uid }) {
  if (!tokens.has(uid)) tokens.set(uid, randomBytes(24).toString("base64url"));
  const token = tokens.get(uid); // one for all pages of the user: a new token ends their sessions
  await jindou.setUserToken({ uid, token, device_flag: 1 });
  await jindou.addSubscribers({ ...LOBBY, subscribers: [uid] });
  return { uid, token, url: CLIENT };
}

async function ask({ uid, token, question }) {
  if (!token || tokens.get(uid) !== token) throw new Error("Join first.");
  const bot = { from_uid: "bot", channel_id: uid, channel_type: 1, client_msg_no: randomUUID() };
  const post = (type, data) => jindou.sendEvent({ ...bot, event: { type, data } }, { force: "1" });
  await post("___TextMessageStart", "");
  const answer = `You asked: ${question} A model would answer here, word by word.`;
  write(post, answer).catch(({ message }) => process.stderr.write(`${message}\n`));
  return {};
}

async function write(post, answer) {
  for (const word of answer.split(" ")) {
    const { stream } = await post("___TextMessageContent", `${word} `);
    if (stream.state !== "active") return; // the reader has stopped the stream
    await sleep(80);
  }
  await post("___TextMessageEnd", "");
}

createServer(async (request, response) => {
  try {
    const action = { "POST /join": join, "POST /ask": ask }[`${request.method} ${request.url}`];
    if (action) return response.end(JSON.stringify(await action(await json(request))));
    const [, name, type] = /^\/(?:sdk\/)?([\w-]+\.(html|js))$/.exec(request.url);
    const content = await readFile(`${type === "js" ? SDK : import.meta.dirname}/${name}`);
    response.setHeader("content-type", type === "js" ? "text/javascript" : "text/html");
    response.end(content);
  } catch (error) {
    response.writeHead(400).end(error.message);
  }
}).listen(PORT, "127.0.0.1");
await jindou.createChannel(LOBBY).catch((error) => {
  if (error.code !== "channel_exists") throw error;
});
process.stdout.write(`Open http://127.0.0.1:${PORT}/chat.html or /ai.html\n`);
