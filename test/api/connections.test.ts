// Tests of the session endpoints (/user/devices, /conn/kick, /connz) and of the process endpoints
// (/varz, /health).

import type { LocalConnection } from "../../src/api/connections.ts";
import type { SessionRecord } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { IDLE_NODE, inject, startApi } from "./harness.ts";

const SESSION: SessionRecord = {
  sessionId: "n1-1",
  nodeId: "n1",
  uid: "alice",
  flag: 1,
  level: 1,
  deviceId: "browser",
  tokenTag: "secret-tag",
};

/** Returns a connection whose session began `ageMs` milliseconds ago. */
function connection(sessionId: string, uid: string, ageMs: number): LocalConnection {
  return {
    session: { ...SESSION, sessionId, uid },
    sinceMs: IDLE_NODE.startedAtMs + 61_000 - ageMs,
    ...{ address: "192.0.2.7", listener: "client", format: "native", version: 1 },
    isForeground: false,
    pendingBytes: () => 5,
  };
}

t.test(
  "GET /user/devices returns the registered device types and the live sessions, and no token",
  async (t) => {
    const api = await startApi();
    const device = { uid: "alice", flag: 1, level: 1 } as const;
    api.devices = [
      { ...device, tokenHash: Buffer.from("secret-hash") },
      { ...device, flag: 2, tokenHash: new Uint8Array() },
    ];
    api.sessions = [SESSION];
    const answer = await inject(api, "GET /user/devices?uid=alice");
    t.same(answer.json, {
      devices: [
        { device_flag: 1, device_level: 1, has_token: 1 },
        { device_flag: 2, device_level: 1, has_token: 0 },
      ],
      sessions: [
        {
          session_id: "n1-1",
          node_id: "n1",
          device_flag: 1,
          device_level: 1,
          device_id: "browser",
        },
      ],
    });
    t.notMatch(answer.text, /secret/);
  },
);

t.test("POST /conn/kick ends the session with the uid and session id in the body", async (t) => {
  const api = await startApi();
  const body = { uid: "alice", conn_id: "n1-1", node_id: 1 };
  const { json } = await inject(api, "POST /conn/kick", { body });
  t.same(json, { status: "ok" });
  t.same(api.calls, [{ call: "kick", args: ["alice", "n1-1"] }]);
  for (const conn_id of ["", -7, 1.5, true, undefined]) {
    const { status } = await inject(api, "POST /conn/kick", {
      body: { ...body, conn_id },
    });
    t.equal(status, 400);
  }
});

t.test("GET /connz returns a page of sessions in the requested order", async (t) => {
  const api = await startApi();
  api.connections = [
    connection("n1-10", "alice", 5000),
    connection("n1-9", "bob", 9000),
    connection("n1-2", "malice", 1000),
  ];
  const ids = async (query: string) => {
    const { json } = await inject(api, `GET /connz?${query}`);
    return [json.total, ...json.connections.map(({ id }: { id: string }) => id)];
  };
  t.same(await ids(""), [3, "n1-2", "n1-9", "n1-10"]);
  t.same(await ids("sort=idDesc"), [3, "n1-10", "n1-9", "n1-2"]);
  t.same(await ids("sort=uptime"), [3, "n1-2", "n1-10", "n1-9"]);
  t.same(await ids("sort=uptimeDesc"), [3, "n1-9", "n1-10", "n1-2"]);
  t.same(await ids("offset=1&limit=1"), [3, "n1-9"]);
  t.same(await ids("uid=lice"), [2, "n1-2", "n1-10"]);
  const { json } = await inject(api, "GET /connz?uid=bob");
  t.match(json, { offset: 0, limit: 20, now: "1970-01-01T00:17:41.000Z" });
  t.same(json.connections, [
    {
      ...{ id: "n1-9", conn_id: 4_142_501_573_165_065, uid: "bob", ip: "192.0.2.7", uptime: 9 },
      listener: "client",
      ...{ pending_bytes: 5, device: "web", device_flag: 1, device_level: 1 },
      ...{ device_id: "browser", format: "native", version: 1, node_id: "n1" },
      foreground: 0,
    },
  ]);
  t.equal((await inject(api, "GET /connz?sort=idle")).status, 400);
});

t.test(
  "GET /connz yields to the event loop, and reads pending bytes only for the sessions in the page",
  async (t) => {
    const api = await startApi();
    let measured = 0;
    const pendingBytes = () => {
      measured += 1;
      return 0;
    };
    const order = Array.from({ length: 50 }, (_, at) => (at * 7) % 50);
    let [hasYielded, yieldedDuringIteration] = [false, false];
    setImmediate(() => {
      hasYielded = true;
    });
    api.connections = (function* () {
      for (const at of order) {
        const sinceMs = performance.now();
        while (performance.now() - sinceMs < 1); // together longer than a time slice
        yieldedDuringIteration = hasYielded;
        yield { ...connection(`n1-${at + 100}`, "u", at), pendingBytes };
      }
    })();
    const query = "sort=uptimeDesc&offset=10&limit=15";
    const { json } = await inject(api, `GET /connz?${query}`);
    t.ok(yieldedDuringIteration, "other work runs during the call");
    t.equal(measured, 15);
    t.equal(json.total, 50);
    t.same(
      json.connections.map(({ id }: { id: string }) => id),
      Array.from({ length: 15 }, (_, at) => `n1-${139 - at}`),
    );
  },
);

t.test(
  "GET /varz returns the version, connections and memory of the process, and GET /health reports whether the node is ready",
  async (t) => {
    const api = await startApi();
    const { json } = await inject(api, "GET /varz");
    t.match(json, {
      ...{ server_id: "n1", version: "1.2.3", ws_addr: "chat:5200" },
      ...{ connections: 3, sessions: 2, out_msgs: 7, uptime: 61 },
    });
    t.ok(json.mem > 1_000_000);
    t.same((await inject(api, "GET /health")).json, { status: "ok" });
    api.ready = false;
    t.equal((await inject(api, "GET /health")).status, 503);
  },
);
