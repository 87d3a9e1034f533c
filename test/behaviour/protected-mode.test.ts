// Protected mode on a real node: which configurations need a credential, which calls stay open, and
// which configurations do not start.

import { connect } from "node:net";
import { ConfigError } from "../../src/config/errors.ts";
import { jindou } from "../main/jindou.ts";
import { type Settings, tempFolder } from "../support/broker.ts";
import { proxyHeader, proxyHeader6 } from "../support/proxy-header.ts";
import { t } from "../support/suite.ts";
import { startWorld, type World } from "./world.ts";

const PASSWORD = { JINDOU_ADMIN_PASSWORD: "right" };
const TOKEN = { JINDOU_API_TOKEN: "static-token-of-tests" };
const MANAGERS = {
  JINDOU_MANAGERS: '[{"username":"m","password":"p","role":"admin"}]',
};
const EVERYWHERE = { JINDOU_API_LISTEN: "0.0.0.0:0" };
const REQUIRED = { JINDOU_AUTH_API: "required" };

/** A node whose API needs no credential. */
const open = await startWorld(t);

/** Returns method and path of every endpoint in the node's OpenAPI document. */
async function endpoints(world: World, headers: Settings = {}) {
  const { body } = await world.call("/openapi.json", undefined, headers);
  return Object.entries<object>(body.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => ({ method, path })),
  );
}

/** Calls an endpoint with its method, and with an empty JSON object if the method has a body. */
async function callEndpoint(
  { apiPort }: World,
  { method, path }: { readonly method: string; readonly path: string },
  headers: Settings = {},
): Promise<Response> {
  const hasBody = method === "post" || method === "patch";
  const response = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
    method: method.toUpperCase(),
    headers: { ...headers, ...(hasBody && { "content-type": "application/json" }) },
    ...(hasBody && { body: "{}" }),
  });
  await response.body?.cancel();
  return response;
}

// Covers [decisions: Who needs it]
for (const [configuration, settings] of [
  ["default settings", {}],
  ["an admin password", PASSWORD],
  ["managers", MANAGERS],
  ["a host name", { JINDOU_API_LISTEN: "localhost:0" }],
] as const)
  t.test(
    `on a node with ${configuration}, calls over loopback need no credential, but a wrong credential is refused`,
    async (t) => {
      const world = await startWorld(t, settings);
      t.same(await world.ok("/user/onlinestatus", []), []);
      t.equal((await world.call("/metrics")).status, 200);
      const headers = { authorization: "Bearer wrong" };
      const response = await world.call("/metrics", undefined, headers);
      t.match(response, { status: 401, body: { code: "unauthorized" } });
    },
  );

// Covers [decisions: Who needs it; decisions: Other statuses 401]
for (const [configuration, settings] of [
  ["on loopback with a static token", TOKEN],
  ["on loopback with auth.api required", { ...REQUIRED, ...PASSWORD }],
  ["beyond loopback with a static token", { ...EVERYWHERE, ...TOKEN }],
  ["beyond loopback with an admin password", { ...EVERYWHERE, ...PASSWORD }],
  ["beyond loopback with managers", { ...EVERYWHERE, ...MANAGERS }],
] as const)
  t.test(
    `every endpoint except /, /manager/login, /healthz and /readyz needs a credential if the node listens ${configuration}`,
    async (t) => {
      const world = await startWorld(t, settings);
      const publicPaths = ["/", "/manager/login", "/healthz", "/readyz"];
      for (const { method, path } of await endpoints(open)) {
        const response = await callEndpoint(world, { method, path });
        t.equal(
          response.status === 401,
          !publicPaths.includes(path),
          `${path} is answered with ${response.status}`,
        );
        if (response.status !== 401) continue;
        t.equal(response.headers.get("www-authenticate"), "Bearer");
      }
    },
  );

// Covers [decisions: Access token]
t.test(
  "the static token in the header `token` is accepted by every endpoint except /manager/logout, and any other value is refused",
  async (t) => {
    const world = await startWorld(t, { ...TOKEN, ...PASSWORD });
    const credential = { token: TOKEN.JINDOU_API_TOKEN };
    for (const { method, path } of await endpoints(world, credential)) {
      if (path === "/manager/logout") continue; // needs an access token to revoke
      const { status } = await callEndpoint(world, { method, path }, credential);
      t.notOk([401, 403].includes(status), `${path} is answered with ${status}`);
    }
    for (const token of [
      "",
      "static",
      `${TOKEN.JINDOU_API_TOKEN}2`,
      TOKEN.JINDOU_API_TOKEN.toUpperCase(),
    ]) {
      const { status } = await world.call("/metrics", undefined, { token });
      t.equal(status, 401);
    }
    const body = { username: "admin", password: "right" };
    const login = await world.call("/manager/login", body);
    const headers = { authorization: `Bearer ${login.body.token}` };
    const read = await world.call("/metrics", undefined, headers);
    t.equal(read.status, 200, "an access token is accepted as well");
  },
);

