// Tests of the authorization of calls: protected mode, the static token, access tokens and
// permissions [decisions: Access token, Who needs it, Roles].

import { STREAMS_PATH } from "../../src/api/durable-streams/path.ts";
import { bearerToken } from "../../src/api/guard.ts";
import { credentialRule, refusalToStart } from "../../src/api/protected-mode.ts";
import { STREAM_PATH } from "../../src/api/stream-request.ts";
import { t } from "../support/suite.ts";
import { inject, LIST_CALLS, startApi } from "./harness.ts";

const PUBLIC = ["POST /manager/login", "GET /", "GET /healthz", "GET /readyz"];

t.test(
  "a credential is required if other machines can reach the API, a static token is set, or the configuration requires it",
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
  "the process does not start without a password or token if other machines can reach the API, and the error names the settings to change",
  async (t) => {
    const withoutCredential = {
      listensBeyondLoopback: true,
      staticToken: "",
      adminPassword: "",
      managers: 0,
    };
    const message = refusalToStart(withoutCredential);
    for (const key of [
      "api.token",
      "admin.password",
      "managers",
      "JINDOU_API_TOKEN",
      "JINDOU_ADMIN_PASSWORD",
    ])
      t.ok(message?.includes(key), key);
    t.equal(refusalToStart({ ...withoutCredential, listensBeyondLoopback: false }), undefined);
    t.equal(refusalToStart({ ...withoutCredential, staticToken: "0123456789abcdef" }), undefined);
    t.equal(refusalToStart({ ...withoutCredential, adminPassword: "p" }), undefined);
    t.equal(refusalToStart({ ...withoutCredential, managers: 1 }), undefined);
  },
);

t.test("calls need no credential on loopback, even if managers exist", async (t) => {
  const api = await startApi();
  t.equal((await inject(api, "GET /migrate/result")).status, 200);
  t.equal((await inject(api, "POST /user/onlinestatus", { body: [] })).status, 200);
  const headers = { token: "unconfigured", authorization: "Basic eDp5" };
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 200);
});

t.test(
  "an invalid access token is rejected with 401, and an access token without the permission with 403, even if no credential is required",
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
    const unprotectedApi = await startApi({ staticToken: "s" });
    const headers = { token: "wrong" };
    const reply = await inject(unprotectedApi, "GET /migrate/result", { headers });
    t.equal(reply.status, 401, "a wrong static token is also rejected");
  },
);

t.test(
  "if calls need a credential, every call except login, the index, healthz and readyz is rejected with 401 without a credential, before its body is read",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    for (const { method, path } of api.endpoint.routes) {
      const target = `${method} ${path}`;
      const { status } = await inject(api, target, { body: "{not json" });
      t.equal(status === 401, !PUBLIC.includes(target), target);
    }
    t.same(api.calls, []);
  },
);

t.test(
  "the static token authorizes reads and writes, and a wrong static token is rejected with 401",
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
      "one valid credential is enough",
    );
  },
);

