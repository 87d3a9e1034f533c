// Managers of the control plane: logging in, access tokens and what they open, roles, throttling,
// the first password.

import { request } from "node:http";
import { type ApiResponse, type Settings, tempFolder } from "../support/broker.ts";
import { nodeCount } from "../support/driver.ts";
import { t } from "../support/suite.ts";
import { startWorld, type World } from "./world.ts";

const LOGIN = "/manager/login";
const RIGHT = { username: "admin", password: "right" };
const CONVERSATION = { uid: "u", channel_id: "v", channel_type: 1 };
const EVENT = {
  ...{ client_msg_no: "c", channel_id: "v", channel_type: 1 },
  event: { type: "status" },
};
const WRITES: readonly [path: string, body: object][] = [
  ["/user/token", { uid: "u", token: "t", device_flag: 0 }],
  ["/user/device_quit", { uid: "u", device_flag: 0 }],
  ["/channel", { channel_id: "g", channel_type: 2, disband: 0 }],
  ["/channel/info", { channel_id: "g", channel_type: 2 }],
  ["/channel/subscriber_add", { channel_id: "g", subscribers: ["u"] }],
  ["/channel/subscriber_remove", { channel_id: "g", channel_type: 2, subscribers: ["u"] }],
  [
    "/message/send",
    {
      from_uid: "u",
      channel_id: "v",
      channel_type: 1,
      payload: "eyJ0eXBlIjoxfQ==",
    },
  ],
  ["/event", EVENT],
  ["/conversation/sync", { uid: "u" }],
  ["/conversations/clearUnread", CONVERSATION],
  ["/conversations/setUnread", { ...CONVERSATION, unread: 0 }],
  ["/conversations/delete", CONVERSATION],
];
const READS = ["/migrate/result", "/metrics", "/openapi.json"];

const bearer = (token: string): Settings => ({
  authorization: `Bearer ${token}`,
});

async function login(world: World, body: object = RIGHT): Promise<Settings> {
  const answer = await world.call(LOGIN, body);
  if (answer.status !== 200) throw new Error(`login: ${answer.status}`);
  return bearer(answer.body.token);
}

/** Logs in from one of this machine's loopback addresses. */
function loginFrom(world: World, localAddress: string, body: object) {
  return new Promise<number>((resolve, reject) => {
    const { apiPort: port } = world;
    const method = "POST";
    const headers = { "content-type": "application/json" };
    const host = "127.0.0.1";
    request({ host, port, path: LOGIN, method, headers, localAddress }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    })
      .on("error", reject)
      .end(JSON.stringify(body));
  });
}

const PROTECTED = {
  JINDOU_AUTH_API: "required",
  JINDOU_ADMIN_PASSWORD: "right",
};

t.test(
  "POST /manager/login: gives token, expire and user; the token opens the API as Authorization: Bearer [spec: POST /manager/login 200; spec: Manager session; spec: Limits manager token; decisions: Access token]",
  async (t) => {
    const world = await startWorld(t, {
      ...PROTECTED,
      JINDOU_AUTH_TOKEN_TTL_S: "1234",
    });
    const { status, body } = await world.call(LOGIN, RIGHT);
    t.equal(status, 200);
    t.equal(body.expire, 1234);
    const user = { username: "admin", role: "admin", permissions: ["*"] };
    t.same(body.user, user);
    const read = async (headers: Settings) =>
      (await world.call("/migrate/result", undefined, headers)).status;
    t.equal(await read(bearer(body.token)), 200);
    t.equal(await read({ authorization: `Basic ${body.token}` }), 401);
    t.equal(await read({ token: body.token }), 401);
    t.equal(await read(bearer(`${body.token.slice(0, -1)}_`)), 401);
    t.equal(await read({}), 401);
  },
);

