// Node information for backends: the live nodes, their load, and the address a client should
// connect to. The calls work in the same way on one node and on many nodes.

import { t } from "../support/suite.ts";
import { eventually, startWorld } from "./world.ts";

const CLIENT_ADDRESS = "wss://chat.example:5200";
const WKPROTO_ADDRESS = "chat.example:5100";

const world = await startWorld(t, {
  JINDOU_CLUSTER_CLIENT_ADDRESS: CLIENT_ADDRESS,
  JINDOU_CLUSTER_WKPROTO_ADDRESS: WKPROTO_ADDRESS,
});

interface Node {
  readonly id: string;
  readonly address: string;
  readonly version: string;
  readonly uptime: number;
  readonly sessions: number;
  readonly load: number;
  readonly draining: number;
}

const nodes = async (): Promise<Node[]> => (await world.call("/cluster/nodes")).body;

/** Returns the number of sessions on all nodes together. */
async function sessions(): Promise<number> {
  return (await nodes()).reduce((sum, node) => sum + node.sessions, 0);
}

// Covers [feature: cluster/nodes]
t.test("GET /cluster/nodes lists the live nodes with their sessions and load", async (t) => {
  t.equal((await world.call("/cluster/nodes")).status, 200);
  const all = await nodes();
  t.ok(all.length >= 1);
  t.equal(new Set(all.map((node) => node.id)).size, all.length);
  for (const node of all) {
    t.match(node, {
      address: CLIENT_ADDRESS,
      tcp_address: WKPROTO_ADDRESS,
      version: "test",
      draining: 0,
    });
    t.ok(node.uptime >= 0 && node.uptime < 600);
    t.ok(node.load >= 0 && node.load <= 1);
  }
  const before = await sessions();
  const tom = await world.join(t, world.name("tom"));
  await world.join(t, world.name("ann"));
  await eventually(async () => (await sessions()) === before + 2);
  await tom.close();
  await eventually(async () => (await sessions()) === before + 1);
});

// Covers [feature: route]
t.test(
  "GET /route and POST /route/batch return the address that clients should connect to",
  async (t) => {
    const addresses = { tcp_addr: WKPROTO_ADDRESS, ws_addr: "", wss_addr: CLIENT_ADDRESS };
    t.same((await world.call("/route?uid=tom")).body, addresses);
    const uids = Array.from({ length: 20 }, (_, at) => `u${at}`);
    const { status, body } = await world.call("/route/batch", uids);
    t.equal(status, 200);
    for (const record of body) t.match(record, addresses);
    t.same(body.flatMap((record: { uids: string[] }) => record.uids).sort(), [...uids].sort());
  },
);
