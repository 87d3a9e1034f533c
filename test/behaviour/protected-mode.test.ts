// Protected mode on a real node: which configurations need a credential, what stays open, and which
// must not start at all.

import { ConfigError } from "../../src/config/errors.ts";
import { jindou } from "../main/jindou.ts";
import { type Settings, tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { startWorld, type World } from "./world.ts";

const PASSWORD = { JINDOU_ADMIN_PASSWORD: "right" };
const TOKEN = { JINDOU_API_TOKEN: "static" };
const MANAGERS = {
  JINDOU_MANAGERS: '[{"username":"m","password":"p","role":"admin"}]',
};
const EVERYWHERE = { JINDOU_API_LISTEN: "0.0.0.0:0" };
const REQUIRED = { JINDOU_AUTH_API: "required" };

/** A node that needs no credential. */
const open = await startWorld(t);

/** Method and path of every endpoint, from the node's own description. */
async function endpoints(world: World, headers: Settings = {}) {
  const { body } = await world.call("/openapi.json", undefined, headers);
  return Object.entries<object>(body.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => ({ method, path })),
  );
}

for (const [what, settings] of [
  ["nothing set", {}],
  ["an admin password", PASSWORD],
  ["managers", MANAGERS],
  ["a name for loopback", { JINDOU_API_LISTEN: "localhost:0" }],
] as const)
  t.test(
    `loopback with ${what}: calls need no credential, but a wrong one is refused [decisions: Who needs it]`,
    async (t) => {
      const world = await startWorld(t, settings);
      t.same(await world.ok("/user/onlinestatus", []), []);
      t.equal((await world.call("/metrics")).status, 200);
      const headers = { authorization: "Bearer wrong" };
      const wrong = await world.call("/metrics", undefined, headers);
      t.match(wrong, { status: 401, body: { code: "unauthorized" } });
    },
  );

for (const [what, settings] of [
  ["loopback with a static token", TOKEN],
  ["loopback with auth.api required", { ...REQUIRED, ...PASSWORD }],
  ["beyond loopback with a static token", { ...EVERYWHERE, ...TOKEN }],
  ["beyond loopback with an admin password", { ...EVERYWHERE, ...PASSWORD }],
  ["beyond loopback with managers", { ...EVERYWHERE, ...MANAGERS }],
] as const)
  t.test(
    `${what}: every endpoint but login, healthz and readyz needs a credential [decisions: Who needs it; decisions: Other statuses 401]`,
    async (t) => {
      const world = await startWorld(t, settings);
      const isPublic = ["/manager/login", "/healthz", "/readyz"];
      for (const { method, path } of await endpoints(open)) {
        const body = method === "post" ? {} : undefined;
        const answer = await world.call(path, body);
        t.equal(answer.status === 401, !isPublic.includes(path), path);
        if (answer.status !== 401) continue;
        t.equal(answer.headers.get("www-authenticate"), "Bearer");
      }
    },
  );

t.test(
  "the static token opens every endpoint in the header token, any other value none [decisions: Access token]",
  async (t) => {
    const world = await startWorld(t, { ...TOKEN, ...PASSWORD });
    const right = { token: "static" };
    for (const { method, path } of await endpoints(world, right)) {
      if (path === "/manager/logout") continue; // there is no access token to revoke
      const body = method === "post" ? {} : undefined;
      const { status } = await world.call(path, body, right);
      t.notOk([401, 403].includes(status), `${path} ${status}`);
    }
    for (const token of ["", "stati", "static2", "STATIC"]) {
      const { status } = await world.call("/metrics", undefined, { token });
      t.equal(status, 401);
    }
    const body = { username: "admin", password: "right" };
    const login = await world.call("/manager/login", body);
    const headers = { authorization: `Bearer ${login.body.token}` };
    const read = await world.call("/metrics", undefined, headers);
    t.equal(read.status, 200, "an access token does too");
  },
);

t.test(
  "the process refuses to start beyond loopback without a password or token, and says what to set [decisions: Who needs it]",
  async (t) => {
    const ended = await jindou(t, ["start"], {
      env: { JINDOU_STORE_PATH: await tempFolder(t), ...EVERYWHERE },
    });
    t.equal(ended.code, 2);
    for (const name of ["JINDOU_API_TOKEN", "JINDOU_ADMIN_PASSWORD"])
      t.ok(ended.stderr.includes(name), name);
    t.equal(ended.stdout, "", "it did not come to a log");
  },
);

for (const [what, settings] of [
  ["[::]", { JINDOU_API_LISTEN: "[::]:0" }],
  ["no host", { JINDOU_API_LISTEN: ":0" }],
  ["a name", { JINDOU_API_LISTEN: "example.com:0" }],
  ["every address and auth.api required", { ...EVERYWHERE, ...REQUIRED }],
] as const)
  t.test(
    `listening on ${what} without a password or token is refused too [decisions: Who needs it]`,
    async (t) => {
      await t.rejects(startWorld(t, settings), ConfigError);
    },
  );
