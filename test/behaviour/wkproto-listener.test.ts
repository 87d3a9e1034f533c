// The listener for WKProto over TCP on a real node: what it accepts, its limits, its sessions in
// /connz and the metrics, and clients that behave as WuKongIM's SDKs for phones do.

import { readFileSync } from "node:fs";
import { connect } from "node:net";
import type { Test } from "tap";
import { proxyHeader } from "../support/proxy-header.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";
import { openWkprotoTcp, TCP_LISTENER, tcpPortOf } from "../support/wkproto-client.ts";
import { PHONE_SDKS, type PhoneSdk, startPhone } from "../support/wkproto-phone.ts";
import { eventually, person, range, startWorld, type World, wire } from "./world.ts";

const ATTACKS = volume(1000, undefined, 60);
const SLOW_CONNECTIONS = volume(5000, undefined, 100);
const SUCCESS = 1;
const KICKED = 12;

const world = await startWorld(t, TCP_LISTENER);

const text = (content: string) => ({ type: 1, content });

async function join(t: Test, uid: string, options: { level?: 0 | 1 } = {}, target: World = world) {
  await target.register(uid, { level: options.level ?? 0 });
  const client = await openWkprotoTcp(t, { port: tcpPortOf(target), uid, deviceFlag: 0 });
  t.match(await client.connect(), { reasonCode: SUCCESS });
  await target.untilSubscribed();
  return client;
}

/** Sends bytes and returns everything that is received until the connection closes. */
function exchange(t: Test, port: number, bytes: string | Uint8Array): Promise<Buffer> {
  return new Promise((resolve) => {
    const socket = connect({ port, host: "127.0.0.1" });
    t.teardown(() => socket.destroy());
    let received = Buffer.alloc(0);
    socket.on("data", (data) => {
      received = Buffer.concat([received, data]);
    });
    socket.on("error", () => undefined); // "close" follows
    socket.on("close", () => resolve(received));
    socket.write(bytes);
  });
}

t.test("a connection whose first byte is not that of a CONNECT is closed", async (t) => {
  for (const bytes of [
    "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    '{"method":"connect","params":{},"id":"1"}',
    Buffer.from([0x70]),
    Buffer.from([0x32]),
    Buffer.from([0]),
  ]) {
    const received = await exchange(t, tcpPortOf(world), bytes);
    t.ok(received.length < 40, "at most a refusal is received");
  }
});

t.test(
  "packets that arrive in pieces of random sizes are all read, in the order of sending",
  async (t) => {
    const random = new Random(7);
    const [uid, peerUid] = [world.name("ann"), world.name("ben")];
    const channel = await world.newGroup([uid, peerUid]);
    const client = await join(t, uid);
    const peer = await join(t, peerUid);
    const packets = range(1, 20).map((clientSeq) =>
      client.encode("SEND", {
        ...{ clientSeq, clientMsgNo: `${uid}-${clientSeq}` },
        ...{ channelId: channel.id, channelType: channel.type },
        plain: JSON.stringify(text(`${clientSeq} ${"x".repeat(random.below(3000))}`)),
      }),
    );
    client.writeBytes(Buffer.concat(packets)); // the client sends them in pieces of random sizes
    const isRecv = ({ packet }: { readonly packet: string }) => packet === "RECV";
    await peer.nth(packets.length, isRecv);
    const seqs = peer.received.filter(isRecv).map(({ fields }) => fields.messageSeq);
    t.same(seqs, range(1, packets.length), "each message is received once, in order");
  },
);

t.test(
  "TCP sessions are listed in /connz, counted in the metrics, and can be kicked",
  async (t) => {
    const uid = world.name("ann");
    const client = await join(t, uid, { level: 1 });
    let connection: { readonly id: string } | undefined;
    await eventually(async () => {
      [connection] = (await world.call(`/connz?uid=${uid}`)).body.connections;
      return connection !== undefined;
    });
    t.match(connection, { listener: "wkproto", ip: "127.0.0.1", device: "app", version: 5 });
    const metrics = String((await world.call("/metrics")).body);
    const gauge = /^jindou_connections\{listener="wkproto"\} (\d+)/m.exec(metrics);
    t.ok(Number(gauge?.[1]) >= 1, "the gauge counts the connection");
    await world.ok("/conn/kick", { uid, conn_id: connection?.id });
    t.match(await client.next("DISCONNECT"), { reasonCode: KICKED });
    await client.closed();
    const first = await join(t, uid, { level: 1 });
    await world.connect(t, uid, { flag: 0 });
    t.match(
      await first.next("DISCONNECT"),
      { reasonCode: KICKED },
      "another main device logged in",
    );
  },
);

