// What a node says of itself: health, readiness, metrics that move, its OpenAPI document, migration; and what every endpoint has in common:
// error bodies, statuses of the edge, limits of bodies and lists.

import { request } from "node:http";
import t, { type Test } from "tap";
import { connectNative } from "../support/native-client.ts";
import { eventually, farewell, person, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

/** The endpoints of issue 2, as a client of them would list them. */
const ENDPOINTS = [
  "POST /user/token",
  "POST /user/device_quit",
  "POST /user/onlinestatus",
  "POST /channel",
  "POST /channel/info",
  "POST /channel/subscriber_add",
  "POST /channel/subscriber_remove",
  "POST /message/send",
  "GET /channel/messages",
  "POST /manager/login",
  "POST /manager/logout",
  "GET /migrate/result",
  "GET /healthz",
  "GET /readyz",
  "GET /metrics",
  "GET /openapi.json",
];

/** The value of one sample; 0 where it is not there. */
async function metric(name: string): Promise<number> {
  const { body } = await world.call("/metrics");
  const line = String(body)
    .split("\n")
    .find((one) => one.startsWith(`${name} `));
  return Number(line?.slice(name.length) ?? 0);
}

/** Runs `act` and waits until the sample grew by exactly so much. */
async function moves(
  t: Test,
  expected: Readonly<Record<string, number>>,
  act: () => Promise<unknown>,
): Promise<void> {
  const names = Object.keys(expected);
  const before = await Promise.all(names.map(metric));
  await act();
  for (const [at, name] of names.entries()) {
    const wanted = (before[at] ?? 0) + (expected[name] ?? 0);
    await eventually(async () => (await metric(name)) === wanted);
    t.pass(`${name} ${expected[name]}`);
  }
}

/** POSTs the text as it is; returns status and parsed body. */
async function post(path: string, body: string, type?: string) {
  const headers: Record<string, string> = {};
  if (type !== undefined) headers["content-type"] = type;
  const url = `http://127.0.0.1:${world.apiPort}${path}`;
  const bytes = new TextEncoder().encode(body); // a string would bring its own content type
  const response = await fetch(url, { method: "POST", body: bytes, headers });
  return { status: response.status, body: await response.json() };
}

t.test(
  "GET /migrate/result: migrated, there being nothing to migrate [spec: GET /migrate/result 200; spec: Migration result; decisions: Migration]",
  async (t) => {
    const { status, body } = await world.call("/migrate/result");
    t.equal(status, 200);
    const nothing = { step: "", last_err: null, try_count: 0 };
    t.same(body, { status: "migrated", ...nothing });
  },
);

t.test(
  "GET /healthz and GET /readyz: 200 while the node serves [issue: healthz; issue: readyz]",
  async (t) => {
    for (const path of ["/healthz", "/readyz"])
      t.equal((await world.call(path)).status, 200);
    t.same((await world.call("/readyz")).body, { status: "ready" });
  },
);

t.test(
  "GET /readyz: 503 with Retry-After while the node drains, and sessions are told to reconnect [issue: readyz; decisions: Other statuses 503]",
  async (t) => {
    const node = await startWorld(t, { JINDOU_DRAIN_TIMEOUT_MS: "2000" });
    const clients = await Promise.all(
      ["a", "b", "c", "d"].map((uid) => node.join(t, uid)),
    );
    const closing = node.close();
    const { status, body, headers } = await node.call("/readyz");
    t.match({ status, body }, { status: 503, body: { code: "unavailable" } });
    t.ok(Number(headers.get("retry-after")) >= 1);
    t.equal((await node.call("/healthz")).status, 200, "it lives");
    const late = connectNative(t, { port: node.clientPort, uid: "a" });
    await t.rejects(late, { code: "http_503" });
    for (const client of clients)
      t.equal(await farewell(client), "draining 4000");
    await closing;
  },
);

t.test(
  "GET /metrics: Prometheus text that moves when things happen [issue: metrics]",
  async (t) => {
    const { status, headers } = await world.call("/metrics");
    t.equal(status, 200);
    t.match(headers.get("content-type"), /^text\/plain/);
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await moves(
      t,
      {
        jindou_connections: 2,
        jindou_connections_opened_total: 2,
        'jindou_sessions{device_flag="app"}': 1,
        'jindou_sessions{device_flag="desktop"}': 1,
      },
      async () => {
        await world.join(t, bob, { flag: 0 });
        await world.join(t, bob, { flag: 2 });
      },
    );
    const no = { client_msg_no: "n-1" };
    await moves(
      t,
      {
        'jindou_messages_accepted_total{channel_type="group",source="http"}': 2,
        jindou_messages_duplicate_total: 1,
        jindou_store_appends_total: 1,
        jindou_fanouts_total: 1,
        jindou_deliveries_total: 2,
        'jindou_http_requests_total{route="/message/send",status="200"}': 2,
      },
      async () => {
        await world.send(alice, channel, "x", no);
        await world.send(alice, channel, "x", no);
      },
    );
  },
);

t.test(
  "GET /metrics: what is refused, ended, acknowledged and logged in is counted too [issue: metrics]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, alice, { level: 1 });
    const sent = 'source="socket"';
    await moves(
      t,
      {
        [`jindou_messages_accepted_total{channel_type="person",${sent}}`]: 1,
        [`jindou_requests_refused_total{code="bad_id",${sent}}`]: 1,
        [`jindou_send_duration_seconds_count{${sent}}`]: 1,
        jindou_recvack_delay_seconds_count: 1,
        jindou_frames_received_total: 3,
      },
      async () => {
        const ack = await client.send(person(bob), "x");
        await client.send(person("a@b"), "x").catch(() => undefined);
        client.recvack(person(bob), ack);
      },
    );
    await moves(
      t,
      { 'jindou_connections_ended_total{reason="kicked"}': 1 },
      () => world.connect(t, alice),
    );
    const login = { username: "admin", password: world.passwords[0] };
    await moves(t, { 'jindou_manager_logins_total{outcome="ok"}': 1 }, () =>
      world.ok("/manager/login", login),
    );
  },
);

