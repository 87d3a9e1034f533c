// Managers of the control plane: login, access tokens and what they permit, roles, throttling, and
// the generated password.

import { request } from "node:http";
import { type ApiResponse, type Settings, tempFolder } from "../support/broker.ts";
import { nodeCount } from "../support/driver.ts";
import { t } from "../support/suite.ts";
import { startWorld, type World } from "./world.ts";

const LOGIN = "/manager/login";
const CREDENTIALS = { username: "admin", password: "right" };
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

async function login(world: World, body: object = CREDENTIALS): Promise<Settings> {
  const response = await world.call(LOGIN, body);
  if (response.status !== 200) throw new Error(`/manager/login responded with ${response.status}`);
  return bearer(response.body.token);
}

/** Logs in from a loopback address of this machine. Returns the status. */
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

// Covers [spec: POST /manager/login 200; spec: Manager session; spec: Limits manager token]
// Covers [decisions: Access token]
t.test(
  "POST /manager/login returns token, expire and user, and the token is accepted as Authorization: Bearer",
  async (t) => {
    const world = await startWorld(t, {
      ...PROTECTED,
      JINDOU_AUTH_TOKEN_TTL_S: "1234",
    });
    const { status, body } = await world.call(LOGIN, CREDENTIALS);
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

// Covers [decisions: Tokens]
t.test(
  "an access token has 256 random bits and expires after 86,400 seconds by default",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const first = (await world.call(LOGIN, CREDENTIALS)).body;
    const second = (await world.call(LOGIN, CREDENTIALS)).body;
    t.equal(first.expire, 86_400);
    t.equal(Buffer.from(first.token, "base64url").length, 32);
    t.not(first.token, second.token);
  },
);

// Covers [spec: POST /manager/login 401]
t.test("POST /manager/login responds with 401 to a wrong password or username", async (t) => {
  const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
  const wrong = await world.call(LOGIN, { ...CREDENTIALS, password: "wrong" });
  const unknown = await world.call(LOGIN, { ...CREDENTIALS, username: "root" });
  for (const response of [wrong, unknown]) {
    t.match(response, { status: 401, body: { code: "bad_credentials" } });
    t.type(response.body.error, "string");
  }
  t.same(wrong.body, unknown.body, "the response does not reveal which of the two is wrong");
  t.equal(await world.refusal(LOGIN, { username: "admin" }), "400 bad_request");
});

// Covers [decisions: Failed credentials]
t.test(
  "after 5 failed logins with one username, a login with its correct password from another address succeeds after a delay",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const wrong = { ...CREDENTIALS, password: "wrong" };
    for (const last of [2, 3, 4, 5, 6])
      t.equal(await loginFrom(world, `127.0.0.${last}`, wrong), 401);
    const startMs = performance.now();
    t.equal(await loginFrom(world, "127.0.0.7", CREDENTIALS), 200);
    t.ok(performance.now() - startMs >= 990, "the login is slowed down");
    t.equal(await loginFrom(world, "127.0.0.8", CREDENTIALS), 200, "the success clears the count");
  },
);

// Covers [decisions: Login throttling]
t.test(
  "each node checks at most 5 of 200 parallel guesses from one address, while another address can log in",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    const wrong = { username: "nobody", password: "wrong" };
    const guesses = Array.from({ length: 200 }, () => loginFrom(world, "127.0.0.2", wrong));
    t.equal(await loginFrom(world, "127.0.0.3", CREDENTIALS), 200);
    const statuses = await Promise.all(guesses);
    const checked = statuses.filter((status) => status === 401).length;
    t.ok(checked >= 5 && checked <= 5 * nodeCount({}), `${checked} guesses were checked`);
    t.equal(statuses.filter((status) => status === 429).length, 200 - checked);
  },
);

