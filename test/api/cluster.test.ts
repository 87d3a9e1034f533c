// The calls about nodes: /cluster/nodes, /route, /route/batch, and which node a client is sent to.

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

t.test("GET /cluster/nodes: every node with what is known of it", async (t) => {
  const api = await startApi();
  api.nodes = [
    nodeOf("a", { sessions: 3, load: 0.25 }),
    nodeOf("b", { isDraining: true, clientAddress: "", startedAtMs: 1e15 }),
  ];
  const { status, json } = await inject(api, "GET /cluster/nodes");
  t.equal(status, 200);
  t.same(json, [
    {
      ...{ id: "a", address: "a:5200", version: "1.2.3", uptime: 61 },
      ...{ sessions: 3, load: 0.25, draining: 0 },
    },
    {
      ...{ id: "b", address: "", version: "1.2.3", uptime: 0 },
      ...{ sessions: 0, load: 0, draining: 1 },
    },
  ]);
});

t.test("GET /route: addresses of the node to connect to", async (t) => {
  const api = await startApi();
  const none = { tcp_addr: "", ws_addr: "", wss_addr: "" };
  for (const [clientAddress, expected] of [
    ["chat.example:5200", { ws_addr: "ws://chat.example:5200" }],
    ["ws://chat.example/x", { ws_addr: "ws://chat.example/x" }],
    ["wss://chat.example:5200", { wss_addr: "wss://chat.example:5200" }],
    ["", {}],
  ] as const) {
    api.nodes = [nodeOf("a", { clientAddress })];
    const { status, json } = await inject(api, "GET /route?uid=u&intranet=1");
    t.equal(status, 200);
    t.same(json, { ...none, ...expected });
  }
  t.equal((await inject(api, "GET /route")).status, 200, "anybody's");
  t.equal((await inject(api, "GET /route?uid=a%40b")).status, 400);
});

t.test("POST /route/batch: the uids by the node they should go to", async (t) => {
  const api = await startApi();
  api.nodes = [nodeOf("a"), nodeOf("b"), nodeOf("c", { load: 0.9 })];
  const uids = Array.from({ length: 40 }, (_, at) => `u${at}`);
  const { json } = await inject(api, "POST /route/batch", { body: uids });
  t.same(json.map((one: { ws_addr: string }) => one.ws_addr).sort(), [
    "ws://a:5200",
    "ws://b:5200",
  ]);
  t.same(json.flatMap((one: { uids: string[] }) => one.uids).sort(), [...uids].sort());
  const [first] = json;
  const alone = await inject(api, `GET /route?uid=${first.uids[0]}`);
  t.equal(alone.json.ws_addr, first.ws_addr, "as if asked one by one");
  t.same((await inject(api, "POST /route/batch", { body: [] })).json, []);
  for (const body of [{}, ["a@b"], "u", [1]])
    t.equal((await inject(api, "POST /route/batch", { body })).status, 400);
});

t.test("no node that takes sessions, or none that can tell: 503", async (t) => {
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
  api.thrown = new BrokerError("unavailable");
  t.equal((await inject(api, "GET /cluster/nodes")).status, 503);
});

t.test("the least loaded node is chosen", async (t) => {
  const chosen = (...nodes: NodeInfo[]) =>
    [...new Set(Array.from({ length: 100 }, (_, at) => chooseNode(nodes, `u${at}`)?.nodeId))]
      .sort()
      .join();
  t.equal(chosen(nodeOf("a"), nodeOf("b")), "a,b", "a crowd is spread");
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
    "one that can be reached before one that says no address",
  );
  t.equal(chosen(nodeOf("a", { isDraining: true }), nodeOf("b", { load: 1 })), "b");
  t.equal(chooseNode([], "u"), undefined);
  const two = [nodeOf("a"), nodeOf("b")];
  t.equal(chooseNode(two, "u1"), chooseNode([...two].reverse(), "u1"), "whichever node is asked");
});

t.test("an address is read by its scheme", async (t) => {
  const api = await startApi();
  const routeTo = async (clientAddress: string) => {
    api.nodes = [nodeOf("a", { clientAddress })];
    return (await inject(api, "GET /route")).json;
  };
  const none = { tcp_addr: "", ws_addr: "", wss_addr: "" };
  for (const [address, expected] of [
    ["[::1]:5200", { ...none, ws_addr: "ws://[::1]:5200" }],
    ["ws://a:80", { ...none, ws_addr: "ws://a:80" }],
    ["wss://a", { ...none, wss_addr: "wss://a" }],
    ["", none],
  ] as const)
    t.same(await routeTo(address), expected, address);
});