t.test(
  "GET /openapi.json: 3.1, and describes exactly the endpoints there are [issue: openapi]",
  async (t) => {
    const { status, body } = await world.call("/openapi.json");
    t.equal(status, 200);
    t.match(body.openapi, /^3\.1\./);
    const described = Object.entries<object>(body.paths).flatMap(
      ([path, methods]) =>
        Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
    );
    t.same(described.sort(), [...ENDPOINTS].sort());
  },
);

t.test(
  "error bodies have error, code and status; those of validation also details [decisions: Error body]",
  async (t) => {
    const wrong = await world.call("/user/token", { uid: 5 });
    t.equal(wrong.status, 400);
    const { error, details, ...rest } = wrong.body;
    t.type(error, "string");
    t.same(rest, { code: "bad_request", status: 400 });
    for (const one of details)
      t.same(Object.keys(one).sort(), ["message", "path"]);
    t.ok(details.some(({ path }: { path: string }) => path === "uid"));
    const missing = await world.call("/channel/info", {
      ...wire(person("none")),
    });
    t.same(Object.keys(missing.body).sort(), ["code", "error", "status"]);
  },
);

t.test(
  "an unknown path is 404, a wrong method 405 with Allow, on every endpoint [decisions: Other statuses 404; decisions: Other statuses 405]",
  async (t) => {
    for (const path of ["/nothing", "/user", "/user/token/x"]) {
      const { status, body } = await world.call(path, {});
      t.match({ status, body }, { status: 404, body: { code: "not_found" } });
    }
    for (const endpoint of ENDPOINTS) {
      const [method = "", path = ""] = endpoint.split(" ");
      const other = method === "POST" ? undefined : {};
      const answer = await world.call(path, other);
      t.match(answer, { status: 405, body: { code: "method_not_allowed" } });
      t.equal(answer.headers.get("allow")?.includes(method), true, endpoint);
    }
  },
);

t.test(
  "a content type that is not JSON is 415; a missing one, or one with parameters, is accepted [decisions: Other statuses 415]",
  async (t) => {
    const path = "/user/onlinestatus";
    for (const type of ["text/plain", "application/x-www-form-urlencoded"])
      t.match(await post(path, "[]", type), {
        status: 415,
        body: { code: "unsupported_media_type" },
      });
    for (const type of [
      undefined,
      "application/json",
      "application/json; charset=utf-8",
    ])
      t.same(await post(path, "[]", type), { status: 200, body: [] });
  },
);

t.test("a body that is no JSON is 400 [decisions: Error body]", async (t) => {
  for (const body of ["", "{", "[}", "nul"])
    t.match(await post("/user/onlinestatus", body), {
      status: 400,
      body: { code: "bad_request" },
    });
});