t.test(
  "expire is 86400 seconds unless configured, and tokens are 256 random bits [decisions: Tokens]",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const first = (await world.call(LOGIN, RIGHT)).body;
    const second = (await world.call(LOGIN, RIGHT)).body;
    t.equal(first.expire, 86_400);
    t.equal(Buffer.from(first.token, "base64url").length, 32);
    t.not(first.token, second.token);
  },
);

t.test(
  "POST /manager/login: a wrong password, or username, is 401 with error [spec: POST /manager/login 401]",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const wrong = await world.call(LOGIN, { ...RIGHT, password: "wrong" });
    const unknown = await world.call(LOGIN, { ...RIGHT, username: "root" });
    for (const answer of [wrong, unknown]) {
      t.match(answer, { status: 401, body: { code: "bad_credentials" } });
      t.type(answer.body.error, "string");
    }
    t.same(wrong.body, unknown.body, "which of the two is not told");
    t.equal(await world.refusal(LOGIN, { username: "admin" }), "400 bad_request");
  },
);

t.test(
  "while others guess at a username, the right password from another address is served, slower [decisions: Failed credentials]",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const wrong = { ...RIGHT, password: "wrong" };
    for (const last of [2, 3, 4, 5, 6])
      t.equal(await loginFrom(world, `127.0.0.${last}`, wrong), 401);
    const startMs = performance.now();
    t.equal(await loginFrom(world, "127.0.0.7", RIGHT), 200);
    t.ok(performance.now() - startMs >= 990, "slower");
    t.equal(await loginFrom(world, "127.0.0.8", RIGHT), 200, "count cleared");
  },
);

t.test(
  "with 200 guesses at once from one address no more than 5 are tried, and another address logs in meanwhile [decisions: Login throttling]",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const wrong = { username: "nobody", password: "wrong" };
    const guesses = Array.from({ length: 200 }, () => loginFrom(world, "127.0.0.2", wrong));
    t.equal(await loginFrom(world, "127.0.0.3", RIGHT), 200);
    const statuses = await Promise.all(guesses);
    const tried = statuses.filter((status) => status === 401).length;
    t.ok(tried >= 5 && tried <= 5 * nodeCount({}), `${tried} were tried`);
    t.equal(statuses.filter((status) => status === 429).length, 200 - tried);
  },
);

t.test(
  "5 failures from one address close it for every username, with Retry-After, and for no other address [spec: POST /manager/login 429; spec: Limits login attempts; decisions: Login throttling]",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    for (const username of ["a", "b", "c", "d", "e"]) {
      const status = await loginFrom(world, "127.0.0.2", {
        username,
        password: "wrong",
      });
      t.equal(status, 401);
    }
    t.equal(await loginFrom(world, "127.0.0.2", RIGHT), 429);
    t.equal(await loginFrom(world, "127.0.0.3", RIGHT), 200);
    for (let i = 0; i < 5; i++) await world.call(LOGIN, { ...RIGHT, username: "f" });
    const closed = await world.call(LOGIN, RIGHT);
    t.match(closed, { status: 429, body: { code: "too_many_attempts" } });
    const seconds = Number(closed.headers.get("retry-after"));
    t.ok(seconds >= 1 && seconds <= 60, `Retry-After ${seconds}`);
  },
);

t.test(
  "a success clears the username's failures; after the window a network may try anew [decisions: Login throttling]",
  async (t) => {
    const world = await startWorld(t, {
      JINDOU_ADMIN_PASSWORD: "right",
      JINDOU_AUTH_LOGIN_ATTEMPTS: "2",
      JINDOU_AUTH_LOGIN_WINDOW_S: "2",
    });
    const wrong = { ...RIGHT, password: "wrong" };
    t.equal(await loginFrom(world, "127.0.0.2", wrong), 401);
    t.equal(await loginFrom(world, "127.0.0.3", RIGHT), 200);
    t.equal(await loginFrom(world, "127.0.0.4", wrong), 401, "the first again");
    for (let i = 0; i < 2; i++)
      t.equal((await world.call(LOGIN, { ...wrong, username: "f" })).status, 401);
    const closed = await world.call(LOGIN, RIGHT);
    t.equal(closed.status, 429);
    const waitMs = Number(closed.headers.get("retry-after")) * 1000;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    t.equal((await world.call(LOGIN, RIGHT)).status, 200);
  },
);

