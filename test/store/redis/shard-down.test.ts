// A Redis Cluster with one unreachable server. Calls, sweeps and notifications that do not need
// that server must work.

import t, { type Test } from "tap";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import { userTopic } from "../../../src/broker/model.ts";
import type { ClusterEvent, CommandDraft } from "../../../src/broker/ports.ts";
import type { RedisLink } from "../../../src/redis/link.ts";
import { slotOf } from "../../../src/redis/slots.ts";
import { markFrame } from "../../../src/redis/wire.ts";
import { newCommand, put } from "../../../src/store/redis/steps/command-steps.ts";
import { IndexRepairs } from "../../../src/store/redis/steps/index-repairs.ts";
import type { RedisStore } from "../../../src/store/redis/store.ts";
import { codeOf, draftOf, group, PERMANENT } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { LOG_LIMITS } from "../../support/log-limits.ts";
import { startRedisCluster } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { openStore } from "./one-store.ts";
import { decodePublished, eventsIn } from "./published.ts";

const SLOTS_PER_PRIMARY = Math.ceil(16_384 / 3);
const PAGE = { limit: 10, maxBytes: 1_000_000 };
const TWO_MINUTES_MS = 120_000;
const HOUR_MS = 3_600_000;

const servers = await startRedisCluster(t);

/** Returns the first name, made of `prefix` and a number, whose key is on this server. */
function nameAt(server: number, prefix: string, keyOf: (name: string) => string): string {
  for (let n = 0; ; n++) {
    const owner = Math.floor(slotOf(keyOf(`${prefix}${n}`)) / SLOTS_PER_PRIMARY);
    if (owner === server) return `${prefix}${n}`;
  }
}

const nameAtFirst = (prefix: string, keyOf: (name: string) => string) => nameAt(0, prefix, keyOf);

/**
 * Subscribes to the topics of users. Returns a function that waits for all earlier publications
 * and returns all received events.
 */
async function receiveFor(
  t: Pick<Test, "teardown">,
  link: RedisLink,
  uids: readonly string[],
): Promise<() => Promise<readonly ClusterEvent[]>> {
  const topics = uids.map((uid) => link.keys.topic(userTopic(uid)));
  const events: ClusterEvent[] = [];
  let onMark = () => {};
  const subscriber = await connectSubscriber(t, link.settings.url, (_topic, frame) => {
    for (const publication of decodePublished(frame))
      if (publication.kind === "mark") onMark();
      else events.push(...eventsIn(publication));
  });
  for (const topic of topics) await subscriber.ssubscribe(topic);
  return async () => {
    for (const topic of topics) {
      const arrival = new Promise<void>((resolve) => {
        onMark = resolve;
      });
      await link.call("spublish", topic, markFrame("mark"));
      await arrival;
    }
    return events;
  };
}

/**
 * Makes a server ignore the commands of the link, or only those that contain `key`. Records the
 * ignored commands.
 */
function silence(server: ReturnType<RedisLink["primaryOf"]>, key = "") {
  const { sendCommand } = server;
  const ignored: string[] = [];
  server.sendCommand = (command, ...rest) => {
    const bytes = String(command.toWritable(server));
    if (!bytes.includes(key)) return sendCommand.call(server, command, ...rest);
    ignored.push(bytes);
    setImmediate(() => command.reject(new Error("Command timed out")));
    return command.promise;
  };
  const end = () => {
    server.sendCommand = sendCommand;
  };
  return { ignored, end };
}

/** Sends `count` commands from a node that cannot put the copies, so the commands stay pending. */
async function leavePending(
  t: Pick<Test, "teardown">,
  prefix: string,
  { draft, count }: { readonly draft: CommandDraft; readonly count: number },
): Promise<void> {
  const node = await openStore(t, servers.url, { settings: { prefix, timeoutMs: 1000 } });
  const { link, store } = node;
  const keys = draft.recipients.map((uid) => link.keys.user("inbox", uid));
  for (const key of keys) silence(link.primaryOf(key), key);
  const calls = Array.from({ length: count }, () => store.appendCommand(draft));
  for (const code of await Promise.all(calls.map(codeOf)))
    if (code !== "unavailable") throw new Error("A copy was put");
}

// Calls the script directly, because a store sends an expired copy only if the copy expires in
// transit.
t.test("inbox keys expire even if a copy arrives after its command expired", async (t) => {
  const { link, time } = await openStore(t, servers.url);
  const limits = {
    ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: 10, logs: LOG_LIMITS },
  };
  const ports = { link, clock: () => time.nowMs, limits };
  const command = newCommand(ports, commandOf({ expireS: 1 }));
  time.nowMs += 5000;
  await put(ports, { ...command, messageId: 7 }, ["bob"]);
  for (const part of ["inbox", "inboxExpiry"])
    t.not(await link.call("pttl", link.keys.user(part, "bob")), -1, part);
});

