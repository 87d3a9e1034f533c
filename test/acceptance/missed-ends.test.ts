// Clients that were away when streams ended: a client that resumes is sent the final state of each
// of these streams once, whatever its wire format, store and node, even after the node was killed.

import { setTimeout } from "node:timers/promises";
import t, { type Test } from "tap";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import type { ResumePoint } from "../../src/protocol/protocol.ts";
import { eventually } from "../behaviour/world.ts";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { freePort, startRedis, startRedisCluster } from "../support/redis.ts";
import { IS_FULL } from "../support/volume.ts";
import { nativeWire } from "../support/wire.ts";
import { connectWkproto } from "../support/wkproto-client.ts";

const START = "___TextMessageStart";
const CONTENT = "___TextMessageContent";
const END = "___TextMessageEnd";
const GROUP: ChannelRef = { id: "team", type: 2 };
const QUIET: ChannelRef = { id: "quiet", type: 2 };
/** Streams of the Durable Streams protocol, which are active at the same time. */
const AGENTS = ["first", "second"];
const WIRES = { native: nativeWire, "JSON-RPC": jsonRpcWire } as const;
const OPEN: Settings = {
  JINDOU_AUTH_CLIENTS: "none",
  JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "0",
  JINDOU_CLIENT_MAX_STORED_BYTES_PER_SECOND: "0",
};
/** Maximum number of ended streams that a client is sent when it resumes. */
const MAX_ENDS = 200;

t.setTimeout(600_000);

interface Nodes {
  /** Node that the clients and the producer use. */
  readonly node: () => ChildBroker;
  /** Kills the node with SIGKILL and starts its successor. */
  restart(): Promise<void>;
  /**
   * Node of the same cluster for clients that come back. On an embedded store, it is the only node.
   */
  readonly other: () => ChildBroker;
}

async function embedded(t: Test): Promise<Nodes> {
  let node = await spawnBroker(t, OPEN);
  const restart = async () => {
    await node.kill();
    node = await spawnBroker(t, OPEN, node.dataPath);
  };
  return { node: () => node, restart, other: () => node };
}

async function onRedis(t: Test, url: string): Promise<Nodes> {
  const settings = { ...OPEN, JINDOU_REDIS_URL: url, JINDOU_CLUSTER_DEAD_AFTER_MS: "20000" };
  const start = async () => {
    const apiPort = await freePort(); // part of the node's id
    return spawnBroker(t, { ...settings, JINDOU_NODE_ID: `n${apiPort}` });
  };
  let [node, other] = await Promise.all([start(), start()]);
  const restart = async () => {
    await node.kill();
    node = await start();
  };
  return { node: () => node, restart, other: () => other };
}

interface Place {
  readonly formats: readonly (keyof typeof WIRES)[];
  start(t: Test): Promise<Nodes>;
}

const BOTH = ["native", "JSON-RPC"] as const;
/**
 * Stores, and the wire formats of the clients on each. Not every format runs on every store,
 * because the frames of a format do not depend on the store.
 */
const STORES = {
  "an embedded store": { formats: BOTH, start: embedded },
  Redis: {
    formats: IS_FULL ? BOTH : ["native"],
    start: async (t) => onRedis(t, (await startRedis(t)).url),
  },
  "a Redis Cluster": {
    formats: IS_FULL ? BOTH : ["JSON-RPC"],
    start: async (t) => onRedis(t, (await startRedisCluster(t)).url),
  },
} satisfies Readonly<Record<string, Place>>;

