// A disk that fills up and is freed again while messages, commands, control-plane writes and
// appends to durable streams arrive. The event feed is on, a webhook lags, and the broker is also
// killed. Nothing that was acknowledged is lost, and the broker never aborts. It rejects writes
// with `disk_full` while the disk is full, and accepts writes again when space is free.
// JINDOU_TEST_FULL_DISKS sets the number of rounds. With JINDOU_TEST_VOLUME=full an ext4 file
// system is filled as well.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import t, { type Test } from "tap";
import { type ChildBroker, type Settings, spawnBroker, textPayload } from "../support/broker.ts";
import { JsonRpcError, openJsonRpc } from "../support/jsonrpc-client.ts";
import { connectNative } from "../support/native-client.ts";
import { mountSmallDisk, type SmallDisk } from "../support/small-disk.ts";
import { IS_FULL, volume } from "../support/volume.ts";
import {
  openWkprotoSocket,
  openWkprotoTcp,
  TCP_LISTENER,
  tcpPortOf,
  type WkprotoClient,
} from "../support/wkproto-client.ts";

const ROUNDS = volume(10, "JINDOU_TEST_FULL_DISKS");
const DISK_MIB = 48;
const WRITERS = 10;
const KINDS = 5;
const STREAM_PATH = "/v1/stream/worker";
const FULL_MS = 1200;
const FREE_MS = 1500;
const RESUME_MS = 15_000;
const GROUP = { channel_id: "group", channel_type: 2 } as const;
const TEXT_BYTES = 400;

t.setTimeout(120_000 + ROUNDS * 60_000);

/** Changes that the broker acknowledged, and how often it refused with each code. */
class Ledger {
  readonly messages = new Map<string, number>();
  readonly commands = new Set<string>();
  readonly channels = new Set<string>();
  readonly tokens = new Map<string, string>();
  /** Records of durable streams. */
  readonly records = new Set<string>();
  readonly codes = new Map<string, number>();

  reject(code: string): void {
    this.codes.set(code, (this.codes.get(code) ?? 0) + 1);
  }
}

/** Writers of every kind that write in a loop to a broker that may be replaced. */
class Writers {
  readonly ledger = new Ledger();
  broker: ChildBroker | undefined;
  #isStopped = false;
  #count = 0;
  readonly #loops: Promise<void>[] = [];

  start(): void {
    for (let writer = 0; writer < WRITERS; writer++) this.#loops.push(this.#loop(writer));
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await Promise.all(this.#loops);
  }

  async #loop(writer: number): Promise<void> {
    while (!this.#isStopped) {
      const number = this.#count++;
      const isDone = await this.#write(writer % KINDS, number);
      if (!isDone) await pause(10);
    }
  }

  async #write(kind: number, number: number): Promise<boolean> {
    const { ledger } = this;
    const name = `${kind}-${number}`;
    const payload = textPayload(name.padEnd(TEXT_BYTES, "."));
    if (kind <= 1) {
      const body = { ...GROUP, from_uid: "alice", client_msg_no: name, payload };
      const answer = await this.#post("/message/send", body);
      if (answer !== undefined) ledger.messages.set(name, answer.message_seq);
      return answer !== undefined;
    }
    if (kind === 2) {
      const header = { sync_once: 1 };
      const to = { channel_id: "bob", channel_type: 1, from_uid: "alice" };
      const answer = await this.#post("/message/send", {
        ...{ ...to, header, payload, client_msg_no: name },
      });
      if (answer !== undefined) ledger.commands.add(name);
      return answer !== undefined;
    }
    if (kind === 4) {
      await pause(2);
      return this.#append(name);
    }
    const channel = { channel_id: name, channel_type: 2, subscribers: ["alice", "bob"] };
    if ((await this.#post("/channel", channel)) !== undefined) ledger.channels.add(name);
    const device = { uid: `user-${number % 20}`, token: name, device_flag: 0 };
    const token = await this.#post("/user/token", device);
    // A call that was not acknowledged may have been stored.
    if (token !== undefined) ledger.tokens.set(device.uid, name);
    else ledger.tokens.delete(device.uid);
    return token !== undefined;
  }

  /** Appends a record to the durable stream, and creates the stream if it is missing. */
  async #append(name: string): Promise<boolean> {
    const { apiPort = 0 } = this.broker ?? {};
    const url = `http://127.0.0.1:${apiPort}${STREAM_PATH}`;
    const headers = { "content-type": "application/json" };
    try {
      const body = JSON.stringify(name);
      let reply = await fetch(url, { method: "POST", headers, body });
      if (reply.status === 404) {
        await fetch(url, { method: "PUT", headers });
        reply = await fetch(url, { method: "POST", headers, body });
      }
      const text = await reply.text();
      if (reply.ok) this.ledger.records.add(name);
      else this.ledger.reject(JSON.parse(text).code);
      return reply.ok;
    } catch {
      this.ledger.reject("no answer");
      return false;
    }
  }

  async #post(path: string, body: unknown) {
    try {
      const answer = await this.broker?.call(path, body);
      if (answer?.status === 200) return answer.body;
      this.ledger.reject(String(answer?.body?.code ?? answer?.status));
    } catch {
      this.ledger.reject("no answer");
    }
    return undefined;
  }
}

