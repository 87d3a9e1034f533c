// Tests of docs/push.md: its commands and each of its receivers work. Servers on loopback stand in
// for the push services. They verify the credentials of each request.

import {
  createDecipheriv,
  createECDH,
  createPublicKey,
  generateKeyPairSync,
  hkdfSync,
  type KeyObject,
  randomBytes,
  verify,
} from "node:crypto";
import { once } from "node:events";
import { cp, mkdir, symlink, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { createServer as createServer2 } from "node:http2";
import type { AddressInfo, Server } from "node:net";
import { join } from "node:path";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { FOLDER } from "../webhooks/packages.ts";
import { blocks, ROOT, readPage } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const RECEIVER = /node docs\/examples\/push\/(\w+)\.mjs/;

async function listen(t: Test, server: Server): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.teardown(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

async function bodyOf(request: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece);
  return Buffer.concat(pieces);
}

function startServer(
  t: Test,
  reply: (request: IncomingMessage, body: Buffer, response: ServerResponse) => void,
): Promise<string> {
  const server = createServer(async (request, response) => {
    reply(request, await bodyOf(request), response);
  });
  t.teardown(() => server.closeAllConnections());
  return listen(t, server);
}

/** Returns the claims of a JWT whose signature is correct. */
function claimsOf(token: string, key: KeyObject): Readonly<Record<string, unknown>> {
  const [head = "", claims = "", signature = ""] = token.split(".");
  const options = { key, dsaEncoding: "ieee-p1363" as const };
  const content = Buffer.from(`${head}.${claims}`);
  if (!verify("sha256", content, options, Buffer.from(signature, "base64url")))
    throw new Error("the signature is wrong");
  return JSON.parse(Buffer.from(claims, "base64url").toString());
}

/**
 * Follows the instructions of the page with one of its receivers. Returns the output of the last
 * command, and the output that the page shows.
 */
async function follow(
  t: Test,
  receiver: string,
  env: Readonly<Record<string, string>>,
  files: Readonly<Record<string, string>> = {},
): Promise<{ readonly printed: string; readonly shown: string }> {
  const folder = await tempFolder(t);
  for (const name of ["dist", "node_modules"]) await symlink(join(ROOT, name), join(folder, name));
  const examples = join(folder, "docs/examples/push");
  await mkdir(examples, { recursive: true });
  await cp(join(ROOT, "docs/examples/push"), examples, { recursive: true });
  await symlink(join(FOLDER, "node_modules"), join(examples, "node_modules"));
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
  const [api, client, port] = [await freePort(), await freePort(), await freePort()];
  const terminal = openTerminal(t, folder, {
    ...{ JINDOU_API_LISTEN: `127.0.0.1:${api}`, JINDOU_CLIENT_LISTEN: `127.0.0.1:${client}` },
    ...env,
  });
  let printed = "";
  let shown = "";
  for (const { language, text } of blocks(readPage("docs/push.md"))) {
    const [, name = receiver] = RECEIVER.exec(text) ?? [];
    if (language === "text") shown = text;
    if (language !== "sh" || name !== receiver) continue;
    printed = await terminal.run(text.replaceAll(":5001", `:${api}`).replaceAll("8080", `${port}`));
  }
  return { printed: printed.trim(), shown: shown.trim() };
}

t.test("each receiver of docs/push.md has at most 30 lines", async (t) => {
  const names = readPage("docs/push.md").matchAll(new RegExp(RECEIVER, "g"));
  for (const [, name] of names) {
    const lines = readPage(`docs/examples/push/${name}.mjs`).trim().split("\n");
    t.ok(lines.length <= 30, `${name} has ${lines.length} lines`);
  }
});

t.test("the FCM receiver of docs/push.md sends push notifications to Android", async (t) => {
  const { privateKey, publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  const pushes: unknown[] = [];
  const url = await startServer(t, (request, body, response) => {
    if (request.url === "/token") {
      const assertion = new URLSearchParams(body.toString()).get("assertion") ?? "";
      const { iss, aud } = claimsOf(assertion, publicKey);
      t.strictSame([iss, aud], ["push@example.com", `${url}/token`]);
      return response.end('{"access_token":"granted","expires_in":3600}');
    }
    t.equal(request.headers.authorization, "Bearer granted");
    pushes.push([request.url, JSON.parse(body.toString())]);
    return response.end("{}");
  });
  const account = JSON.stringify({
    ...{ project_id: "chat", client_email: "push@example.com", token_uri: `${url}/token` },
    private_key: privateKey.export({ type: "pkcs8", format: "pem" }),
  });
  const { printed, shown } = await follow(t, "fcm", { FCM_URL: url }, { "account.json": account });
  t.equal(printed, shown);
  t.strictSame(pushes, [
    [
      "/v1/projects/chat/messages:send",
      {
        message: {
          token: "registration-token",
          notification: { title: "bob", body: "hi" },
          data: { channel: "1:alice@bob" },
        },
      },
    ],
  ]);
});

t.test("the APNs receiver of docs/push.md sends push notifications to iOS", async (t) => {
  const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "prime256v1" });
  const pushes: unknown[] = [];
  const server = createServer2();
  server.on("stream", async (stream, headers) => {
    const { authorization = "", ":path": path, "apns-topic": topic } = headers;
    t.equal(claimsOf(authorization.replace("bearer ", ""), publicKey).iss, "DEF123GHIJ");
    pushes.push([path, topic, JSON.parse((await bodyOf(stream)).toString())]);
    stream.respond({ ":status": 200 });
    stream.end();
  });
  server.on("session", (session) => t.teardown(() => session.destroy()));
  const url = await listen(t, server);
  const key = privateKey.export({ type: "pkcs8", format: "pem" }).toString();
  const { printed, shown } = await follow(t, "apns", { APNS_URL: url }, { "AuthKey.p8": key });
  t.equal(printed, shown);
  t.strictSame(pushes, [
    [
      "/3/device/00fc13adff785122b4ad28809a3420982341241421348097878e577c991de8f0",
      "com.example.chat",
      { aps: { alert: { title: "bob", body: "hi" }, "thread-id": "1:alice@bob" } },
    ],
  ]);
});