for (const [store, { formats, start }] of Object.entries(STORES)) {
  t.test(
    `a client gets the end of each stream that ended while the client was offline, on ${store}`,
    async (t) => {
      const nodes = await start(t);
      for (const format of formats) {
        const wire = WIRES[format];
        const uid = `bob-${format.at(0)}`;
        const world = worldOf(nodes, uid);
        await world.create();
        for (const returns of ["to the same node", "to another node", "after a kill"] as const) {
          const place = `${format}, ${returns}`;
          const client = await world.connect(t, wire(uid));
          await world.begin("seen", GROUP);
          await world.end("seen", GROUP);
          for (const channel of [GROUP, world.personal]) await world.begin("half", channel);
          for (const name of AGENTS) await world.write(name, "PUT");
          await client.waitFor(
            () => client.events.filter(({ type }) => type === CONTENT).length >= 3 + AGENTS.length,
            "the content",
          );
          const away = world.pointsOf(client);
          client.kill();
          for (const channel of [GROUP, world.personal]) await world.end("half", channel);
          for (const name of AGENTS) await world.write(name, "POST");
          await world.begin("whole", QUIET);
          await world.end("whole", QUIET);
          if (returns === "after a kill") await nodes.restart();
          await world.begin("next", GROUP);
          const back = await world.connect(t, wire(uid), {
            ...away,
            port: (returns === "to another node" ? nodes.other() : nodes.node()).clientPort,
          });
          await back.waitFor(
            () => endsOf(back).length >= 6 || textOf(back, "next") !== undefined,
            "the ends",
          );
          await back.waitFor(() => textOf(back, "next") !== undefined, "the active stream");
          const ends = () => endsOf(back).filter((end) => !end.startsWith("seen"));
          const agents = AGENTS.map((name) => `${name} team closed`);
          const expected = ["half team closed", `half bot closed`, "whole quiet closed", ...agents];
          await eventually(() => ends().length >= expected.length);
          t.same(ends().sort(), expected.sort(), place);
          t.same([textOf(back, "half"), textOf(back, "whole")], ["half text", "whole text"], place);
          for (const name of AGENTS) t.equal(textOf(back, name), `${name}${name}`, place);
          const kinds = back.pushes.flatMap((push) =>
            push.kind === "stream" && push.channel.id === GROUP.id ? push.snapshot.clientMsgNo : [],
          );
          t.ok(
            kinds.findIndex((no) => no.startsWith("half")) <
              kinds.findIndex((no) => no.startsWith("next")),
            `the end precedes the live messages of the channel: ${place}`,
          );
          back.kill();
          await world.end("next", GROUP);
          world.round += 1;
        }
      }
    },
  );
}

for (const store of ["an embedded store", "Redis"] as const) {
  const { start } = STORES[store];
  t.test(
    `a new login is sent no stream that has ended, and a client that resumes without positions is sent the streams that ended since its login, on ${store}`,
    async (t) => {
      const nodes = await start(t);
      const world = worldOf(nodes, "bob");
      await world.create();
      await world.begin("before", GROUP);
      await world.end("before", GROUP);
      await world.begin("half", GROUP);
      const first = await world.connect(t, nativeWire("bob"));
      await first.waitFor(() => textOf(first, "half") !== undefined, "the active stream");
      t.same(endsOf(first), []);
      const session = first.connack.sessionId;
      first.kill();
      await world.end("half", GROUP);
      const back = await world.connect(t, nativeWire("bob"), { session });
      await back.waitFor(() => textOf(back, "half") === "half text", "the end");
      t.ok(endsOf(back).includes("half team closed"));
      const again = await world.connect(t, nativeWire("bob"), { session: back.connack.sessionId });
      await again.waitFor(() => textOf(again, "half") === "half text", "the end again");
    },
  );

  t.test(
    `a client that missed the ends of more than ${MAX_ENDS} streams is sent only the ${MAX_ENDS} streams that ended last, on ${store}`,
    async (t) => {
      const nodes = await start(t);
      const world = worldOf(nodes, "bob");
      await world.create();
      const first = await world.connect(t, nativeWire("bob"));
      const session = first.connack.sessionId;
      first.kill();
      const count = MAX_ENDS + 5;
      for (let n = 0; n < count; n++) {
        await world.post(`n${n}`, GROUP, START, "");
        await world.post(`n${n}`, GROUP, END, "");
        // Streams that end in the same millisecond have no order.
        const endedMs = Date.now();
        while (Date.now() === endedMs) await setTimeout(1);
      }
      const port = nodes.other().clientPort;
      const back = await world.connect(t, nativeWire("bob"), { session, port });
      await back.waitFor(() => textOf(back, `n${count - 1}`) !== undefined, "the newest end");
      const numbers = back.pushesOf("stream").map(({ snapshot }) => snapshot.clientMsgNo);
      t.same(
        numbers,
        Array.from({ length: MAX_ENDS }, (_, n) => `n${n + 5}`),
        "oldest first",
      );
    },
  );

  t.test(
    `a client that cannot resume gets the streams that ended in the last minute, on ${store}`,
    async (t) => {
      const nodes = await start(t);
      const world = worldOf(nodes, "bob");
      await world.create();
      await world.begin("half", GROUP);
      await world.end("half", GROUP);
      const port = nodes.other().clientPort;
      const expected = [`${START} `, `${CONTENT} half text`, `${END} `];
      const web = await openJsonRpc(t, { port });
      await web.request("connect", { uid: "bob", token: "" });
      await web.waitFor(() => web.all("event").length >= 3, "the events");
      t.same(
        web.all("event").map(({ type, data }) => `${type} ${data}`),
        expected,
      );
      const binary = await connectWkproto(t, { port, uid: "bob", token: "" });
      await binary.next("EVENT", ({ type }) => type === END);
      const packets = binary.received.filter(({ packet }) => packet === "EVENT");
      t.same(
        packets.map(({ fields: { type, data } }) => `${type} ${data}`),
        expected,
      );
    },
  );
}

