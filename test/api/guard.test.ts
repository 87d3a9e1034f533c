// Who may call what: protected mode, the static token, access tokens and permissions [decisions:
// Access token, Who needs it, Roles].

import { bearerToken } from "../../src/api/guard.ts";
import { credentialRule, refusalToStart } from "../../src/api/protected-mode.ts";
import { STREAM_PATH } from "../../src/api/stream-request.ts";
import { t } from "../support/suite.ts";
import { inject, LIST_CALLS, startApi } from "./harness.ts";

const PUBLIC = ["POST /manager/login", "GET /healthz", "GET /readyz"];

t.test(
  "credentials are required beyond loopback, with a static token, or when configured; not on bare loopback [decisions: Protected mode]",
  async (t) => {
    const loopback = { listensBeyondLoopback: false, staticToken: "" };
    t.equal(credentialRule({ ...loopback, authApi: "auto" }), false);
    t.equal(credentialRule({ ...loopback, authApi: "required" }), true);
    t.equal(credentialRule({ ...loopback, staticToken: "s", authApi: "auto" }), true);
    t.equal(
      credentialRule({
        ...loopback,
        listensBeyondLoopback: true,
        authApi: "auto",
      }),
      true,
    );
  },
);

t.test(
  "the process refuses to start beyond loopback without any password or token, and says what to set [decisions: Protected mode]",
  async (t) => {
    const bare = {
      listensBeyondLoopback: true,
      staticToken: "",
      adminPassword: "",
      managers: 0,
    };
    const sentence = refusalToStart(bare);
    for (const key of [
      "api.token",
      "admin.password",
      "managers",
      "JINDOU_API_TOKEN",
      "JINDOU_ADMIN_PASSWORD",
    ])
      t.ok(sentence?.includes(key), key);
    t.equal(refusalToStart({ ...bare, listensBeyondLoopback: false }), undefined);
    t.equal(refusalToStart({ ...bare, staticToken: "s" }), undefined);
    t.equal(refusalToStart({ ...bare, adminPassword: "p" }), undefined);
    t.equal(refusalToStart({ ...bare, managers: 1 }), undefined);
  },
);

t.test(
  "where none is required, calls need no credential although managers exist [decisions: Who needs it]",
  async (t) => {
    const api = await startApi();
    t.equal((await inject(api, "GET /migrate/result")).status, 200);
    t.equal((await inject(api, "POST /user/onlinestatus", { body: [] })).status, 200);
    const headers = { token: "unconfigured", authorization: "Basic eDp5" };
    t.equal((await inject(api, "GET /migrate/result", { headers })).status, 200);
  },
);

t.test(
  "where none is required, an invalid access token is still 401 and one without the permission 403",
  async (t) => {
    const api = await startApi();
    const call = (authorization: string) =>
      inject(api, "POST /channel", {
        headers: { authorization },
        body: { channel_id: "g", channel_type: 2 },
      });
    for (const invalid of ["Bearer", "Bearer ", "Bearer x", `bearer ${"a".repeat(43)}`]) {
      const { status, json, headers } = await call(invalid);
      t.equal(status, 401, invalid);
      t.equal(json.code, "unauthorized");
      t.equal(headers["www-authenticate"], "Bearer");
    }
    t.match((await call(await api.login("view", "p"))).json, {
      status: 403,
      code: "forbidden",
    });
    t.equal((await call(await api.login("ops", "p"))).status, 200);
    const open = await startApi({ staticToken: "s" });
    const headers = { token: "wrong" };
    const wrong = await inject(open, "GET /migrate/result", { headers });
    t.equal(wrong.status, 401, "so is a wrong static token");
  },
);

t.test(
  "in protected mode every endpoint but login, healthz and readyz is 401 without a credential, before its body is read [decisions: Who needs it]",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    for (const { method, path } of api.endpoint.routes) {
      const target = `${method} ${path}`;
      const { status } = await inject(api, target, { body: "{not json" });
      t.equal(status === 401, !PUBLIC.includes(target), target);
    }
    t.same(api.asked, []);
  },
);

