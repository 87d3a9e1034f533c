// Tests of installations that share a Redis server in different databases, and of nodes whose
// database cannot be selected.

import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import t, { type Test } from "tap";
import type { Message } from "../../src/broker/model.ts";
import { type Broker, type Settings, startBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";

const OPEN = { JINDOU_AUTH_CLIENTS: "none" };
const GROUP = { channel_id: "team", channel_type: 2 };
const TO_BOB = { channel_id: "bob", channel_type: 1 };

/** Returns a function that calls an installation and checks that the call succeeded. */
function callerOf(t: Test, broker: Broker) {
  return async (path: string, body: unknown): Promise<void> => {
    const { status, body: reply } = await broker.call(path, body);
    t.equal(status, 200, `${path} ${JSON.stringify(reply)}`);
  };
}

/** Sends all kinds of events that are pushed to a client: to bob, and to a group that he is in. */
async function sendEverything(t: Test, broker: Broker, text: string): Promise<void> {
  const call = callerOf(t, broker);
  const message = { from_uid: "alice", payload: textPayload(text) };
  for (const channel of [TO_BOB, GROUP]) {
    await call("/message/send", { ...channel, ...message });
    await call("/message/send", { ...channel, ...message, header: { no_persist: 1 } });
    await call("/message/send", { ...channel, ...message, header: { sync_once: 1 } });
    const stream = { ...channel, from_uid: "alice", client_msg_no: `${text}-stream` };
    for (const type of ["___TextMessageStart", "___TextMessageContent", "___TextMessageEnd"])
      await call("/event", { ...stream, event: { type, data: text } });
    await call("/event", { ...stream, event: { type: "custom", data: text } });
  }
}

async function installation(t: Test, url: string): Promise<Broker> {
  const broker = await startBroker(t, { ...OPEN, JINDOU_REDIS_URL: url });
  await callerOf(t, broker)("/channel", { ...GROUP, subscribers: ["alice", "bob"] });
  return broker;
}

t.test("installations in two databases of one Redis receive nothing from each other", async (t) => {
  const redis = await startRedis(t);
  const first = await installation(t, redis.url);
  const third = await installation(t, `${redis.url}/3`);
  for (const [sender, other] of [
    [first, third],
    [third, first],
  ] as const) {
    const bob = await connectNative(t, { port: other.clientPort, uid: "bob" });
    await bob.watch(["alice"]);
    const before = bob.pushes.length;
    const ownBob = await connectNative(t, { port: sender.clientPort, uid: "bob" });
    await connectNative(t, { port: sender.clientPort, uid: "alice" }); // alice is online here
    await sendEverything(t, sender, "hello");
    await ownBob.waitFor(() => ownBob.messages.length >= 6 && ownBob.commands.length >= 2);
    // When these messages have arrived, everything that was published before them has arrived too.
    for (const channel of [TO_BOB, GROUP])
      await callerOf(t, other)("/message/send", {
        ...{ ...channel, from_uid: "____system", payload: textPayload("last") },
      });
    await bob.waitFor(() => bob.messages.filter(isLast).length === 2);
    const pushes = bob.pushes.slice(before);
    t.same(
      pushes.filter((push) => push.kind !== "message" || !isLast(push.message)),
      [],
      "bob receives nothing from the other database",
    );
    await Promise.all([bob.close(), ownBob.close()]);
  }
});

t.test(
  "streams, the event feed and webhooks of two databases of one Redis are separate",
  async (t) => {
    const redis = await startRedis(t);
    const first = await installation(t, redis.url);
    const third = await installation(t, `${redis.url}/3`);
    const received: string[] = [];
    const receiver = createServer((request, response) => {
      let body = "";
      request.setEncoding("utf8").on("data", (chunk: string) => {
        body += chunk;
      });
      request.on("end", () => {
        received.push(body);
        response.end();
      });
    });
    await new Promise<void>((resolve) => receiver.listen(0, "127.0.0.1", resolve));
    t.teardown(() => receiver.close());
    const url = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}/`;
    for (const broker of [first, third]) {
      await callerOf(t, broker)("/events/feed", { feed: "on" });
      t.equal((await stream(broker, "PUT", "[]")).status, 201);
    }
    const { status } = await third.call("/webhooks", { url, types: ["channel.created"] });
    t.equal(status, 201);
    const leaving = new AbortController();
    t.teardown(() => leaving.abort());
    const follower = await stream(third, "GET", undefined, leaving.signal);
    const waiting = third.call("/events?after=now&wait=60&types=channel.created");
    for (const [broker, name] of [
      [first, "foreign"],
      [third, "own"],
    ] as const) {
      t.equal((await stream(broker, "POST", JSON.stringify([name]))).status, 204);
      await callerOf(t, broker)("/channel", { channel_id: name, channel_type: 2 });
    }
    let text = "";
    for await (const chunk of follower.body ?? []) {
      text += Buffer.from(chunk).toString();
      if (text.includes("own")) break;
    }
    t.notMatch(text, "foreign", "the follower of a stream gets nothing from the other database");
    const { events } = (await waiting).body;
    t.match(JSON.stringify(events), "own");
    t.notMatch(JSON.stringify(events), "foreign", "the feed has no event of the other database");
    await until("the webhook receives its event", async () => received.length > 0);
    t.notMatch(received.join(), "foreign", "the webhook receives no event of the other database");
  },
);

/** Sends a request for the stream `shared`. A GET request follows the stream. */
function stream(
  { apiPort }: Broker,
  method: string,
  body?: string,
  signal?: AbortSignal,
): Promise<Response> {
  const query = method === "GET" ? "?offset=-1&live=sse" : "";
  return fetch(`http://127.0.0.1:${apiPort}/v1/stream/shared${query}`, {
    ...{ method, headers: { "content-type": "application/json" } },
    ...(body !== undefined && { body }),
    ...(signal !== undefined && { signal }),
  });
}