t.test(
  "the static token also authorizes calls as a Bearer token, and a wrong Bearer token is rejected with 401",
  async (t) => {
    const api = await startApi({ requiresCredential: true, staticToken: "s3cret" });
    const read = (authorization: string, target = "GET /metrics") =>
      inject(api, target, { headers: { authorization } });
    t.equal((await read("Bearer s3cret")).status, 200);
    t.equal((await read("bearer s3cret")).status, 200);
    for (const wrong of ["Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "s3cret"])
      t.equal((await read(wrong)).status, 401, wrong);
    t.equal((await read("Bearer s3cret", "POST /manager/logout")).status, 401);
    const access = await api.login();
    t.equal((await read(access)).status, 200, "an access token still authorizes calls");
    const local = await startApi({ staticToken: "" });
    const empty = await inject(local, "GET /metrics", { headers: { authorization: "Bearer " } });
    t.equal(empty.status, 401, "an empty static token is not a credential");
  },
);

const GROUP = { channel_id: "g", channel_type: 2 };
const CONVERSATION = { uid: "u", ...GROUP };
const ALL_MANAGERS = ["admin", "ops", "view"];
const WRITERS = ["admin", "ops"];
const ADMINS = ["admin"];
const NDJSON = { "content-type": "application/x-ndjson" };
const LOBBY = "channel_id=g&channel_type=2";
/** Managers who may make each call, with a valid body. */
const ALLOWED: readonly [
  target: string,
  usernames: readonly string[],
  body?: unknown,
  type?: Readonly<Record<string, string>>,
][] = [
  ["POST /user/token", WRITERS, { uid: "u", token: "t", device_flag: 0 }],
  ["POST /user/device_quit", WRITERS, { uid: "u", device_flag: 0 }],
  ["POST /user/onlinestatus", ALL_MANAGERS, ["u"]],
  ["GET /user/devices?uid=u", ALL_MANAGERS],
  ["POST /conn/kick", WRITERS, { uid: "u", conn_id: "n1-1" }],
  ["GET /connz", ALL_MANAGERS],
  ["GET /channels/busiest", ALL_MANAGERS],
  [`GET /channel/readers?${LOBBY}&message_seq=1`, WRITERS],
  ["POST /stream/cancel", WRITERS, { ...GROUP, client_msg_no: "s" }],
  ["GET /admin/config", ALL_MANAGERS],
  ["GET /admin/errors", ALL_MANAGERS],
  ["GET /events", ALL_MANAGERS],
  ["POST /events/feed", ADMINS, { feed: "on" }],
  ["GET /admin/import", ADMINS],
  ["POST /admin/import", ADMINS, '{"kind":"user","uid":"u"}', NDJSON],
  ["POST /admin/import/open", ADMINS],
  ["POST /admin/import/close", ADMINS],
  ["GET /varz", ALL_MANAGERS],
  ["GET /health", ALL_MANAGERS],
  ["GET /user/systemuids", ALL_MANAGERS],
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
    ALL_MANAGERS,
  ]),
  ["GET /user/channels?uid=u", ALL_MANAGERS],
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
  [`GET /channel/last_message?${LOBBY}`, WRITERS],
  ["POST /message", WRITERS, { ...GROUP, message_id: 1 }],
  [`GET /message/byclientmsgno?${LOBBY}&client_msg_no=c`, WRITERS],
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
  ["GET /v1/stream/a?offset=now", WRITERS],
  ["PUT /v1/stream/a", WRITERS],
  ["POST /v1/stream/a", WRITERS, "x", { "content-type": "text/plain" }],
  ["DELETE /v1/stream/a", WRITERS],
  ["POST /v1/sign", WRITERS, { path: "/v1/stream/a", access: "read", expires_in: 1 }],
  ["POST /v1/sign/rotate", WRITERS],
  ["POST /webhooks", WRITERS, { url: "https://example.com/" }],
  ["GET /webhooks", ALL_MANAGERS],
  ["PATCH /webhooks/w", WRITERS, { enabled: 1 }],
  ["DELETE /webhooks/w", WRITERS],
  ["POST /webhooks/w/test", WRITERS],
  ["POST /webhooks/w/replay", WRITERS, { after: "oldest" }],
  ["POST /webhooks/w/secrets", WRITERS, { overlapS: 0 }],
  ["GET /webhooks/w/attempts", ALL_MANAGERS],
  ["GET /webhooks/w/failures", ALL_MANAGERS],
  ["POST /webhooks/w/failures/e/retry", WRITERS],
  ["POST /conversation/sync", WRITERS, { uid: "u" }],
  ["POST /conversation/channels", WRITERS, { uid: "u" }],
  ["POST /conversation/syncByChannels", WRITERS, { uid: "u", channels: [GROUP] }],
  ["POST /conversations/clearUnread", WRITERS, CONVERSATION],
  ["POST /conversations/setUnread", WRITERS, { ...CONVERSATION, unread: 1 }],
  ["POST /conversations/delete", WRITERS, CONVERSATION],
  ["GET /cluster/nodes", ALL_MANAGERS],
  ["GET /route?uid=u", ALL_MANAGERS],
  ["POST /route/batch", ALL_MANAGERS, ["u"]],
  ["GET /migrate/result", ALL_MANAGERS],
  ["GET /metrics", ALL_MANAGERS],
  ["GET /openapi.json", ALL_MANAGERS],
];

/** Returns the method and the path pattern of the route that serves `target`. */
function routeOf(target: string): string {
  const [path = ""] = target.split("?");
  if (path.startsWith("GET /stream/")) return `GET ${STREAM_PATH}`;
  return path
    .replace(/ \/v1\/stream\/.*/, ` ${STREAMS_PATH}`)
    .replace("/webhooks/w", "/webhooks/:id")
    .replace("/failures/e", "/failures/:event_id");
}

