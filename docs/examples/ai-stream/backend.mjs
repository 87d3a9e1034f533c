// Writes the answers of a model to durable streams: node docs/examples/ai-stream/backend.mjs
// API and CLIENT are the addresses of the broker, PORT is the port of the page. The model is a fake.
import { randomUUID } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { json } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { createBackend } from "../../../dist-backend/backend.js"; // in your backend: "jindou-server"

const { API = "http://127.0.0.1:5001", CLIENT = "ws://127.0.0.1:5200" } = process.env;
const { API_TOKEN, SDK = "dist-client", PORT = "8080" } = process.env;
const JSON_TYPE = { "content-type": "application/json", ...(API_TOKEN && { token: API_TOKEN }) };
const jindou = createBackend({ url: API, token: API_TOKEN });

async function* model(question) {
  yield { type: "tool", name: "clock", output: new Date().toISOString() };
  const answer = `You asked: ${question} A model would answer here, word by word.`;
  for (const word of answer.split(" ")) {
    await sleep(40);
    yield { type: "text", delta: `${word} ` };
  }
}

async function join() {
  const [uid, token] = [randomUUID(), randomUUID()]; // in production: a user of your own login
  await jindou.setUserToken({ uid, token, device_flag: 1 });
  return { uid, token, url: CLIENT };
}

/** Starts an answer. The page gets a signed path, which it can read live or later. */
async function ask({ question, answer }) {
  const path = `/v1/stream/answers/${randomUUID()}`;
  // in production: check that the answer is the user's, because a fork has the data of its source
  const fork = { "stream-forked-from": answer?.path, "stream-fork-offset": answer?.offset };
  const body = answer ? undefined : [{ type: "question", question }];
  const { headers } = await call("PUT", path, body, answer && fork);
  write(path, question).catch(({ message }) => process.stderr.write(`${message}\n`));
  const { url } = await jindou.signStreamUrl({ path, access: "read", expires_in: 86400 });
  return {
    path,
    offset: headers.get("stream-next-offset"),
    signature: new URL(url).search,
    question,
  };
}

async function write(path, question) {
  let number = 0;
  for await (const record of model(question))
    await call("POST", path, [record], {
      "producer-id": "model", // with these headers, a repeated request is not appended again
      "producer-epoch": "0",
      "producer-seq": `${number++}`,
    });
  await call("POST", path, undefined, { "stream-closed": "true" });
}

/** Calls the broker, again while it is away. */
async function call(method, path, records, headers) {
  const init = { method, headers: { ...JSON_TYPE, ...headers }, body: JSON.stringify(records) };
  const reply = await fetch(API + path, init).catch(() => undefined);
  if (reply?.ok) return reply;
  if (reply?.status < 500) throw new Error(await reply.text());
  await sleep(200);
  return call(method, path, records, headers);
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
process.stdout.write(`Open http://127.0.0.1:${PORT}/page.html\n`);