t.test(
  "roles: admin may everything, operator writes and reads, viewer reads only; more is 403 [decisions: Roles and permissions; decisions: Managers]",
  async (t) => {
    const world = await startWorld(t, {
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify([
        { username: "root", password: "p", role: "admin" },
        { username: "ops", password: "p", role: "operator" },
        { username: "view", password: "p", role: "viewer" },
      ]),
    });
    t.equal((await world.call(LOGIN, RIGHT)).status, 401, "no admin beside");
    for (const username of ["root", "ops", "view"]) {
      const headers = await login(world, { username, password: "p" });
      for (const [path, body] of WRITES) {
        const { status } = await world.call(path, body, headers);
        const message = `${username} ${path} ${status}`;
        t.equal(status === 403, username === "view", message);
        t.not(status, 401, message);
      }
      for (const path of READS) t.equal((await world.call(path, undefined, headers)).status, 200);
      const status = await world.call("/user/onlinestatus", ["u"], headers);
      t.equal(status.status, 200, "online status is reading");
    }
  },
);

t.test(
  "a manager's own permissions stand in place of the role's [decisions: Roles and permissions; decisions: Managers]",
  async (t) => {
    const permissions = ["users:write"];
    const manager = { username: "u", password: "p", role: "viewer" };
    const world = await startWorld(t, {
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify([{ ...manager, permissions }]),
    });
    const { body } = await world.call(LOGIN, manager);
    t.same(body.user, { username: "u", role: "viewer", permissions });
    const headers = bearer(body.token);
    for (const [path, sent] of WRITES) {
      const { status } = await world.call(path, sent, headers);
      t.equal(status, path.startsWith("/user/") ? 200 : 403, path);
    }
    t.equal((await world.call("/metrics", undefined, headers)).status, 403);
  },
);

t.test(
  "POST /event needs events:write, reading a stream messages:write [decisions: Roles and permissions; issue: events:write; issue: GET /stream]",
  async (t) => {
    const named = (username: string, permission: string) => ({
      ...{ username, password: "p", role: "viewer" },
      permissions: [permission],
    });
    const accounts = [named("events", "events:write"), named("messages", "messages:write")];
    const world = await startWorld(t, {
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify(accounts),
    });
    const posted = async (headers: Settings) => (await world.call("/event", EVENT, headers)).status;
    const stream = "/stream/1/v/c?uid=u";
    const read = async (headers: Settings) => (await world.call(stream, undefined, headers)).status;
    const [first, second] = [
      await login(world, { username: "events", password: "p" }),
      await login(world, { username: "messages", password: "p" }),
    ];
    t.same([await posted(first), await posted(second)], [200, 403]);
    t.equal(await read(second), 404, "there is none, which it may know");
    t.same([await posted({}), await read({})], [401, 401]);
  },
);

t.test(
  "access tokens survive a restart; a revoked one does not, nor one of a manager that is configured no more [decisions: Tokens]",
  async (t) => {
    const folder = await tempFolder(t);
    const managers = ["a", "b"].map((username) => ({
      username,
      password: "p",
      role: "admin",
    }));
    const settings = (list: object[]) => ({
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify(list),
    });
    const before = await startWorld(t, settings(managers), folder);
    const kept = await login(before, { username: "a", password: "p" });
    const revoked = await login(before, { username: "a", password: "p" });
    const orphan = await login(before, { username: "b", password: "p" });
    const read = async (world: World, headers: Settings) =>
      (await world.call("/migrate/result", undefined, headers)).status;
    t.equal(await read(before, revoked), 200);
    t.equal((await before.call("/manager/logout", {}, revoked)).status, 200);
    t.equal(await read(before, revoked), 401, "at once");
    await before.close();
    const after = await startWorld(t, settings(managers.slice(0, 1)), folder);
    t.equal(await read(after, kept), 200);
    t.equal(await read(after, revoked), 401);
    t.equal(await read(after, orphan), 401);
  },
);