function isLast({ fromUid }: Message): boolean {
  return fromUid === "____system";
}

/** Returns the message of the error with which a node fails to start, or "it started". */
function startError(t: Test, url: string, settings: Settings = {}): Promise<string> {
  const logged = { JINDOU_LOG_LEVEL: "silent", JINDOU_REDIS_URL: url };
  return startBroker(t, { ...logged, ...settings }).then(
    () => "it started",
    (error: Error) => error.message,
  );
}

t.test("a node does not start if its Redis database cannot be selected", async (t) => {
  const redis = await startRedis(t);
  const client = redis.client();
  t.match(
    await startError(t, `${redis.url}/99`),
    /^Redis cannot be used: it rejects database 99 of redis\.url: ERR DB index is out of range\./,
  );
  const rights = ["~*", "&*", "+@all", "-select"];
  await client.call("ACL", "SETUSER", "limited", "on", ">hunter2", ...rights);
  const url = redis.url.replace("//", "//limited:hunter2@");
  const message = await startError(t, `${url}/3`);
  t.match(message, /database 3 .*NOPERM.*\+select/);
  t.notMatch(message, /hunter2/);
  t.same(await client.keys("*"), [], "nothing was written to database 0");
});

t.test(
  "a node whose Redis user may no longer select its database is not ready and rejects sends until the user has that right again",
  async (t) => {
    const redis = await startRedis(t);
    const client = redis.client();
    const settings = { JINDOU_LOG_LEVEL: "silent", JINDOU_REDIS_URL: `${redis.url}/3` };
    const broker = await startBroker(t, { ...OPEN, ...settings });
    const isReady = async () => (await broker.call("/readyz")).status === 200;
    const disconnectAll = async () => {
      await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
      await client.call("CLIENT", "KILL", "TYPE", "pubsub");
    };
    t.ok(await isReady());
    await client.call("ACL", "SETUSER", "default", "-select");
    await disconnectAll();
    await until("the node is not ready", async () => !(await isReady()));
    const { status } = await broker.call("/message/send", {
      ...{ ...TO_BOB, from_uid: "alice", payload: textPayload("lost") },
    });
    t.equal(status, 503);
    t.same(await client.keys("*"), [], "nothing was written to database 0");
    await client.call("ACL", "SETUSER", "default", "+select");
    await until("the node is ready again", isReady);
  },
);

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 120_000;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