t.test("the web push receiver of docs/push.md sends push notifications to browsers", async (t) => {
  const browser = createECDH("prime256v1");
  const p256dh = browser.generateKeys();
  const auth = randomBytes(16);
  const pushes: unknown[] = [];
  const url = await startServer(t, (request, body, response) => {
    const [, token = "", point = ""] =
      /^vapid t=(\S+), k=(\S+)$/.exec(request.headers.authorization ?? "") ?? [];
    const raw = Buffer.from(point, "base64url");
    const jwk = {
      ...{ kty: "EC", crv: "P-256" },
      x: raw.subarray(1, 33).toString("base64url"),
      y: raw.subarray(33).toString("base64url"),
    };
    const key = createPublicKey({ key: jwk, format: "jwk" });
    t.equal(claimsOf(token, key).aud, url);
    if (request.url === "/push/gone") return response.writeHead(410).end();
    if (request.url === "/push/invalid") return response.writeHead(400).end();
    pushes.push(JSON.parse(decrypted(body)));
    return response.writeHead(201).end();
  });
  /** Decrypts a body as a browser does [RFC 8291]. */
  const decrypted = (body: Buffer): string => {
    const [salt, sender, content] = [
      body.subarray(0, 16),
      body.subarray(21, 86),
      body.subarray(86),
    ];
    const derive = (secret: Buffer, from: Buffer, info: Buffer | string, bytes: number) =>
      Buffer.from(hkdfSync("sha256", secret, from, info, bytes));
    const info = Buffer.concat([Buffer.from("WebPush: info\0"), p256dh, sender]);
    const secret = derive(browser.computeSecret(sender), auth, info, 32);
    const key = derive(secret, salt, "Content-Encoding: aes128gcm\0", 16);
    const nonce = derive(secret, salt, "Content-Encoding: nonce\0", 12);
    const decipher = createDecipheriv("aes-128-gcm", key, nonce);
    decipher.setAuthTag(content.subarray(-16));
    const text = Buffer.concat([decipher.update(content.subarray(0, -16)), decipher.final()]);
    return text.subarray(0, -1).toString(); // the last byte ends the record
  };
  const keys = { p256dh: p256dh.toString("base64url"), auth: auth.toString("base64url") };
  const alice = ["gone", "invalid", "1"].map((id) => ({ endpoint: `${url}/push/${id}`, keys }));
  const devices = JSON.stringify({ alice });
  const { printed, shown } = await follow(t, "webpush", {}, { "devices.json": devices });
  const lines = ["The push service replied 400", "The push service replied 410", shown];
  t.strictSame(printed.split("\n").sort(), lines, "devices that the service refuses are reported");
  t.match(pushes, [{ from: "bob", text: "hi", channel: "1:alice@bob" }]);
  t.equal(pushes.length, 1, "only the device that the service accepts gets a push");
});