// Covers [spec: POST /manager/login 429; spec: Limits login attempts; decisions: Login throttling]
t.test(
  "an address with 5 failed logins is refused with 429 and Retry-After, and other addresses can log in",
  async (t) => {
    const world = await startWorld(t, { JINDOU_ADMIN_PASSWORD: "right" });
    for (const username of ["a", "b", "c", "d", "e"]) {
      const status = await loginFrom(world, "127.0.0.2", {
        username,
        password: "wrong",
      });
      t.equal(status, 401);
    }
    t.equal(await loginFrom(world, "127.0.0.2", CREDENTIALS), 429);
    t.equal(await loginFrom(world, "127.0.0.3", CREDENTIALS), 200);
    for (let i = 0; i < 5; i++) await world.call(LOGIN, { ...CREDENTIALS, username: "f" });
    const refused = await world.call(LOGIN, CREDENTIALS);
    t.match(refused, { status: 429, body: { code: "too_many_attempts" } });
    const seconds = Number(refused.headers.get("retry-after"));
    t.ok(seconds >= 1 && seconds <= 60, `Retry-After is ${seconds}`);
  },
);

// Covers [decisions: Login throttling]
t.test(
  "a successful login resets the failed logins of its username, and a refused address can log in again after Retry-After",
  async (t) => {
    const world = await startWorld(t, {
      JINDOU_ADMIN_PASSWORD: "right",
      JINDOU_AUTH_LOGIN_ATTEMPTS: "2",
      JINDOU_AUTH_LOGIN_WINDOW_S: "2",
    });
    const wrong = { ...CREDENTIALS, password: "wrong" };
    t.equal(await loginFrom(world, "127.0.0.2", wrong), 401);
    t.equal(await loginFrom(world, "127.0.0.3", CREDENTIALS), 200);
    t.equal(
      await loginFrom(world, "127.0.0.4", wrong),
      401,
      "the next failure counts as the first one",
    );
    for (let i = 0; i < 2; i++)
      t.equal((await world.call(LOGIN, { ...wrong, username: "f" })).status, 401);
    const refused = await world.call(LOGIN, CREDENTIALS);
    t.equal(refused.status, 429);
    const waitMs = Number(refused.headers.get("retry-after")) * 1000;
    await new Promise((resolve) => setTimeout(resolve, waitMs));
    t.equal((await world.call(LOGIN, CREDENTIALS)).status, 200);
  },
);

// Covers [decisions: Roles and permissions; decisions: Managers]
t.test(
  "the role admin permits every call, operator permits reads and writes, and viewer permits reads",
  async (t) => {
    const world = await startWorld(t, {
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify([
        { username: "root", password: "p", role: "admin" },
        { username: "ops", password: "p", role: "operator" },
        { username: "view", password: "p", role: "viewer" },
      ]),
    });
    t.equal((await world.call(LOGIN, CREDENTIALS)).status, 401, "no default account admin exists");
    for (const username of ["root", "ops", "view"]) {
      const headers = await login(world, { username, password: "p" });
      for (const [path, body] of WRITES) {
        const { status } = await world.call(path, body, headers);
        const message = `${username} gets ${status} from ${path}`;
        t.equal(status === 403, username === "view", message);
        t.not(status, 401, message);
      }
      for (const path of READS) t.equal((await world.call(path, undefined, headers)).status, 200);
      const status = await world.call("/user/onlinestatus", ["u"], headers);
      t.equal(status.status, 200, "a viewer may read the online status");
    }
  },
);

// Covers [decisions: Roles and permissions; decisions: Managers]
t.test("a manager's own permissions replace the permissions of the role", async (t) => {
  const permissions = ["users:write"];
  const manager = { username: "u", password: "p", role: "viewer" };
  const world = await startWorld(t, {
    JINDOU_AUTH_API: "required",
    JINDOU_MANAGERS: JSON.stringify([{ ...manager, permissions }]),
  });
  const { body } = await world.call(LOGIN, manager);
  t.same(body.user, { username: "u", role: "viewer", permissions });
  const headers = bearer(body.token);
  for (const [path, requestBody] of WRITES) {
    const { status } = await world.call(path, requestBody, headers);
    t.equal(status, path.startsWith("/user/") ? 200 : 403, `${path} is answered with ${status}`);
  }
  t.equal((await world.call("/metrics", undefined, headers)).status, 403);
});