t.test(
  "a change of a manager's password, role or permissions ends its access tokens; others stay, also on a node that starts later [decisions: Manager tokens]",
  async (t) => {
    const folder = await tempFolder(t);
    const { hashPassword } = await import("../../src/broker/passwords.ts");
    const passwordHash = await hashPassword("p");
    const plain = { password: "p", role: "operator" };
    const hashed = { passwordHash, role: "viewer" };
    const settings = (accounts: Readonly<Record<string, object>>) => ({
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify(
        Object.entries(accounts).map(([username, account]) => ({
          username,
          ...account,
        })),
      ),
    });
    const accounts = {
      plain,
      hashed,
      password: plain,
      hash: hashed,
      role: plain,
      permissions: plain,
      removed: plain,
    };
    const changed = {
      plain,
      hashed,
      password: { ...plain, password: "q" },
      hash: { ...hashed, passwordHash: await hashPassword("p") },
      role: { ...plain, role: "admin" },
      permissions: { ...plain, permissions: ["system:read", "users:write"] },
    };
    const before = await startWorld(t, settings(accounts), folder);
    const tokens = new Map<string, Settings>();
    for (const username of Object.keys(accounts))
      tokens.set(username, await login(before, { username, password: "p" }));
    const accepted = async (world: World) => {
      const names: string[] = [];
      for (const [username, headers] of tokens) {
        const call = await world.call("/migrate/result", undefined, headers);
        if (call.status === 200) names.push(username);
        else t.equal(call.status, 401, username);
      }
      return names;
    };
    t.same(await accepted(before), Object.keys(accounts));
    await before.close();
    const after = await startWorld(t, settings(changed), folder);
    t.same(await accepted(after), ["plain", "hashed"]);
  },
);

t.test(
  "another JINDOU_ADMIN_PASSWORD ends the tokens of admin [decisions: Manager tokens]",
  async (t) => {
    const folder = await tempFolder(t);
    const before = await startWorld(t, PROTECTED, folder);
    const old = await login(before);
    await before.close();
    const settings = { ...PROTECTED, JINDOU_ADMIN_PASSWORD: "changed" };
    const after = await startWorld(t, settings, folder);
    const read = (headers: Settings) => after.call("/metrics", undefined, headers);
    t.equal((await read(old)).status, 401);
    const again = await login(after, { ...RIGHT, password: "changed" });
    t.equal((await read(again)).status, 200);
  },
);

t.test(
  "without configured managers: admin with a random password, shown once in the life of the data, its hash kept [decisions: Managers]",
  async (t) => {
    const folder = await tempFolder(t);
    const before = await startWorld(t, {}, folder);
    t.equal(before.passwords.length, 1);
    const [password = ""] = before.passwords;
    t.ok(password.length >= 16);
    const enter = async (world: World): Promise<ApiResponse> =>
      world.call(LOGIN, { username: "admin", password });
    t.equal((await enter(before)).status, 200);
    await before.close();
    const after = await startWorld(t, {}, folder);
    t.same(after.passwords, [], "not shown again");
    t.equal((await enter(after)).status, 200);
    const other = await startWorld(t);
    t.not(other.passwords[0], password);
  },
);

t.test("a password configured as a scrypt hash logs in [decisions: Managers]", async (t) => {
  const { hashPassword } = await import("../../src/broker/passwords.ts");
  const passwordHash = await hashPassword("right");
  const manager = { username: "admin", passwordHash, role: "admin" };
  const world = await startWorld(t, {
    JINDOU_MANAGERS: JSON.stringify([manager]),
  });
  t.equal((await world.call(LOGIN, RIGHT)).status, 200);
  const wrong = { ...RIGHT, password: passwordHash };
  t.equal((await world.call(LOGIN, wrong)).status, 401);
});