t.test("a client that misses the login deadline or exceeds the rate limit is closed", async (t) => {
  const impatient = await startWorld(t, { ...TCP_LISTENER, JINDOU_CLIENT_AUTH_TIMEOUT_MS: "300" });
  const port = tcpPortOf(impatient);
  t.equal((await exchange(t, port, "")).length, 0, "a silent client is closed");
  const started = Buffer.from([0x10, 200, 1, 5]);
  t.equal(
    (await exchange(t, port, started)).length,
    0,
    "a client whose CONNECT is incomplete is closed",
  );
  const limited = await startWorld(t, {
    ...TCP_LISTENER,
    JINDOU_CLIENT_MAX_FRAMES_PER_SECOND: "1",
    JINDOU_CLIENT_FRAME_BURST: "20",
    JINDOU_CLIENT_USER_RATE_FACTOR: "1",
  });
  const client = await join(t, "ann", {}, limited);
  client.writeBytes(Buffer.alloc(5000, 0x70));
  await client.closed();
  const pongs = client.received.filter(({ packet }) => packet === "PONG");
  t.ok(pongs.length <= 40, "the rate limit holds for packets that share a read");
});

t.test(
  "a node with client.maxConnections connections closes new TCP connections, and a draining node closes all connections",
  async (t) => {
    const small = await startWorld(t, {
      ...TCP_LISTENER,
      JINDOU_CLIENT_MAX_CONNECTIONS: "2",
      JINDOU_DRAIN_TIMEOUT_MS: "2000",
    });
    const [ann, ben] = [await join(t, "ann", {}, small), await join(t, "ben", {}, small)];
    const port = tcpPortOf(small);
    t.equal((await exchange(t, port, "")).length, 0, "the third connection is closed");
    const closing = small.close();
    for (const client of [ann, ben]) {
      await client.closed();
      const last = client.received.at(-1)?.packet;
      t.not(last, "DISCONNECT", "the client may reconnect");
    }
    await closing;
  },
);

t.test(
  "the address of a client behind a trusted proxy comes from the PROXY header on a listener with TLS",
  async (t) => {
    const file = (name: string) => new URL(`../support/tls/${name}`, import.meta.url).pathname;
    const secure = await startWorld(t, {
      ...TCP_LISTENER,
      JINDOU_DRAIN_TIMEOUT_MS: "500", // makes the driver start a single node
      JINDOU_PROTOCOL_WKPROTO_TRUSTED_PROXIES: "127.0.0.1",
      JINDOU_PROTOCOL_WKPROTO_TLS_CERT_FILE: file("cert.pem"),
      JINDOU_PROTOCOL_WKPROTO_TLS_KEY_FILE: file("key.pem"),
    });
    const ca = readFileSync(file("cert.pem"));
    const port = tcpPortOf(secure);
    for (const [header, address] of [
      [Buffer.from("PROXY TCP4 203.0.113.7 10.0.0.1 5000 5100\r\n"), "203.0.113.7"],
      [proxyHeader("203.0.113.8"), "203.0.113.8"],
    ] as const) {
      const uid = secure.name("ann");
      await secure.register(uid, { flag: 0 });
      const options = { port, uid, deviceFlag: 0 };
      const client = await openWkprotoTcp(t, options, { before: header, ca });
      t.match(await client.connect(), { reasonCode: SUCCESS });
      const { connections } = (await secure.call(`/connz?uid=${uid}`)).body;
      t.match(connections, [{ ip: address, listener: "wkproto" }]);
    }
  },
);

t.test("members on TCP and WebSocket receive each other's messages once", async (t) => {
  for (const encryption of ["true", "false"]) {
    const mixed = await startWorld(t, {
      ...TCP_LISTENER,
      JINDOU_PROTOCOL_WKPROTO_ENCRYPTION: encryption,
    });
    const uids = ["tcp-1", "tcp-2", "native"];
    const channel = await mixed.newGroup(uids);
    const first = await join(t, "tcp-1", {}, mixed);
    const second = await join(t, "tcp-2", {}, mixed);
    const native = await mixed.join(t, "native");
    await mixed.untilSubscribed();
    await first.send(channel, text("from tcp"));
    await native.send(channel, "from native");
    await mixed.send("tcp-1", channel, "from a backend");
    await second.text("from a backend");
    await first.text("from a backend");
    t.same(second.texts, ["from tcp", "from native", "from a backend"]);
    t.same(first.texts, ["from native", "from a backend"]);
    await eventually(() => native.messages.length === 2);
    await mixed.ok("/event", {
      ...{ ...wire(channel), from_uid: "native", client_msg_no: "s-1" },
      event: { type: "order.paid", data: "{}" },
    });
    for (const client of [first, second]) await client.next("EVENT");
  }
});