/**
 * Returns `<clientMsgNo> <channel> <state>` of each ended stream that was pushed. The `clientMsgNo`
 * is cut before its first hyphen.
 */
function endsOf(client: NativeClient): readonly string[] {
  return client.pushesOf("stream").flatMap(({ channel, snapshot }) => {
    const { state, clientMsgNo } = snapshot;
    return state === "active" ? [] : [`${clientMsgNo.split("-")[0]} ${channel.id} ${state}`];
  });
}

/** Returns the text of the last pushed state of the stream. */
function textOf(client: NativeClient, name: string): string | undefined {
  const pushes = client
    .pushesOf("stream")
    .filter(({ snapshot }) => snapshot.clientMsgNo.startsWith(name));
  return pushes.at(-1)?.snapshot.text;
}

/** Streams of the user `bot` for the viewer `uid`. */
function worldOf(nodes: Nodes, uid: string) {
  const personal: ChannelRef = { id: "bot", type: 1 };
  const world = {
    personal,
    /** Number in the names of streams, so that the same names can be used in the next round. */
    round: 0,
    async create() {
      for (const { id } of [GROUP, QUIET]) {
        await nodes.node().call("/channel", { channel_id: id, channel_type: 2 });
        const members = { channel_id: id, channel_type: 2, subscribers: ["bot", uid] };
        await nodes.node().call("/channel/subscriber_add", members);
      }
    },
    connect: (t: Test, wire: ReturnType<typeof nativeWire>, options: object = {}) =>
      connectNative(t, { port: nodes.node().clientPort, uid, wire, ...options }),
    async post(no: string, channel: ChannelRef, type: string, data: string) {
      const { status, body } = await nodes.node().call("/event", {
        ...{ from_uid: "bot", client_msg_no: no },
        channel_id: channel.type === 1 ? uid : channel.id,
        channel_type: channel.type,
        event: { type, data },
      });
      if (status !== 200) throw new Error(`${type} of ${no}: ${JSON.stringify(body)}`);
    },
    /** Begins (PUT) or ends (POST) a stream of the group over the Durable Streams protocol. */
    async write(name: string, method: "PUT" | "POST") {
      const origin = `http://127.0.0.1:${nodes.node().apiPort}`;
      const path = `/v1/stream/channel/2/${GROUP.id}/${world.nameOf(name)}`;
      const closing = method === "POST" ? { "stream-closed": "true" } : undefined;
      const headers = { "content-type": "text/plain", "jindou-from": "bot", ...closing };
      const { status } = await fetch(origin + path, { method, headers, body: name });
      if (status !== 201 && status !== 204) throw new Error(`${method} ${name}: ${status}`);
    },
    nameOf: (name: string) => `${name}-${uid}-${world.round}`,
    async begin(name: string, channel: ChannelRef) {
      await world.post(world.nameOf(name), channel, START, "");
      await world.post(world.nameOf(name), channel, CONTENT, name);
    },
    async end(name: string, channel: ChannelRef) {
      await world.post(world.nameOf(name), channel, CONTENT, " text");
      await world.post(world.nameOf(name), channel, END, "");
    },
    /** Returns the CONNECT fields of a client that comes back. */
    pointsOf(client: NativeClient): { resume: readonly ResumePoint[]; session: string } {
      const points = new Map<string, ResumePoint>();
      for (const { channel: named, fromUid, messageSeq, messageId } of client.messages) {
        const channel = named.type === 1 ? { id: fromUid, type: 1 as const } : named;
        points.set(channelKey(channel, uid), { channel, lastSeq: messageSeq, lastId: messageId });
      }
      return { resume: [...points.values()], session: client.connack.sessionId };
    },
  };
  return world;
}