t.test(
  "each role may make the calls that its permissions allow, and other calls are rejected with 403",
  async (t) => {
    const api = await startApi({ requiresCredential: true });
    const covered = new Set([...PUBLIC, "POST /manager/logout"]);
    for (const username of ALL_MANAGERS) {
      const password = username === "admin" ? "right" : "p";
      const headers = { authorization: await api.login(username, password) };
      for (const [target, usernames, body, type] of ALLOWED) {
        const { status } = await inject(api, target, { headers: { ...headers, ...type }, body });
        t.equal(
          status < 300 ? 200 : status,
          usernames.includes(username) ? 200 : 403,
          `${target} as ${username} is allowed only with the permission`,
        );
        covered.add(routeOf(target));
      }
    }
    const routes = api.endpoint.routes.map(({ method, path }) => `${method} ${path}`);
    t.same([...covered].sort(), routes.sort(), "every route is tested");
  },
);

t.test("an expired access token is rejected with 401", async (t) => {
  const api = await startApi({ requiresCredential: true });
  const headers = { authorization: await api.login() };
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 200);
  api.pass(86_400_000);
  t.equal((await inject(api, "GET /migrate/result", { headers })).status, 401);
});

t.test(
  "an access token is accepted with the scheme Bearer in any letter case, and with no other scheme",
  async (t) => {
    const read = (authorization: string) =>
      bearerToken({
        method: "",
        path: "",
        query: "",
        remoteAddress: "",
        isProxied: false,
        scheme: "http",
        headers: { authorization },
        params: [],
        body: new Uint8Array(),
        onAborted() {},
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
  "calls without a credential from a web page of another site or with a foreign host name are rejected with 403",
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
  "a call without a credential is accepted from a page of the API itself and rejected with 403 from a page of any other origin",
  async (t) => {
    const api = await startApi();
    const call = async (origin: string, host: string, target = "POST /user/onlinestatus") => {
      const body = target.endsWith("login") ? { username: "admin", password: "right" } : [];
      return (await inject(api, target, { headers: { origin, host }, body })).status;
    };
    for (const host of ["127.0.0.1:5001", "localhost:5001", "[::1]:5001", "localhost"])
      for (const scheme of ["http", "https"]) {
        t.equal(await call(`${scheme}://${host}`, host), 200, `${scheme}://${host}`);
        t.equal(await call(`${scheme}://${host}`, host, "POST /manager/login"), 200, host);
      }
    const refused = [
      ["http://127.0.0.1:8080", "127.0.0.1:5001", "a page from another port"],
      ["http://localhost:5001", "127.0.0.1:5001", "another name of this machine"],
      ["http://evil.example:5001", "evil.example:5001", "a rebound name"],
      ["http://127.0.0.1.evil.example:5001", "127.0.0.1.evil.example:5001", "a longer name"],
      ["http://127.0.0.2:5001", "127.0.0.2:5001", "another loopback address"],
      ["null", "127.0.0.1:5001", "a sandboxed frame, or a form without a referrer"],
      ["ftp://127.0.0.1:5001", "127.0.0.1:5001", "another scheme"],
      ["127.0.0.1:5001", "127.0.0.1:5001", "no origin"],
    ] as const;
    for (const [origin, host, name] of refused) {
      t.equal(await call(origin, host), 403, name);
      t.equal(await call(origin, host, "POST /manager/login"), 403, name);
    }
  },
);

t.test(
  "a login from a web page of another site or with a foreign host name is rejected unless calls need a credential",
  async (t) => {
    const body = { username: "admin", password: "right" };
    const fromPage = { origin: "https://evil.example", host: "127.0.0.1:5001" };
    const fromOtherHost = { host: "evil.example:5001" };
    const unprotectedApi = await startApi();
    const login = async (headers: Record<string, string>, api = unprotectedApi) =>
      (await inject(api, "POST /manager/login", { headers, body })).status;
    t.equal(await login({ host: "127.0.0.1:5001" }), 200);
    for (const headers of [fromPage, fromOtherHost]) t.equal(await login(headers), 403);
    const authorization = await unprotectedApi.login();
    t.equal(await login({ ...fromPage, authorization }), 403);
    const protectedApi = await startApi({ requiresCredential: true });
    for (const headers of [fromPage, fromOtherHost])
      t.equal(await login(headers, protectedApi), 200);
  },
);