async function startOn(t: Test, disk: SmallDisk, more: Settings = {}): Promise<ChildBroker> {
  const settings = {
    ...more,
    JINDOU_COMMANDS_MAX_INBOX: "100000",
    JINDOU_LOG_LEVEL: "warn",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
  };
  const { prefix } = disk;
  for (;;)
    try {
      return await spawnBroker(t, { ...settings, JINDOU_LOG_LEVEL: "info" }, `${disk.path}/data`, {
        prefix,
      });
    } catch (error) {
      // A start may need space, as the manual says.
      if (!/disk|space/i.test(`${error}`)) throw error;
      disk.free();
    }
}

async function acknowledges(broker: ChildBroker, number: number): Promise<boolean> {
  const body = {
    ...{ ...GROUP, from_uid: "alice", client_msg_no: `probe-${number}` },
    payload: textPayload("probe"),
  };
  const answer = await broker.call("/message/send", body).catch(() => undefined);
  return answer?.status === 200;
}

/** Acknowledges the oldest command of a user who has commands, while there is no space. */
async function assertAcknowledges(t: Test, broker: ChildBroker): Promise<void> {
  const { body } = await broker.call("/message/sync", { uid: "carol", limit: 1 });
  const [command] = body;
  const ack = { uid: "carol", last_message_seq: command?.message_seq };
  const { status } = await broker.call("/message/syncack", ack);
  t.equal(status, 200, "commands are still acknowledged");
  const next = await broker.call("/message/sync", { uid: "carol", limit: 1 });
  t.not(
    next.body[0]?.message_seq,
    command?.message_seq,
    "the acknowledged command is no longer in the inbox",
  );
}

/** Compares the history and the channels with the ledger. */
async function assertAllThere(t: Test, broker: ChildBroker, ledger: Ledger): Promise<void> {
  const stored = new Map<string, number>();
  const doubled: string[] = [];
  let last = 0;
  for (;;) {
    const query = `channel_id=group&channel_type=2&from_seq=${last + 1}&limit=500`;
    const { body } = await broker.call(`/channel/messages?${query}`);
    const { messages } = body;
    if (messages.length === 0) break;
    for (const message of messages) {
      if (stored.has(message.client_msg_no)) doubled.push(message.client_msg_no);
      stored.set(message.client_msg_no, message.message_seq);
      last = message.message_seq;
    }
  }
  t.same(doubled, [], "no message is stored twice");
  const lost = [...ledger.messages].filter(([name, seq]) => stored.get(name) !== seq);
  t.same(lost, [], `all ${ledger.messages.size} acknowledged messages are stored`);

  const lostChannels: string[] = [];
  for (const name of ledger.channels) {
    const { body } = await broker.call(`/channel/members?channel_id=${name}&channel_type=2`);
    if (!JSON.stringify(body).includes("alice")) lostChannels.push(name);
  }
  t.same(lostChannels, [], `all ${ledger.channels.size} acknowledged channels are stored`);
  await assertRecords(t, broker, ledger);
  await assertEvents(t, broker, ledger);
}