t.test(
  "a body over 1 MiB is 413, declared or streamed; one below is read [decisions: Other statuses 413; decisions: Limits]",
  async (t) => {
    const body = (bytes: number) => `["${"x".repeat(bytes - 4)}"]`;
    const path = "/user/onlinestatus";
    const over = await post(path, body(1_048_577), "application/json");
    t.match(over, { status: 413, body: { code: "too_large", status: 413 } });
    const most = await post(path, body(1_048_576), "application/json");
    t.match(most, { status: 400, body: { code: "bad_id" } });
    t.equal(await streamed(path, 1_100_000), 413);
  },
);

/** POSTs so many bytes without saying how many; resolves with the status. */
function streamed(path: string, bytes: number): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const { apiPort: port } = world;
    const host = "127.0.0.1";
    const call = request({ host, port, path, method: "POST" }, (response) => {
      response.resume();
      resolve(response.statusCode);
    });
    call.on("error", reject);
    for (let left = bytes; left > 0; left -= 50_000)
      call.write("x".repeat(50_000));
    call.end();
  });
}

t.test(
  "unknown fields of a body are accepted and ignored [decisions: Unknown body fields]",
  async (t) => {
    const uid = world.name("alice");
    const body = { uid, token: "t", device_flag: 0, nonsense: { deep: [1] } };
    t.same(await world.ok("/user/token", body), { status: "ok" });
    const header = { no_persist: 0, nonsense: 1 };
    const more = { header, nonsense: "x" };
    t.equal((await world.send(uid, person("bob"), "x", more)).status, 200);
  },
);

t.test(
  "ids have 1 to 128 characters, no control characters, none of @ # & [decisions: Limits]",
  async (t) => {
    const register = (uid: string) =>
      world.call("/user/token", { uid, token: "t", device_flag: 0 });
    for (const uid of ["x", "x".repeat(128), "用户-1 ü😀"])
      t.equal((await register(uid)).status, 200, uid);
    for (const uid of ["", "x".repeat(129), "a@", "#a", "a&b", "a\n", "\u007f"])
      t.match(await register(uid), { status: 400, body: { code: "bad_id" } });
  },
);

t.test(
  "client_msg_no has 1 to 128 characters [decisions: Limits]",
  async (t) => {
    const send = async (client_msg_no: string) => {
      const bob = person(world.name("bob"));
      return (await world.send("alice", bob, "x", { client_msg_no })).status;
    };
    t.equal(await send("@".repeat(128)), 200);
    t.equal(await send("@".repeat(129)), 400);
    t.equal(await send(""), 400);
  },
);

t.test(
  "10000 subscribers in a call and 10000 uids in a status call are taken, one more is 400 [decisions: Limits]",
  async (t) => {
    const most = Array.from({ length: 10_000 }, (_, i) => `u${i}`);
    const over = [...most, "one-more"];
    const channel = { channel_id: world.name("group"), channel_type: 2 };
    const calls = [
      ["/channel", (subscribers: string[]) => ({ ...channel, subscribers })],
      [
        "/channel/subscriber_add",
        (subscribers: string[]) => ({ ...channel, subscribers }),
      ],
      [
        "/channel/subscriber_remove",
        (subscribers: string[]) => ({ ...channel, subscribers }),
      ],
      ["/user/onlinestatus", (uids: string[]) => uids],
    ] as const;
    for (const [path, bodyOf] of calls) {
      const refused = await world.refusal(path, bodyOf(over));
      t.equal(refused, "400 bad_request", path);
      await world.ok(path, bodyOf(most));
    }
  },
);

t.test("limits are configurable [decisions: Limits]", async (t) => {
  const small = await startWorld(t, {
    JINDOU_API_MAX_SUBSCRIBERS_PER_CALL: "2",
    JINDOU_API_MAX_UIDS_PER_PRESENCE_CALL: "1",
    JINDOU_API_MAX_BODY_BYTES: "8192",
    JINDOU_MESSAGES_MAX_PAYLOAD_BYTES: "1024",
  });
  const subscribers = ["a", "b", "c"];
  const body = { channel_id: "g", channel_type: 2, subscribers };
  t.equal(await small.refusal("/channel", body), "400 bad_request");
  const path = "/user/onlinestatus";
  t.equal(await small.refusal(path, ["a", "b"]), "400 bad_request");
  const uid = "x".repeat(9000);
  t.equal(await small.refusal(path, [uid]), "413 too_large");
  const sent = await small.send("a", person("b"), "x".repeat(1024));
  t.match(sent, { status: 400, body: { code: "too_large" } });
});
