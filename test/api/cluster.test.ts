// Tests of the endpoints /cluster/nodes, /route and /route/batch, and of how a node is chosen for a
// client.

import { chooseNode } from "../../src/api/cluster.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import type { NodeInfo } from "../../src/broker/ports.ts";
import { t } from "../support/suite.ts";
import { IDLE_NODE, inject, startApi } from "./harness.ts";

const nodeOf = (nodeId: string, more: Partial<NodeInfo> = {}): NodeInfo => ({
  ...IDLE_NODE,
  nodeId,
  clientAddress: `${nodeId}:5200`,
  ...more,
});

t.test(
  "GET /cluster/nodes returns the address, version, uptime and load of every node",
  async (t) => {
    const api = await startApi();
    api.nodes = [
      nodeOf("a", { sessions: 3, load: 0.25 }),
      nodeOf("b", { isDraining: true, clientAddress: "", startedAtMs: 1e15 }),
    ];
    const { status, json } = await inject(api, "GET /cluster/nodes");
    t.equal(status, 200);
    t.same(json, [
      {
        ...{ id: "a", address: "a:5200", tcp_address: "", version: "1.2.3", uptime: 61 },
        ...{ sessions: 3, load: 0.25, draining: 0 },
      },
      {
        ...{ id: "b", address: "", tcp_address: "", version: "1.2.3", uptime: 0 },
        ...{ sessions: 0, load: 0, draining: 1 },
      },
    ]);
  },
);

t.test("GET /route returns the addresses to which a client should connect", async (t) => {
  const api = await startApi();
  const noAddresses = { tcp_addr: "", ws_addr: "", wss_addr: "" };
  for (const [clientAddress, expected] of [
    ["chat.example:5200", { ws_addr: "ws://chat.example:5200" }],
    ["ws://chat.example/x", { ws_addr: "ws://chat.example/x" }],
    ["wss://chat.example:5200", { wss_addr: "wss://chat.example:5200" }],
    ["", {}],
  ] as const) {
    api.nodes = [nodeOf("a", { clientAddress })];
    const { status, json } = await inject(api, "GET /route?uid=u&intranet=1");
    t.equal(status, 200);
    t.same(json, { ...noAddresses, ...expected });
  }
  api.nodes = [nodeOf("a", { clientAddress: "", tcpAddress: "chat.example:5100" })];
  const { json } = await inject(api, "GET /route?uid=u");
  t.same(json, { ...noAddresses, tcp_addr: "chat.example:5100" });
  t.equal((await inject(api, "GET /route")).status, 200, "uid is optional");
  t.equal((await inject(api, "GET /route?uid=a%40b")).status, 400);
});

t.test(
  "GET /route chooses, for each kind of address, a node that has an address of that kind",
  async (t) => {
    const api = await startApi();
    api.nodes = [nodeOf("a"), nodeOf("b", { clientAddress: "", tcpAddress: "b:5100" })];
    const { json } = await inject(api, "GET /route?uid=u");
    t.same(json, { tcp_addr: "b:5100", ws_addr: "ws://a:5200", wss_addr: "" });
    const batch = await inject(api, "POST /route/batch", { body: ["u", "v"] });
    t.same(batch.json, [{ uids: ["u", "v"], ...json }]);
  },
);

t.test(
  "POST /route/batch groups uids by the addresses to which their clients should connect",
  async (t) => {
    const api = await startApi();
    api.nodes = [nodeOf("a"), nodeOf("b"), nodeOf("c", { load: 0.9 })];
    const uids = Array.from({ length: 40 }, (_, at) => `u${at}`);
    const { json } = await inject(api, "POST /route/batch", { body: uids });
    t.same(json.map((node: { ws_addr: string }) => node.ws_addr).sort(), [
      "ws://a:5200",
      "ws://b:5200",
    ]);
    t.same(json.flatMap((node: { uids: string[] }) => node.uids).sort(), [...uids].sort());
    const [first] = json;
    const single = await inject(api, `GET /route?uid=${first.uids[0]}`);
    t.equal(single.json.ws_addr, first.ws_addr, "GET /route returns the same node for the uid");
    t.same((await inject(api, "POST /route/batch", { body: [] })).json, []);
    for (const body of [{}, ["a@b"], "u", [1]])
      t.equal((await inject(api, "POST /route/batch", { body })).status, 400);
  },
);

t.test(
  "/route and /route/batch are rejected with 503 if no node accepts sessions, and /cluster/nodes is rejected with 503 if the nodes cannot be read",
  async (t) => {
    const api = await startApi();
    api.nodes = [nodeOf("a", { isDraining: true })];
    for (const [target, body] of [
      ["GET /route", undefined],
      ["POST /route/batch", ["u"]],
    ] as const) {
      const { status, json } = await inject(api, target, { body });
      t.equal(status, 503);
      t.equal(json.code, "unavailable");
    }
    api.failure = new BrokerError("unavailable");
    t.equal((await inject(api, "GET /cluster/nodes")).status, 503);
  },
);

t.test("a client is routed to one of the least loaded nodes that accept sessions", async (t) => {
  const chosen = (...nodes: NodeInfo[]) =>
    [...new Set(Array.from({ length: 100 }, (_, at) => chooseNode(nodes, `u${at}`)?.nodeId))]
      .sort()
      .join();
  t.equal(
    chosen(nodeOf("a"), nodeOf("b")),
    "a,b",
    "different uids are spread over equally loaded nodes",
  );
  t.equal(chosen(nodeOf("a", { load: 0.3 }), nodeOf("b")), "b");
  t.equal(chosen(nodeOf("a", { load: 0.1 }), nodeOf("b")), "a,b");
  t.equal(chosen(nodeOf("a", { sessions: 17 }), nodeOf("b")), "b");
  t.equal(chosen(nodeOf("a", { sessions: 16 }), nodeOf("b")), "a,b");
  t.equal(
    chosen(
      nodeOf("a", { sessions: 1200 }),
      nodeOf("b", { sessions: 1000 }),
      nodeOf("c", { sessions: 1100 }),
    ),
    "b,c",
  );
  t.equal(
    chosen(nodeOf("a", { clientAddress: "" }), nodeOf("b", { load: 1 })),
    "b",
    "a node with an address is preferred to a node without one",
  );
  t.equal(chosen(nodeOf("a", { isDraining: true }), nodeOf("b", { load: 1 })), "b");
  t.equal(chooseNode([], "u"), undefined);
  const nodes = [nodeOf("a"), nodeOf("b")];
  t.equal(
    chooseNode(nodes, "u1"),
    chooseNode([...nodes].reverse(), "u1"),
    "every node of the cluster chooses the same node",
  );
});

t.test("GET /route returns a client address without a scheme as a ws:// address", async (t) => {
  const api = await startApi();
  const routeTo = async (clientAddress: string) => {
    api.nodes = [nodeOf("a", { clientAddress })];
    return (await inject(api, "GET /route")).json;
  };
  const noAddresses = { tcp_addr: "", ws_addr: "", wss_addr: "" };
  for (const [address, expected] of [
    ["[::1]:5200", { ...noAddresses, ws_addr: "ws://[::1]:5200" }],
    ["ws://a:80", { ...noAddresses, ws_addr: "ws://a:80" }],
    ["wss://a", { ...noAddresses, wss_addr: "wss://a" }],
    ["", noAddresses],
  ] as const)
    t.same(await routeTo(address), expected, address);
});