// Covers [decisions: Roles and permissions; feature: events:write; feature: GET /stream]
t.test(
  "POST /event needs the permission events:write, and the permission messages:write is enough for GET /stream",
  async (t) => {
    const account = (username: string, permission: string) => ({
      ...{ username, password: "p", role: "viewer" },
      permissions: [permission],
    });
    const accounts = [account("events", "events:write"), account("messages", "messages:write")];
    const world = await startWorld(t, {
      JINDOU_AUTH_API: "required",
      JINDOU_MANAGERS: JSON.stringify(accounts),
    });
    const postEvent = async (headers: Settings) =>
      (await world.call("/event", EVENT, headers)).status;
    const stream = "/stream/1/v/c?uid=u";
    const readStream = async (headers: Settings) =>
      (await world.call(stream, undefined, headers)).status;
    const [first, second] = [
      await login(world, { username: "events", password: "p" }),
      await login(world, { username: "messages", password: "p" }),
    ];
    t.same([await postEvent(first), await postEvent(second)], [200, 403]);
    t.equal(await readStream(second), 404, "the manager may see that the stream does not exist");
    t.same([await postEvent({}), await readStream({})], [401, 401]);
  },
);

// Covers [decisions: Tokens]
t.test(
  "access tokens survive a restart unless they are revoked or their manager is removed",
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
    const valid = await login(before, { username: "a", password: "p" });
    const revoked = await login(before, { username: "a", password: "p" });
    const removed = await login(before, { username: "b", password: "p" });
    const read = async (world: World, headers: Settings) =>
      (await world.call("/migrate/result", undefined, headers)).status;
    t.equal(await read(before, revoked), 200);
    t.equal((await before.call("/manager/logout", {}, revoked)).status, 200);
    t.equal(await read(before, revoked), 401, "the token is invalid at once");
    await before.close();
    const after = await startWorld(t, settings(managers.slice(0, 1)), folder);
    t.equal(await read(after, valid), 200);
    t.equal(await read(after, revoked), 401);
    t.equal(await read(after, removed), 401);
  },
);

// Covers [decisions: Manager tokens]
t.test(
  "changing a manager's password, role or permissions revokes only that manager's access tokens",
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
        else t.equal(call.status, 401, `the token of ${username} is refused`);
      }
      return names;
    };
    t.same(await accepted(before), Object.keys(accounts));
    await before.close();
    const after = await startWorld(t, settings(changed), folder);
    t.same(await accepted(after), ["plain", "hashed"]);
  },
);

// Covers [decisions: Manager tokens]
t.test("a changed JINDOU_ADMIN_PASSWORD revokes the access tokens of admin", async (t) => {
  const folder = await tempFolder(t);
  const before = await startWorld(t, PROTECTED, folder);
  const oldToken = await login(before);
  await before.close();
  const settings = { ...PROTECTED, JINDOU_ADMIN_PASSWORD: "changed" };
  const after = await startWorld(t, settings, folder);
  const read = (headers: Settings) => after.call("/metrics", undefined, headers);
  t.equal((await read(oldToken)).status, 401);
  const newToken = await login(after, { ...CREDENTIALS, password: "changed" });
  t.equal((await read(newToken)).status, 200);
});

// Covers [decisions: Managers]
t.test(
  "a node without configured managers has a manager named `admin`, whose random password is shown once",
  async (t) => {
    const folder = await tempFolder(t);
    const before = await startWorld(t, {}, folder);
    t.equal(before.passwords.length, 1);
    const [password = ""] = before.passwords;
    t.ok(password.length >= 16);
    const logIn = async (world: World): Promise<ApiResponse> =>
      world.call(LOGIN, { username: "admin", password });
    t.equal((await logIn(before)).status, 200);
    await before.close();
    const after = await startWorld(t, {}, folder);
    t.same(after.passwords, [], "the password is not shown again");
    t.equal((await logIn(after)).status, 200);
    const other = await startWorld(t);
    t.not(other.passwords[0], password);
  },
);

// Covers [decisions: Managers]
t.test("a manager whose password is configured as a scrypt hash can log in", async (t) => {
  const { hashPassword } = await import("../../src/broker/passwords.ts");
  const passwordHash = await hashPassword("right");
  const manager = { username: "admin", passwordHash, role: "admin" };
  const world = await startWorld(t, {
    JINDOU_MANAGERS: JSON.stringify([manager]),
  });
  t.equal((await world.call(LOGIN, CREDENTIALS)).status, 200);
  const wrong = { ...CREDENTIALS, password: passwordHash };
  t.equal((await world.call(LOGIN, wrong)).status, 401);
});
