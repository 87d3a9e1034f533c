// Tests of the event feed and webhooks while nodes are killed: every acknowledged message's event
// arrives, with the same id and content each time, and in the order of its channel. Who needs a push
// is decided once for each message. JINDOU_TEST_WEBHOOK_KILLS and JINDOU_TEST_PUSH_KILLS set the
// numbers of kills. Events that a webhook has not accepted outlive their retention.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import {
  type Broker,
  type ChildBroker,
  spawnBroker,
  tempFolder,
  textPayload,
} from "../support/broker.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { SHIFTED, ShiftedClock } from "../support/shifted-clock.ts";
import { volume } from "../support/volume.ts";
import { type ReceivedEvent, type Receiver, startReceiver } from "./receiver.ts";

const KILLS = volume(200, "JINDOU_TEST_WEBHOOK_KILLS", 5);
const PUSH_KILLS = volume(200, "JINDOU_TEST_PUSH_KILLS", 4);
const CHANNELS = ["ann", "ben", "cat"];

t.setTimeout(60_000 + (KILLS + PUSH_KILLS) * 5000);

/** Turns the feed on and creates a webhook for the receiver. */
async function subscribe({ call }: Broker, receiver: Receiver): Promise<string> {
  await call("/events/feed", { feed: "on" });
  const batch = { max: 10, waitMs: 0 };
  const { body } = await call("/webhooks", { url: receiver.url, types: ["message.stored"], batch });
  receiver.secret = body.secret;
  return body.id;
}

/** Sends messages until a call fails. Adds the ids of the acknowledged ones to `sent`. */
async function sendUntilKilled({ call }: Broker, sent: Set<number>): Promise<void> {
  const send = async (channelId: string) => {
    for (;;) {
      const { status, body } = await call("/message/send", {
        ...{ from_uid: "bob", channel_id: channelId, channel_type: 1, payload: textPayload("x") },
      });
      if (status !== 200) return;
      sent.add(body.message_id);
    }
  };
  await Promise.allSettled(CHANNELS.map(send));
}

/** Returns what is wrong with the received events. */
function problems(requests: Receiver["requests"]): readonly string[] {
  const eventsById = new Map<string, ReceivedEvent>();
  const newest = new Map<string, number>();
  const wrong: string[] = [];
  const all = requests.flatMap(({ events }) => events);
  for (const event of all.filter(({ type }) => type === "message.stored")) {
    const earlier = eventsById.get(event.id);
    if (earlier !== undefined) {
      if (JSON.stringify(earlier) !== JSON.stringify(event)) wrong.push(`${event.id} has changed`);
      continue;
    }
    eventsById.set(event.id, event);
    const { channel_key: key, message_seq: seq } = event.data;
    if (seq !== (newest.get(key) ?? 0) + 1) wrong.push(`${key}: ${seq} is out of order`);
    newest.set(key, seq);
  }
  return wrong;
}

const hasAll = (receiver: Receiver, sent: ReadonlySet<number>) => {
  const received = new Set(receiver.events.map(({ data }) => data.message_id));
  return [...sent].every((id) => received.has(id));
};

const PUSH = {
  JINDOU_EVENTS_FEED: "on",
  JINDOU_PUSH_ENABLED: "true",
  JINDOU_PUSH_AFTER_MS: "50",
};

/** Returns the ids of the messages that have an event \`message.unreached\`, once for each event. */
async function unreachedIn({ call }: Broker): Promise<readonly number[]> {
  const ids: number[] = [];
  for (let after = "oldest", more = 1; more === 1; ) {
    const path = `/events?limit=1000&types=message.unreached&after=${after}`;
    const { body } = await call(path);
    ids.push(...body.events.map((event: ReceivedEvent) => event.data.message_id));
    ({ cursor: after, more } = body);
  }
  return ids;
}

/** Waits until all messages are decided. Returns the messages that were decided repeatedly. */
async function repeatedOnceDecided(
  broker: Broker,
  sent: ReadonlySet<number>,
): Promise<readonly number[]> {
  for (;;) {
    const ids = await unreachedIn(broker);
    const decided = new Set(ids);
    if ([...sent].every((id) => decided.has(id)))
      return ids.filter((id, at) => ids.indexOf(id) !== at);
    await pause(100);
  }
}

t.test(`a message is decided once when a node is killed ${PUSH_KILLS} times`, async (t) => {
  const random = new Random(PUSH_KILLS);
  const sent = new Set<number>();
  let broker: ChildBroker = await spawnBroker(t, PUSH);
  for (let kill = 0; kill < PUSH_KILLS; kill++) {
    const sending = sendUntilKilled(broker, sent);
    await pause(50 + random.below(300));
    await broker.kill();
    await sending;
    broker = await spawnBroker(t, PUSH, broker.dataPath);
  }
  t.strictSame(await repeatedOnceDecided(broker, sent), [], "no message is decided twice");
  t.ok(sent.size > 0, `${sent.size} messages were acknowledged`);
});