// Covers [decisions: Who needs it]
t.test(
  "a process that listens beyond loopback without a password or token exits and names the settings to set",
  async (t) => {
    const exit = await jindou(t, ["start"], {
      env: { JINDOU_STORE_PATH: await tempFolder(t), ...EVERYWHERE },
    });
    t.equal(exit.code, 2);
    for (const name of ["JINDOU_API_TOKEN", "JINDOU_ADMIN_PASSWORD"])
      t.ok(exit.stderr.includes(name), `the error names ${name}`);
    t.equal(exit.stdout, "", "the process logs nothing");
  },
);

// Covers [decisions: Who needs it]
for (const [address, settings] of [
  ["[::]", { JINDOU_API_LISTEN: "[::]:0" }],
  ["an address without a host", { JINDOU_API_LISTEN: ":0" }],
  ["a host name", { JINDOU_API_LISTEN: "example.com:0" }],
  ["every address and auth.api is required", { ...EVERYWHERE, ...REQUIRED }],
] as const)
  t.test(
    `a node without a password or token does not start if it listens on ${address}`,
    async (t) => {
      await t.rejects(startWorld(t, settings), ConfigError);
    },
  );

// Covers [decisions: Who needs it]
t.test(
  "a call that a proxy forwarded is refused with 403 without a credential, and accepted with a credential",
  async (t) => {
    const world = await startWorld(t, PASSWORD);
    const { body } = await world.call("/manager/login", { username: "admin", password: "right" });
    for (const [name, value] of [
      ["x-forwarded-for", "203.0.113.7"],
      ["x-forwarded-host", "chat.example.com"],
      ["x-forwarded-proto", "https"],
      ["x-real-ip", "203.0.113.7"],
      ["forwarded", "for=203.0.113.7"],
      ["via", "1.1 proxy"],
    ] as const) {
      const forwarded = { [name]: value };
      const refused = await world.call("/user/onlinestatus", [], forwarded);
      t.match(refused, { status: 403, body: { code: "forbidden" } }, name);
      const headers = { ...forwarded, authorization: `Bearer ${body.token}` };
      t.equal((await world.call("/user/onlinestatus", [], headers)).status, 200, name);
    }
  },
);

// Covers [decisions: Limits that hold under attack]
for (const [name, header] of [
  ["an IPv4 address", proxyHeader("203.0.113.7")],
  ["the loopback address", proxyHeader("127.0.0.1")],
  ["an IPv6 address", proxyHeader6("20010db8000000000000000000000001")],
] as const)
  t.test(
    `a call that follows a PROXY header with ${name} is refused with 403 without a credential, and accepted with a credential`,
    async (t) => {
      const world = await startWorld(t, PASSWORD);
      const { body } = await world.call("/manager/login", { username: "admin", password: "right" });
      const bearer = `Authorization: Bearer ${body.token}\r\n`;
      t.match(await rawCall(world.apiPort, header), / 403 [\s\S]*"forbidden"/);
      t.match(await rawCall(world.apiPort, header, bearer), / 200 /);
      t.match(
        await rawCall(world.apiPort, Buffer.alloc(0)),
        / 200 /,
        "a call without a PROXY header is accepted",
      );
    },
  );

/** Sends these bytes and then a call in plain text. Returns the whole response. */
function rawCall(port: number, before: Buffer, headers = ""): Promise<string> {
  const lines = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
  return new Promise((resolve, reject) => {
    const socket = connect({ host: "127.0.0.1", port });
    socket.write(Buffer.concat([before, Buffer.from(`${lines}${headers}\r\n`)]));
    let text = "";
    socket.on("data", (data) => {
      text += data.toString("latin1");
      // The node keeps the connection open after this response if there was no PROXY header.
      if (/ 200 [\s\S]*jindou_/.test(text)) socket.destroy();
    });
    socket.on("error", reject);
    socket.on("close", () => resolve(text));
  });
}