async function assertRecords(t: Test, { apiPort }: ChildBroker, ledger: Ledger): Promise<void> {
  const stored: string[] = [];
  for (let offset = "-1", isOver = false; !isOver; ) {
    const reply = await fetch(`http://127.0.0.1:${apiPort}${STREAM_PATH}?offset=${offset}`);
    stored.push(...((await reply.json()) as string[]));
    isOver = reply.headers.has("stream-up-to-date");
    offset = reply.headers.get("stream-next-offset") ?? "";
  }
  const records = new Set(stored);
  t.equal(records.size, stored.length, "no record is stored twice");
  const lost = [...ledger.records].filter((name) => !records.has(name));
  t.same(lost, [], `all ${ledger.records.size} acknowledged records are stored`);
}

/** Compares the event feed with the ledger. */
async function assertEvents(t: Test, broker: ChildBroker, ledger: Ledger): Promise<void> {
  const names = new Set<string>();
  for (let after = "oldest", more = 1; more === 1; ) {
    const path = `/events?after=${after}&channel=2:group&limit=1000`;
    const { status, body } = await broker.call(path);
    if (!t.equal(status, 200, `${path}: ${JSON.stringify(body).slice(0, 200)}`)) return;
    for (const { data } of body.events) names.add(data.client_msg_no);
    after = body.cursor;
    more = body.more;
  }
  const lost = [...ledger.messages.keys()].filter((name) => !names.has(name));
  t.same(lost, [], "the feed has an event for each acknowledged message");
}

/** Reads and acknowledges all commands, and compares them with the ledger. */
async function assertAllCommands(t: Test, broker: ChildBroker, ledger: Ledger): Promise<void> {
  const commands = new Set<string>();
  for (;;) {
    const { body } = await broker.call("/message/sync", { uid: "bob", limit: 1000 });
    if (body.length === 0) break;
    for (const { client_msg_no } of body) commands.add(client_msg_no);
    const last_message_seq = body.at(-1).message_seq;
    const { status } = await broker.call("/message/syncack", { uid: "bob", last_message_seq });
    t.equal(status, 200, "the commands are acknowledged");
  }
  const lostCommands = [...ledger.commands].filter((name) => !commands.has(name));
  t.same(lostCommands, [], `all ${ledger.commands.size} acknowledged commands are stored`);
}

async function fillAndFree(t: Test, disk: SmallDisk): Promise<void> {
  const writers = new Writers();
  const { ledger } = writers;
  let broker = await startOn(t, disk);
  writers.broker = broker;
  await broker.call("/channel", { ...GROUP, subscribers: ["alice", "bob"] });
  await broker.call("/events/feed", { feed: "on" });
  const receiver = createServer((_request, response) => response.writeHead(503).end());
  await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
  t.teardown(() => receiver.close());
  const { port } = receiver.address() as AddressInfo;
  await broker.call("/webhooks", { url: `http://127.0.0.1:${port}/hook` });
  for (let number = 0; number < 2 * ROUNDS; number++)
    await broker.call("/message/send", {
      ...{ from_uid: "alice", channel_id: "carol", channel_type: 1 },
      ...{ header: { sync_once: 1 }, payload: textPayload(`for carol ${number}`) },
    });
  writers.start();
  await pause(500);
  for (let round = 0; round < ROUNDS; round++) {
    const before = ledger.codes.get("disk_full") ?? 0;
    disk.fill();
    await pause(FULL_MS);
    const rejected = () => (ledger.codes.get("disk_full") ?? 0) > before;
    const giveUpMs = performance.now() + RESUME_MS; // a busy machine fills the WAL slowly
    while (!rejected() && performance.now() < giveUpMs) await pause(50);
    t.ok(rejected(), "writes are rejected with disk_full");
    const { status } = await broker.call("/channel/messages?channel_id=group&channel_type=2");
    t.equal(status, 200, "reads are still served");
    await assertAcknowledges(t, broker);
    if (round % 2 === 1) {
      await broker.kill();
      broker = await startOn(t, disk);
      writers.broker = broker;
    }
    disk.free();
    const until = performance.now() + RESUME_MS;
    while (!(await acknowledges(broker, round)) && performance.now() < until) await pause(50);
    t.ok(await acknowledges(broker, round), "writes are accepted again when there is space");
    await pause(FREE_MS);
  }
  await writers.stop();
  t.equal(broker.process.exitCode, null, "the broker did not exit");
  t.equal(broker.process.signalCode, null, "the broker was not aborted");
  t.comment(JSON.stringify(Object.fromEntries(ledger.codes)));
  await assertAllThere(t, broker, ledger);
  await broker.kill();
  broker = await startOn(t, disk);
  await assertAllThere(t, broker, ledger);
  await assertAllCommands(t, broker, ledger);
}