t.test(
  "a sweep removes nothing if the node's clock jumps while the servers check it, or if no server confirms it",
  async (t) => {
    const limits = { sweepIntervalMs: 10 };
    const node = await openStore(t, servers.url, { limits });
    const { store, link, time, problems } = node;
    time.nowMs = Date.now() - HOUR_MS;
    const head = (name: string) => link.keys.channel("head", `2:${name}`);
    const [nameAt0, nameAt1] = [nameAt(0, "g", head), nameAt(1, "g", head)];
    const [first] = link.primaries();
    const id = link.primaryOf(head(nameAt0)) === first ? nameAt1 : nameAt0;
    await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
    const logLength = async () =>
      Number(await link.call("xlen", link.keys.channel("log", `2:${id}`)));
    const [slow, ...others] = link.primaries();
    const realTimes = [slow, ...others].map((server) => server?.time);
    let sweeps = 0;
    if (slow !== undefined)
      slow.time = async () => {
        await Promise.all(others.map((server) => server.time()));
        time.nowMs = Date.now() + HOUR_MS; // the other servers confirmed the earlier time
        sweeps += 1;
        return [Math.floor(Date.now() / 1000), 0];
      };
    while (sweeps < 2) await logLength();
    t.equal(await logLength(), 1, "nothing is removed after the clock jumped");
    for (const server of link.primaries())
      server.time = async () => {
        sweeps += 1;
        throw new Error("Command timed out");
      };
    problems.length = 0;
    while (problems.length < 2 && (await logLength()) === 1);
    t.equal(await logLength(), 1, "nothing is removed without a confirmation");
    for (const [at, server] of [slow, ...others].entries())
      if (server !== undefined) server.time = realTimes[at] ?? server.time;
    time.nowMs = Date.now();
    while ((await logLength()) > 0);
  },
);

const indexOf = (link: RedisLink) => (uid: string) => link.keys.user("groups", uid);

