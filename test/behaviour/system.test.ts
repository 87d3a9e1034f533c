// Information that a node provides about itself: health, readiness, metrics, the OpenAPI document
// and migration. Also tests the replies to unknown paths and methods.

import { once } from "node:events";
import type { Test } from "tap";
import { WebSocket } from "ws";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";
import { endingOf, eventually, person, startWorld } from "./world.ts";

const world = await startWorld(t);

/** Every endpoint of the API. */
const ENDPOINTS = [
  "GET /",
  "POST /user/token",
  "POST /user/device_quit",
  "POST /user/onlinestatus",
  "GET /user/devices",
  "GET /user/systemuids",
  "POST /user/systemuids_add",
  "POST /user/systemuids_remove",
  "POST /conn/kick",
  "GET /connz",
  "GET /channels/busiest",
  "GET /channel/readers",
  "POST /stream/cancel",
  "GET /admin/config",
  "GET /admin/errors",
  "GET /events",
  "POST /events/feed",
  "GET /admin/import",
  "POST /admin/import",
  "POST /admin/import/open",
  "POST /admin/import/close",
  "POST /channel",
  "POST /channel/info",
  "POST /channel/subscriber_add",
  "POST /channel/subscriber_remove",
  "POST /channel/subscriber_remove_all",
  "POST /channel/delete",
  "GET /channel/state",
  "GET /channel/members",
  "GET /channel/whitelist",
  "GET /user/channels",
  ...["blacklist", "whitelist"].flatMap((list) =>
    ["add", "set", "remove", "remove_all"].map((name) => `POST /channel/${list}_${name}`),
  ),
  "POST /message/send",
  "POST /message/sendbatch",
  "GET /channel/messages",
  "POST /channel/messagesync",
  "GET /channel/max_message_seq",
  "POST /messages",
  "GET /channel/last_message",
  "POST /message",
  "GET /message/byclientmsgno",
  "POST /message/sync",
  "POST /message/syncack",
  "POST /event",
  "GET /stream/{channel_type}/{channel_id}/{client_msg_no}",
  "GET /v1/stream/{path}",
  "PUT /v1/stream/{path}",
  "POST /v1/stream/{path}",
  "DELETE /v1/stream/{path}",
  "POST /v1/sign",
  "POST /v1/sign/rotate",
  "POST /webhooks",
  "GET /webhooks",
  "PATCH /webhooks/{id}",
  "DELETE /webhooks/{id}",
  "POST /webhooks/{id}/test",
  "POST /webhooks/{id}/replay",
  "POST /webhooks/{id}/secrets",
  "GET /webhooks/{id}/attempts",
  "GET /webhooks/{id}/failures",
  "POST /webhooks/{id}/failures/{event_id}/retry",
  "POST /conversation/sync",
  "POST /conversation/channels",
  "POST /conversation/syncByChannels",
  "POST /conversations/clearUnread",
  "POST /conversations/setUnread",
  "POST /conversations/delete",
  "POST /manager/login",
  "POST /manager/logout",
  "GET /cluster/nodes",
  "GET /route",
  "POST /route/batch",
  "GET /migrate/result",
  "GET /healthz",
  "GET /readyz",
  "GET /health",
  "GET /varz",
  "GET /metrics",
  "GET /openapi.json",
];

/** Returns the value of one sample, or 0 if the metric has none. */
async function metric(name: string): Promise<number> {
  const { body } = await world.call("/metrics");
  const line = String(body)
    .split("\n")
    .find((text) => text.startsWith(`${name} `));
  return Number(line?.slice(name.length) ?? 0);
}

/** Runs `act` and waits until each sample has grown by exactly the expected value. */
async function assertIncrease(
  t: Test,
  expected: Readonly<Record<string, number>>,
  act: () => Promise<unknown>,
): Promise<void> {
  const names = Object.keys(expected);
  const before = await Promise.all(names.map(metric));
  await act();
  for (const [at, name] of names.entries()) {
    const target = (before[at] ?? 0) + (expected[name] ?? 0);
    await eventually(async () => (await metric(name)) === target);
    t.pass(`${name} grows by ${expected[name]}`);
  }
}

// Covers [spec: GET /migrate/result 200; spec: Migration result; decisions: Migration]
t.test("GET /migrate/result returns `migrated` if there is nothing to migrate", async (t) => {
  const { status, body } = await world.call("/migrate/result");
  t.equal(status, 200);
  const nothing = { step: "", last_err: null, try_count: 0 };
  t.same(body, { status: "migrated", ...nothing });
});

// Covers [feature: healthz; feature: readyz]
t.test("GET /healthz and GET /readyz respond with 200 while the node is ready", async (t) => {
  for (const path of ["/healthz", "/readyz"]) t.equal((await world.call(path)).status, 200);
  t.same((await world.call("/readyz")).body, { status: "ready" });
});