t.test("hostile bytes end only the connection on which they are sent", async (t) => {
  const random = new Random(11);
  const hostile = await startWorld(t, { ...TCP_LISTENER, JINDOU_CLIENT_AUTH_TIMEOUT_MS: "1000" });
  const port = tcpPortOf(hostile);
  const client = await join(t, "ann", {}, hostile);
  const noise = (size: number) => Buffer.from(range(1, size).map(() => random.below(256)));
  const starts = ["10", "10ffffffff", "10ffffff7f", "10808080", "1005050100", "101300"];
  const attacks = range(1, ATTACKS).map((at) =>
    Buffer.concat([Buffer.from(starts[at % starts.length] ?? "", "hex"), noise(random.below(200))]),
  );
  await Promise.all(attacks.map((bytes) => exchange(t, port, bytes)));
  for (const bytes of attacks.slice(0, 20)) {
    const victim = await join(t, "ben", {}, hostile);
    victim.writeBytes(Buffer.concat([Buffer.from("30ff", "hex"), bytes]));
    victim.writeBytes(Buffer.from("30ffffffffff", "hex"));
    victim.kill();
  }
  await client.ping();
  t.equal((await hostile.call("/readyz")).status, 200);
  t.equal(client.closeCode, undefined);
});

t.test("connections that send one byte at a time are closed at the login deadline", async (t) => {
  const slow = await startWorld(t, { ...TCP_LISTENER, JINDOU_CLIENT_AUTH_TIMEOUT_MS: "1500" });
  const port = tcpPortOf(slow);
  const client = await join(t, "ann", {}, slow);
  const bytes = Buffer.from("10ffff010500", "hex");
  let closed = 0;
  const sockets = range(1, SLOW_CONNECTIONS).map(() => {
    const socket = connect({ port, host: "127.0.0.1" });
    t.teardown(() => socket.destroy());
    socket.on("error", () => undefined); // "close" follows
    socket.on("close", () => {
      closed += 1;
    });
    return socket.resume();
  });
  for (let at = 0; closed < sockets.length; at++) {
    for (const socket of sockets) if (!socket.destroyed) socket.write(bytes.subarray(at, at + 1));
    await new Promise((resolve) => setTimeout(resolve, 100));
    await client.ping();
  }
  t.equal(client.closeCode, undefined, "a client that has logged in stays connected");
});

for (const sdk of PHONE_SDKS)
  t.test(`a client like WuKongIM's SDK for ${sdk.name} can send, receive and reconnect`, (t) =>
    phoneScenario(t, sdk),
  );

/** Makes a phone log in, ping, send, receive, acknowledge and lose its network, and kicks it. */
async function phoneScenario(t: Test, sdk: PhoneSdk): Promise<void> {
  const [uid, peerUid] = [world.name("ann"), world.name("ben")];
  await world.register(uid, { flag: 0, level: 1 });
  const channel = await world.newGroup([uid, peerUid]);
  const peer = await world.join(t, peerUid);
  const phone = startPhone(t, sdk, { port: tcpPortOf(world), uid, token: `token-${uid}` });
  await phone.connected();
  await world.untilSubscribed();
  phone.ping();
  await phone.until(() => phone.pongs === 1);
  await phone.send(channel, "from the phone");
  await phone.send(person(peerUid), "in person");
  await world.ok("/event", {
    ...{ ...wire(channel), from_uid: peerUid, client_msg_no: "s-1" },
    event: { type: "___TextMessageStart", data: "" },
  });
  await peer.send(channel, "to the phone");
  await world.send(peerUid, person(uid), "你好 🐒".repeat(300));
  await phone.until(() => phone.texts.includes("你好 🐒".repeat(300)));
  t.ok(phone.texts.includes("to the phone"));
  t.equal(phone.logins, 1, "nothing that was sent makes the SDK reconnect");
  phone.loseNetwork();
  await phone.until(() => phone.logins === 2);
  await world.untilSubscribed();
  await world.send(peerUid, channel, "after the reconnect");
  await phone.until(() => phone.texts.includes("after the reconnect"));
  t.equal(phone.texts.filter((content) => content === "to the phone").length, 1);
  await world.ok("/user/device_quit", { uid, device_flag: 0 });
  await phone.until(() => phone.isKicked);
  t.equal(phone.logins, 2, "a kicked phone does not reconnect");
}