t.test("a broker whose disk fills up loses nothing that it acknowledged", async (t) => {
  await fillAndFree(t, await mountSmallDisk(t, DISK_MIB));
});

if (IS_FULL)
  t.test("a broker whose ext4 disk fills up loses nothing that it acknowledged", async (t) => {
    // The messages of all rounds must fit on the disk, and ext4 uses a part of the disk itself.
    await fillAndFree(t, await mountSmallDisk(t, 2 * DISK_MIB, "ext4"));
  });

t.test(
  "on a small disk, a new node and a crashed node can start and accept messages",
  async (t) => {
    const disk = await mountSmallDisk(t, DISK_MIB);
    const start = () => spawnBroker(t, {}, `${disk.path}/data`, { prefix: disk.prefix });
    const first = await start();
    const message = { channel_id: "ann", channel_type: 1, from_uid: "bob" };
    const payload = textPayload("x".repeat(50 * TEXT_BYTES));
    const send = async (broker: ChildBroker) =>
      (await broker.call("/message/send", { ...message, payload })).status;
    const statuses = await Promise.all(Array.from({ length: 64 }, () => send(first)));
    t.same(new Set(statuses), new Set([200]), "a new node accepts messages");
    await first.kill();
    const second = await start();
    t.equal(await send(second), 200, "the node accepts messages after the replay of its WAL");
    for (const broker of [first, second])
      t.notMatch(broker.output(), /disk of the store/, "the disk is not reported as full");
    await second.kill();
  },
);

t.test(
  "a webhook can be disabled and the event feed can be turned off while the disk is full",
  async (t) => {
    const disk = await mountSmallDisk(t, DISK_MIB);
    const broker = await startOn(t, disk);
    await broker.call("/events/feed", { feed: "on" });
    const created = await broker.call("/webhooks", { url: "http://127.0.0.1:9/hook" });
    const path = `/webhooks/${created.body.id}`;
    const patch = async (body: object) => {
      const url = `http://127.0.0.1:${broker.apiPort}${path}`;
      const headers = { "content-type": "application/json" };
      const reply = await fetch(url, { method: "PATCH", headers, body: JSON.stringify(body) });
      return reply.status;
    };
    disk.fill();
    const message = { channel_id: "ann", channel_type: 1, from_uid: "bob" };
    const payload = textPayload("x".repeat(TEXT_BYTES));
    const send = () => broker.call("/message/send", { ...message, payload });
    while ((await send()).body.code !== "disk_full") await pause(10);
    t.equal(await patch({ maxAgeS: 60 }), 503, "other changes of a webhook are refused");
    t.equal(await patch({ enabled: 0 }), 200, "the webhook is disabled");
    const { status } = await broker.call("/events/feed", { feed: "off" });
    t.equal(status, 200, "the feed is off");
    disk.free();
    await broker.kill();
  },
);

/** Reason code "system error" of WuKongIM. */
const SYSTEM_ERROR = 15;
const SUCCESS = 1;
const ALICE_TO = { id: "group", type: 2 } as const;