t.test("another node decides when the node that decided is frozen or killed", async (t) => {
  const redis = await startRedis(t);
  const start = () => spawnBroker(t, { ...PUSH, JINDOU_REDIS_URL: redis.url });
  const nodes = [await start(), await start()] as const;
  const sent = new Set<number>();
  const send = async (broker: Broker) => {
    const sends = Array.from({ length: 30 }, async (_, at) => {
      const { status, body } = await broker.call("/message/send", {
        ...{ from_uid: "bob", channel_id: `user-${at}`, channel_type: 1 },
        payload: textPayload("x"),
      });
      if (status === 200) sent.add(body.message_id);
    });
    await Promise.allSettled(sends); // a node that was frozen rejects calls at first
  };
  const decides = async ({ call }: Broker) =>
    /^jindou_push_decided_total\{?[^\n]* [1-9]/m.test(String((await call("/metrics")).body));
  await send(nodes[0]);
  t.strictSame(await repeatedOnceDecided(nodes[1], sent), []);
  const [holder, other] = (await decides(nodes[0])) ? nodes : [nodes[1], nodes[0]];
  const sending = send(holder);
  holder.process.kill("SIGSTOP");
  await send(other);
  const seen = new Set([...sent]);
  t.strictSame(await repeatedOnceDecided(other, seen), [], "the other node has taken over");
  holder.process.kill("SIGCONT");
  await sending;
  while ((await holder.call("/readyz")).status !== 200) await pause(50);
  await send(holder);
  t.strictSame(await repeatedOnceDecided(other, sent), [], "the thawed node decides nothing twice");
  const late = send(holder);
  await other.kill();
  await late;
  t.strictSame(await repeatedOnceDecided(holder, sent), [], "the remaining node goes on");
});

t.test(`no event is lost when a node is killed ${KILLS} times`, async (t) => {
  const receiver = await startReceiver(t);
  const random = new Random(KILLS);
  const sent = new Set<number>();
  let broker: ChildBroker = await spawnBroker(t);
  await subscribe(broker, receiver);
  for (let kill = 0; kill < KILLS; kill++) {
    const sending = sendUntilKilled(broker, sent);
    await pause(50 + random.below(300));
    await broker.kill();
    await sending;
    broker = await spawnBroker(t, {}, broker.dataPath);
  }
  await receiver.until(() => hasAll(receiver, sent));
  t.ok(sent.size > 0, `${sent.size} messages were acknowledged`);
  t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
});

t.test("another node delivers when the node that delivered is killed", async (t) => {
  const redis = await startRedis(t);
  const receiver = await startReceiver(t);
  const start = (id: string) => spawnBroker(t, { JINDOU_REDIS_URL: redis.url, JINDOU_NODE_ID: id });
  const nodes = { a: await start("a"), b: await start("b") };
  const webhookId = await subscribe(nodes.a, receiver);
  const sent = new Set<number>();
  const send = async (broker: Broker) => {
    for (const channelId of CHANNELS) {
      const { body } = await broker.call("/message/send", {
        ...{ from_uid: "bob", channel_id: channelId, channel_type: 1, payload: textPayload("y") },
      });
      sent.add(body.message_id);
    }
  };
  await send(nodes.b);
  await receiver.until(() => hasAll(receiver, sent));
  const { body } = await nodes.b.call(`/webhooks/${webhookId}/test`, {});
  t.equal(body.status, 204, "any node can test it");
  let owner: "a" | "b" | undefined;
  while (owner === undefined) {
    const { attempts } = (await nodes.a.call(`/webhooks/${webhookId}/attempts`)).body;
    owner = attempts.find(({ events }: { events: number }) => events > 0)?.node_id;
    if (owner === undefined) await pause(100);
  }
  const survivor = owner === "a" ? nodes.b : nodes.a;
  receiver.reply = () => undefined; // a request is in flight when the node is killed
  await send(survivor);
  const before = receiver.requests.length;
  await receiver.until(() => receiver.requests.length > before);
  await nodes[owner].kill();
  receiver.reply = () => 204;
  await send(survivor);
  await receiver.until(() => hasAll(receiver, sent));
  t.strictSame(problems(receiver.requests), [], "ids, contents and order are right");
});

t.test("events that a webhook has not accepted are kept beyond events.retentionS", async (t) => {
  const receiver = await startReceiver(t);
  receiver.reply = () => 503;
  const clock = await ShiftedClock.create(t);
  const settings = { ...clock.settings, JINDOU_EVENTS_RETENTION_S: "60" };
  const dataPath = await tempFolder(t);
  let broker = await spawnBroker(t, settings, dataPath, SHIFTED);
  const restartAt = async (shiftMs: number) => {
    await broker.terminate();
    clock.set(shiftMs);
    broker = await spawnBroker(t, settings, dataPath, SHIFTED); // removes old events before it is ready
  };
  const kept = async () => (await broker.call("/events?after=oldest")).body.events.length;

  await subscribe(broker, receiver);
  receiver.secret = ""; // signatures with a shifted time are not valid
  const sent = new Set<number>();
  for (const channelId of CHANNELS) {
    const { body } = await broker.call("/message/send", {
      ...{ from_uid: "bob", channel_id: channelId, channel_type: 1, payload: textPayload("z") },
    });
    sent.add(body.message_id);
  }
  await receiver.until(() => receiver.requests.length > 0);
  await restartAt(600_000);
  t.equal(await kept(), CHANNELS.length, "the webhook is behind");
  receiver.reply = () => 204;
  await receiver.until(() => hasAll(receiver, sent));
  await restartAt(1_200_000);
  t.equal(await kept(), 0, "the webhook has accepted all events");
});