t.test(
  "the static token opens every endpoint; any other value is 401 [decisions: Access token]",
  async (t) => {
    const api = await startApi({
      requiresCredential: true,
      staticToken: "s3cret",
    });
    const read = (token: string) => inject(api, "GET /migrate/result", { headers: { token } });
    t.equal((await read("s3cret")).status, 200);
    for (const token of ["", "s", "s3cres", "s3cret2", "S3CRET"])
      t.equal((await read(token)).status, 401, token);
    const headers = { token: "s3cret" };
    const body = { channel_id: "g", channel_type: 2 };
    t.equal((await inject(api, "POST /channel", { body, headers })).status, 200);
    const bearer = { token: "wrong", authorization: await api.login() };
    t.equal(
      (await inject(api, "GET /migrate/result", { headers: bearer })).status,
      200,
      "one right credential is enough",
    );
  },
);

const GROUP = { channel_id: "g", channel_type: 2 };
const CONVERSATION = { uid: "u", ...GROUP };
const EVERYONE = ["admin", "ops", "view"];
const WRITERS = ["admin", "ops"];
const LOBBY = "channel_id=g&channel_type=2";
const ALLOWED: readonly [target: string, who: readonly string[], body?: unknown][] = [
  ["POST /user/token", WRITERS, { uid: "u", token: "t", device_flag: 0 }],
  ["POST /user/device_quit", WRITERS, { uid: "u", device_flag: 0 }],
  ["POST /user/onlinestatus", EVERYONE, ["u"]],
  ["GET /user/devices?uid=u", EVERYONE],
  ["POST /conn/kick", WRITERS, { uid: "u", conn_id: "n1-1" }],
  ["GET /connz", EVERYONE],
  ["GET /varz", EVERYONE],
  ["GET /health", EVERYONE],
  ["GET /user/systemuids", EVERYONE],
  ["POST /user/systemuids_add", WRITERS, { uids: ["u"] }],
  ["POST /user/systemuids_remove", WRITERS, { uids: ["u"] }],
  ["POST /channel", WRITERS, { channel_id: "g", channel_type: 2 }],
  ["POST /channel/info", WRITERS, { channel_id: "g", channel_type: 2 }],
  ["POST /channel/subscriber_add", WRITERS, { channel_id: "g", subscribers: ["u"] }],
  [
    "POST /channel/subscriber_remove",
    WRITERS,
    { channel_id: "g", channel_type: 2, subscribers: ["u"] },
  ],
  ...["subscriber_remove_all", "delete", ...LIST_CALLS].map((name): (typeof ALLOWED)[number] => [
    `POST /channel/${name}`,
    WRITERS,
    { channel_id: "g", channel_type: 2, uids: ["u"] },
  ]),
  ...["state", "members", "whitelist"].map((name): (typeof ALLOWED)[number] => [
    `GET /channel/${name}?${LOBBY}`,
    EVERYONE,
  ]),
  ["GET /user/channels?uid=u", EVERYONE],
  [
    "POST /message/send",
    WRITERS,
    { payload: "e30=", from_uid: "u", channel_id: "g", channel_type: 2 },
  ],
  [`GET /channel/messages?${LOBBY}`, WRITERS],
  ["POST /message/sendbatch", WRITERS, { payload: "e30=", from_uid: "u", subscribers: ["v"] }],
  ["POST /channel/messagesync", WRITERS, GROUP],
  [`GET /channel/max_message_seq?${LOBBY}`, WRITERS],
  ["POST /messages", WRITERS, GROUP],
  ["POST /message/sync", WRITERS, { uid: "u" }],
  ["POST /message/syncack", WRITERS, { uid: "u", last_message_seq: 1 }],
  [
    "POST /event",
    WRITERS,
    {
      client_msg_no: "s",
      channel_id: "g",
      channel_type: 2,
      event: { type: "typing" },
    },
  ],
  ["GET /stream/2/g/s", WRITERS],
  ["POST /conversation/sync", WRITERS, { uid: "u" }],
  ["POST /conversations/clearUnread", WRITERS, CONVERSATION],
  ["POST /conversations/setUnread", WRITERS, { ...CONVERSATION, unread: 1 }],
  ["POST /conversations/delete", WRITERS, CONVERSATION],
  ["GET /cluster/nodes", EVERYONE],
  ["GET /route?uid=u", EVERYONE],
  ["POST /route/batch", EVERYONE, ["u"]],
  ["GET /migrate/result", EVERYONE],
  ["GET /metrics", EVERYONE],
  ["GET /openapi.json", EVERYONE],
];