// Covers [feature: readyz; decisions: Other statuses 503]
t.test(
  "GET /readyz responds with 503 and Retry-After while the node drains, and sessions are closed with code 4000",
  async (t) => {
    const node = await startWorld(t, {
      JINDOU_DRAIN_NOTICE_MS: "1000", // the calls below are served before the listeners close
      JINDOU_DRAIN_TIMEOUT_MS: "2000",
    });
    const clients = await Promise.all(["a", "b", "c", "d"].map((uid) => node.join(t, uid)));
    const closing = node.close();
    const { status, body, headers } = await node.call("/readyz");
    t.match({ status, body }, { status: 503, body: { code: "unavailable" } });
    t.ok(Number(headers.get("retry-after")) >= 1);
    t.equal((await node.call("/healthz")).status, 200, "the node is healthy");
    for (const client of clients) t.equal(await endingOf(client), "draining 4000");
    const late = connectNative(t, { port: node.clientPort, uid: "a" });
    // No other node can accept the clients, so this node may have closed its listeners already.
    await t.rejects(late, { code: /^(http_503|closed_1006)$/ });
    await closing;
  },
);

// Covers [feature: metrics]
t.test(
  "GET /metrics counts connections, sessions, messages and deliveries in Prometheus text format",
  async (t) => {
    const { status, headers } = await world.call("/metrics");
    t.equal(status, 200);
    t.match(headers.get("content-type"), /^text\/plain/);
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const channel = await world.newGroup([alice, bob]);
    await assertIncrease(
      t,
      {
        'jindou_connections{listener="client"}': 2,
        'jindou_connections_opened_total{listener="client"}': 2,
        'jindou_sessions{device_flag="app"}': 1,
        'jindou_sessions{device_flag="desktop"}': 1,
      },
      async () => {
        await world.join(t, bob, { flag: 0 });
        await world.join(t, bob, { flag: 2 });
      },
    );
    const number = { client_msg_no: "n-1" };
    await assertIncrease(
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
        await world.send(alice, channel, "x", number);
        await world.send(alice, channel, "x", number);
      },
    );
  },
);

// Covers [feature: metrics]
t.test(
  "GET /metrics counts refused requests, acknowledgements, ended connections and manager logins",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const client = await world.join(t, alice, { level: 1 });
    const source = 'source="socket"';
    await assertIncrease(
      t,
      {
        [`jindou_messages_accepted_total{channel_type="person",${source}}`]: 1,
        [`jindou_requests_refused_total{code="bad_id",${source}}`]: 1,
        [`jindou_send_duration_seconds_count{${source}}`]: 1,
        jindou_recvack_delay_seconds_count: 1,
        jindou_frames_received_total: 3,
      },
      async () => {
        const ack = await client.send(person(bob), "x");
        await client.send(person("a@b"), "x").catch(() => undefined);
        client.recvack(person(bob), ack);
      },
    );
    await assertIncrease(t, { 'jindou_connections_ended_total{reason="kicked"}': 1 }, () =>
      world.connect(t, alice),
    );
    const login = { username: "admin", password: world.passwords[0] };
    await assertIncrease(t, { 'jindou_manager_logins_total{outcome="ok"}': 1 }, () =>
      world.ok("/manager/login", login),
    );
  },
);

// Covers [feature: openapi]
t.test("GET /openapi.json describes every endpoint in OpenAPI 3.1", async (t) => {
  const { status, body } = await world.call("/openapi.json");
  t.equal(status, 200);
  t.match(body.openapi, /^3\.1\./);
  const described = Object.entries<object>(body.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  t.same(described.sort(), [...ENDPOINTS].sort());
});

// Covers [decisions: Other statuses 404; decisions: Other statuses 405]
t.test(
  "an unknown path is answered with 404, and a wrong method on a known path with 405 and an Allow header",
  async (t) => {
    for (const path of ["/nothing", "/user", "/user/token/x"]) {
      const { status, body } = await world.call(path, {});
      t.match({ status, body }, { status: 404, body: { code: "not_found" } });
    }
    for (const endpoint of ENDPOINTS) {
      const [method = "", path = ""] = endpoint.split(" ");
      if (ENDPOINTS.filter((each) => each.endsWith(` ${path}`)).length > 1) continue; // two methods
      const other = method === "POST" ? undefined : {};
      const response = await world.call(path, other);
      t.match(response, { status: 405, body: { code: "method_not_allowed" } });
      t.equal(
        response.headers.get("allow")?.includes(method),
        true,
        `the header Allow lists the method of ${endpoint}`,
      );
    }
  },
);

t.test("the API port refuses a WebSocket upgrade and names the address for clients", async (t) => {
  for (const path of ["/", "/socket"]) {
    const socket = new WebSocket(`ws://127.0.0.1:${world.apiPort}${path}`);
    const [request, response] = await once(socket, "unexpected-response");
    t.equal(response.statusCode, 400);
    const [chunk] = await once(response, "data");
    t.match(JSON.parse(String(chunk)), { code: "not_websocket", error: /clients connect to/ });
    request.destroy();
  }
});