/** Destroys the link's connections to its servers, and resolves when new ones are ready. */
async function reconnect(link: RedisLink): Promise<void> {
  const all = link.primaries();
  const before = new Set(all.map(({ stream }) => stream));
  for (const { stream } of all) stream.destroy();
  const isNew = ({ status, stream }: (typeof all)[number]) =>
    status === "ready" && !before.has(stream);
  const isBack = () => link.isUp && link.primaries().filter(isNew).length === before.size;
  while (!isBack()) {
    const keys = [0, 1, 2].map((at) => nameAt(at, "key", (name) => name));
    // Makes the client look up its servers and connect to them.
    for (const key of keys) await codeOf(link.call("get", key));
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Sweeps until a sweep succeeds, because servers may still be coming back. */
async function sweepUntilDone(store: RedisStore): Promise<void> {
  while ((await codeOf(store.sweep())) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 5));
}

t.test(
  "group index entries of the last minute that a fail-over lost are restored, and the users' sessions are notified",
  async (t) => {
    const { store, link, time } = await openStore(t, servers.url);
    const index = indexOf(link);
    const receivedEvents = await receiveFor(t, link, ["a", "b", "c"]);
    const g = group("g");
    await store.createChannel(g, ["a"]);
    time.nowMs += 30_000;
    await store.addSubscribers(g, ["b", "c"], PERMANENT);
    const added = (uid: string) => ({ kind: "addition", uid, channelId: "g" });

    for (const uid of ["a", "b"]) await link.call("del", index(uid));
    await store.sweep();
    t.same(await store.groupsOf("b"), [], "nothing is added again if no connection was lost");
    time.nowMs += 30_000;
    await store.sweep(); // the entry of a is a minute old
    await store.removeSubscribers(g, ["c"], "permanent");
    await reconnect(link);
    await sweepUntilDone(store);
    t.same(await store.groupsOf("b"), ["g"]);
    t.same(await store.groupsOf("a"), [], "an entry is remembered for a minute");
    t.same(await store.groupsOf("c"), [], "the index entry of a user who left is not added again");
    const uidOf = (event: ClusterEvent) => ("uid" in event ? event.uid : "");
    const events = [...(await receivedEvents())];
    events.sort((a, b) => (uidOf(a) < uidOf(b) ? -1 : 1));
    t.same(
      events,
      [added("b"), added("c")],
      "the sessions of b and c are notified without a check",
    );

    await link.call("del", index("b"));
    await reconnect(link);
    await sweepUntilDone(store);
    t.same(await store.groupsOf("b"), ["g"], "the entry is added again after a second fail-over");
  },
);

t.test("lost group index entries are not restored if redis.minReplicas is set", async (t) => {
  const { url } = await startRedisCluster(t, { replicas: true });
  const { store, link } = await openStore(t, url, { settings: { minReplicas: 1 } });
  await store.createChannel(group("g"), ["a"]);
  await link.call("del", indexOf(link)("a"));
  await reconnect(link);
  await codeOf(store.sweep());
  t.equal(await link.call("exists", indexOf(link)("a")), 0);
});

t.test(
  "lost group index entries are restored in batches, and a sweep waits only once for a silent server",
  async (t) => {
    const { link, time } = await openStore(t, servers.url);
    const index = indexOf(link);
    const silent = nameAtFirst("u", index);
    const others = Array.from({ length: 600 }, (_, n) => nameAt(1, `u${n}-`, index));
    let addedCount = 0;
    const repairs: IndexRepairs = new IndexRepairs({
      ...{ link, clock: () => time.nowMs },
      onError: (error) => t.fail(String(error)),
      async add(_groupId, uid) {
        await link.call("hset", index(uid), "g", 1);
        addedCount += 1;
      },
    });
    const lost = {};
    const notConnected = undefined; // the entry was sent before its connection was established
    const uids = [...others.slice(0, 300), silent, ...others.slice(300)];
    for (const [at, uid] of uids.entries()) {
      const connection = at % 2 ? lost : notConnected;
      repairs.note({ groupId: "g", uid, connection });
    }
    const first = repairs.sweep(() => addedCount > 0);
    t.equal(link.inFlight, 256);
    await first;
    t.equal(addedCount, 256, "the sweep stops after one batch");

    const { end } = silence(link.primaryOf(index(silent)));
    await repairs.sweep(() => false);
    end();
    t.equal(addedCount, 256 + 255, "the sweep ends with the batch of the silent server");
    await repairs.sweep(() => false);
    t.equal(addedCount, 601);
  },
);

t.test("a group index is repaired after its server has restarted", async (t) => {
  const settings = { timeoutMs: 1000 };
  const { store, link, time } = await openStore(t, servers.url, { settings });
  const [first] = servers.primaries;
  const uid = nameAtFirst("u", indexOf(link));
  await store.createChannel(group("g"), [uid, "b"]);
  await link.call("del", indexOf(link)(uid));
  await first?.stop("SIGKILL");
  time.nowMs += 600_000; // some time later
  await codeOf(store.sweep());
  await first?.restart();
  await sweepUntilDone(store);
  t.same(await store.groupsOf(uid), ["g"]);
});

t.test("a sweep of 40 commands calls a silent server fewer than 20 times", async (t) => {
  const settings = { timeoutMs: 1000 };
  const { store, link, time } = await openStore(t, servers.url, { settings });
  const inbox = (uid: string) => link.keys.user("inbox", uid);
  const [silent, other] = [nameAt(0, "u", inbox), nameAt(1, "u", inbox)];
  const id = nameAt(1, "g", (name) => link.keys.channel("head", `2:${name}`));
  const recipients = [silent, other];
  const draft = commandOf({ channel: { id, type: 2 }, recipients });
  await leavePending(t, link.keys.prefix, { draft, count: 40 });

  const { ignored, end } = silence(link.primaryOf(inbox(silent)));
  time.nowMs += TWO_MINUTES_MS;
  t.equal(await codeOf(store.sweep()), "unavailable");
  end();
  const copies = async (uid: string) =>
    (await store.readInbox(uid, 0, { ...PAGE, limit: 100 })).length;
  t.equal(await copies(other), 40);
  const calls = ignored.filter((command) => command.includes(inbox(silent))).length;
  t.ok(ignored.length > 0 && calls < 20, `the server was called ${calls} times`);
  t.equal(await copies(silent), 0);
  time.nowMs += TWO_MINUTES_MS;
  await store.sweep();
  t.same(await Promise.all([silent, other].map(copies)), [40, 40]);
});

t.test("readers of events on other servers are notified while one server is silent", async (t) => {
  const { store, link } = await openStore(t, servers.url, { settings: { timeoutMs: 1000 } });
  await store.switchFeed(true);
  const feedOf = (id: string) => link.keys.bucket("feed", bucketOf(`2:${id}`));
  const [silent, other] = [nameAt(0, "g", feedOf), nameAt(1, "g", feedOf)];
  const { ignored, end } = silence(link.primaryOf(feedOf(silent)));
  let endListening = () => {};
  const notified = new Promise<void>((resolve) => {
    endListening = store.onEvents((partitions, numbers) => {
      if ((numbers[partitions.indexOf(bucketOf(`2:${other}`))] ?? 0) > 0) resolve();
    });
  });
  await store.append(draftOf({ channel: { id: other, type: 2 } }));
  await notified;
  endListening();
  end();
  t.ok(ignored.length > 0, "the silent server was called as well");
});

t.test(
  "while one server is silent, `takeOnline` returns the users on the other servers who have left",
  async (t) => {
    const { store, link } = await openStore(t, servers.url, { settings: { timeoutMs: 1000 } });
    await store.switchFeed(true);
    const leavingOf = (uid: string) => link.keys.bucket("leaving", bucketOf(userTopic(uid)));
    const turnServer = link.primaryOf(link.keys.shared("onlineTurn"));
    const names = [0, 1, 2].map((at) => nameAt(at, "u", leavingOf));
    const [silent = "", ...others] = names.filter(
      (uid) => link.primaryOf(leavingOf(uid)) !== turnServer,
    );
    const answering = names.filter((uid) => uid !== silent);
    for (const uid of names) {
      const name = { sessionId: uid, nodeId: "n1", uid, flag: 0 } as const;
      await store.login({ ...name, level: 0, deviceId: "", tokenTag: "" }, "n1:1");
      await store.removeSession(name);
    }
    const { end } = silence(link.primaryOf(leavingOf(silent)));
    const terms = { limit: 64_000, turnMs: 1, leftMs: Number.MAX_SAFE_INTEGER, checkedMs: 0 };
    const uids = await store.takeOnline(terms);
    end();
    t.equal(others.length, 1, "two servers do not store the key of the turn");
    t.strictSame(uids.toSorted(), answering.toSorted());
  },
);

t.test("a sweep completes commands and removes messages on the servers that are up", async (t) => {
  const settings = { timeoutMs: 1000 };
  const node = await openStore(t, servers.url, { settings });
  const { store, link, time } = node;
  const id = nameAtFirst("g", (name) => link.keys.channel("head", `2:${name}`));
  const uid = nameAtFirst("u", (name) => link.keys.user("inbox", name));
  const channel = { id, type: 2 } as const;
  const draft = commandOf({ channel, recipients: [uid] });
  await leavePending(t, link.keys.prefix, { draft, count: 1 });
  await store.append(draftOf({ channel, expireS: 10 }));
  await servers.primaries[2]?.stop("SIGKILL");
  time.nowMs += TWO_MINUTES_MS;
  t.equal(await codeOf(store.sweep()), "unavailable");
  t.equal((await store.readInbox(uid, 0, PAGE)).length, 1);
  t.equal(await link.call("xlen", link.keys.channel("log", `2:${id}`)), 0);
});

t.test("a server whose clock lags does not delay sweeps of other servers", async (t) => {
  const settings = { timeoutMs: 1000 };
  const limits = { sweepIntervalMs: 10 };
  const node = await openStore(t, servers.url, { settings, limits });
  const { store, link, time } = node;
  time.nowMs = Date.now() - HOUR_MS;
  const head = (name: string) => link.keys.channel("head", `2:${name}`);
  const [lagging, other] = [nameAt(0, "g", head), nameAt(1, "g", head)];
  const server = link.primaryOf(head(lagging));
  const { time: realTime } = server;
  server.time = async () => [0, 0];
  await codeOf(store.sweep()); // a sweep that read the real clock is over
  for (const id of [lagging, other])
    await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
  time.nowMs = Date.now();
  const logLength = async (id: string) =>
    Number(await link.call("xlen", link.keys.channel("log", `2:${id}`)));
  while ((await logLength(other)) > 0);
  t.equal(await logLength(lagging), 1);
  server.time = realTime;
  while ((await logLength(lagging)) > 0);
});

t.test("a node whose clock is ahead removes nothing while a server is down", async (t) => {
  const settings = { timeoutMs: 1000 };
  const limits = { sweepIntervalMs: 10 };
  const node = await openStore(t, servers.url, { settings, limits });
  const { store, link, time, problems } = node;
  const [firstPrimary] = link.primaries();
  const alive = servers.primaries
    .slice(0, 2)
    .findIndex(({ port }) => port !== firstPrimary?.options.port);
  const id = nameAt(alive, "g", (name) => link.keys.channel("head", `2:${name}`));
  time.nowMs = Date.now() - HOUR_MS;
  await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
  await servers.primaries[1 - alive]?.stop("SIGKILL");
  problems.length = 0;
  time.nowMs = Date.now() + HOUR_MS;
  const logLength = () => link.call("xlen", link.keys.channel("log", `2:${id}`));
  const refusals = () =>
    problems.filter((problem) => /more than a minute behind/.test(String(problem))).length;
  while (refusals() < 3 && (await logLength()) === 1);
  t.equal(await logLength(), 1);
});