/** A client on one connection. It sends text to the group. */
interface Sender {
  readonly name: string;
  readonly send: (text: string) => Promise<unknown>;
  /** Result of `send` while the disk is full. */
  readonly refusal: object;
  /** Result of `send` while the disk has space. */
  readonly success: object;
  /** Throws if the connection has ended. */
  readonly ping: () => Promise<unknown>;
}

async function nativeSender(t: Test, { clientPort: port }: ChildBroker): Promise<Sender> {
  const client = await connectNative(t, { port, uid: "native" });
  return {
    name: "native",
    send: (text) => client.send(ALICE_TO, text).catch((error: unknown) => error),
    refusal: { code: "disk_full", retryAfterMs: 5000 },
    success: { kind: "sendack" },
    ping: () => client.ping(),
  };
}

async function jsonRpcSender(
  t: Test,
  { clientPort: port }: ChildBroker,
  isExtended: boolean,
): Promise<Sender> {
  const name = isExtended ? "extended" : "wukongim";
  const client = await openJsonRpc(t, { port });
  const version = isExtended ? { protocol: 1 } : { clientTimestamp: Date.now() };
  await client.request("connect", { uid: name, token: "", deviceFlag: 1, ...version });
  const send = async (text: string) => {
    const params = { ...{ channelId: "group", channelType: 2 }, payload: textPayload(text) };
    try {
      return await client.request("send", params);
    } catch (error) {
      if (error instanceof JsonRpcError) return error;
      throw error;
    }
  };
  return {
    name: `JSON-RPC, ${name}`,
    send,
    refusal: isExtended
      ? { data: { name: "disk_full", retry: true, retryAfterMs: 5000 } }
      : { reasonCode: SYSTEM_ERROR },
    success: isExtended ? { messageSeq: Number } : { reasonCode: SUCCESS },
    ping: () => client.request("ping"),
  };
}

async function wkprotoSender(name: string, client: WkprotoClient): Promise<Sender> {
  await client.connect();
  return {
    name,
    send: (text) => client.send(ALICE_TO, { type: 1, content: text }),
    refusal: { reasonCode: SYSTEM_ERROR, messageSeq: 0 },
    success: { reasonCode: SUCCESS },
    ping: () => client.ping(),
  };
}

t.test(
  "clients of every protocol get an error while the disk is full, stay connected, and can send again when there is space",
  async (t) => {
    const disk = await mountSmallDisk(t, DISK_MIB);
    const broker = await startOn(t, disk, { ...TCP_LISTENER, JINDOU_AUTH_CLIENTS: "none" });
    const senders = [
      await nativeSender(t, broker),
      await jsonRpcSender(t, broker, true),
      await jsonRpcSender(t, broker, false),
      await wkprotoSender(
        "WKProto over WebSocket",
        await openWkprotoSocket(t, { port: broker.clientPort, uid: "ws" }),
      ),
      await wkprotoSender(
        "WKProto over TCP",
        await openWkprotoTcp(t, { port: tcpPortOf(broker), uid: "tcp" }),
      ),
    ];
    const subscribers = ["alice", "native", "extended", "wukongim", "ws", "tcp"];
    await broker.call("/channel", { ...GROUP, subscribers });
    for (const { name, send, success } of senders) t.match(await send("first"), success, name);
    disk.fill();
    const payload = textPayload("x".repeat(TEXT_BYTES));
    const message = { ...GROUP, from_uid: "alice", payload };
    while ((await broker.call("/message/send", message)).body.code !== "disk_full") await pause(10);
    for (const { name, send, refusal } of senders) t.match(await send("full"), refusal, name);
    for (const { name, ping } of senders) await t.resolves(ping(), `${name}: still connected`);
    disk.free();
    const until = performance.now() + RESUME_MS;
    while (!(await acknowledges(broker, 0)) && performance.now() < until) await pause(50);
    for (const { name, send, success } of senders) t.match(await send("free"), success, name);
    await broker.kill();
  },
);