/** The row of the table that takes `target`. */
function routeOf(target: string): string {
  const [path = ""] = target.split("?");
  return path.startsWith("GET /stream/") ? `GET ${STREAM_PATH}` : path;
}

t.test(
  "each role may call what its permissions say, else 403 [decisions: Roles and permissions]",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    const covered = new Set([...PUBLIC, "POST /manager/logout"]);
    for (const username of EVERYONE) {
      const password = username === "admin" ? "right" : "p";
      const headers = { authorization: await api.login(username, password) };
      for (const [target, who, body] of ALLOWED) {
        const { status } = await inject(api, target, { headers, body });
        t.equal(status, who.includes(username) ? 200 : 403, `${username} ${target}`);
        covered.add(routeOf(target));
      }
    }
    const all = api.endpoint.routes.map((one) => `${one.method} ${one.path}`);
    t.same([...covered].sort(), all.sort(), "every route is in this table");
  },
);

t.test("an expired access token is 401", async (t) => {
  const api = await startApi({ requiresCredential: true });
  const headers = { authorization: await api.login() };
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 200);
  api.pass(86_400_000);
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 401);
});

t.test(
  "the access token is read whatever the case of its scheme, and of no other scheme",
  async (t) => {
    const read = (authorization: string) =>
      bearerToken({
        method: "",
        path: "",
        query: "",
        remoteAddress: "",
        headers: { authorization },
        params: [],
        body: new Uint8Array(),
      });
    t.equal(read("Bearer abc"), "abc");
    t.equal(read("bEARER   abc "), "abc");
    t.equal(read("Bearer"), "");
    t.equal(read(""), undefined);
    t.equal(read("Basic abc"), undefined);
    t.equal(read("Bearerabc"), undefined);
  },
);

t.test(
  "without a credential, a web page and a rebound name are refused where they could manage an open API",
  async (t) => {
    const api = await startApi({ requiresCredential: false });
    const call = (headers: Record<string, string>) =>
      inject(api, "POST /user/onlinestatus", { headers, body: [] });
    for (const host of ["127.0.0.1:5001", "localhost", "[::1]:5001"])
      t.equal((await call({ host })).status, 200, host);
    const origin = { origin: "https://evil.example", host: "127.0.0.1:5001" };
    t.equal((await call(origin)).status, 403);
    t.equal((await call({ host: "evil.example:5001" })).status, 403);
    const authorization = await api.login();
    t.equal((await call({ ...origin, authorization })).status, 200);
  },
);

t.test(
  "a login is refused to web pages and rebound names as other calls are, and not where calls need a credential [decisions: Who needs it]",
  async (t) => {
    const body = { username: "admin", password: "right" };
    const page = { origin: "https://evil.example", host: "127.0.0.1:5001" };
    const rebound = { host: "evil.example:5001" };
    const open = await startApi();
    const login = async (headers: Record<string, string>, api = open) =>
      (await inject(api, "POST /manager/login", { headers, body })).status;
    t.equal(await login({ host: "127.0.0.1:5001" }), 200);
    for (const headers of [page, rebound]) t.equal(await login(headers), 403);
    const authorization = await open.login();
    t.equal(await login({ ...page, authorization }), 403);
    const needing = await startApi({ requiresCredential: true });
    for (const headers of [page, rebound]) t.equal(await login(headers, needing), 200);
  },
);
