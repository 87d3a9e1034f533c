// A Redis Cluster of which one server is away: what does not need it goes on.

import t, { type Test } from "tap";
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
import { startRedisCluster } from "../../support/redis.ts";
import { connectSubscriber } from "../../support/topic-subscriber.ts";
import { openStore } from "./one-store.ts";
import { decodePublished } from "./published.ts";

const SHARE = Math.ceil(16_384 / 3);
const PAGE = { limit: 10, maxBytes: 1_000_000 };
const MINUTES_MS = 120_000;
const HOUR_MS = 3_600_000;

const servers = await startRedisCluster(t);

/** The first name of `prefix` and a number whose key is that server's. */
function nameAt(server: number, prefix: string, keyOf: (name: string) => string): string {
  for (let n = 0; ; n++) {
    const at = Math.floor(slotOf(keyOf(`${prefix}${n}`)) / SHARE);
    if (at === server) return `${prefix}${n}`;
  }
}

const nameAtFirst = (prefix: string, keyOf: (name: string) => string) => nameAt(0, prefix, keyOf);

/** What users are told from now on; asked, it waits for all that was published before. */
async function toldTo(
  t: Pick<Test, "teardown">,
  link: RedisLink,
  uids: readonly string[],
): Promise<() => Promise<readonly ClusterEvent[]>> {
  const topics = uids.map((uid) => link.keys.topic(userTopic(uid)));
  const events: ClusterEvent[] = [];
  let marked = () => {};
  const subscriber = await connectSubscriber(t, link.settings.url, (_topic, frame) => {
    for (const publication of decodePublished(frame))
      if (publication.kind === "mark") marked();
      else events.push(publication.event);
  });
  for (const topic of topics) await subscriber.ssubscribe(topic);
  return async () => {
    for (const topic of topics) {
      const came = new Promise<void>((resolve) => {
        marked = resolve;
      });
      await link.call("spublish", topic, markFrame("mark"));
      await came;
    }
    return events;
  };
}

/** Gives no answer to what the link sends there, as far as it names that key. */
function silence(server: ReturnType<RedisLink["primaryOf"]>, key = "") {
  const { sendCommand } = server;
  const asked: string[] = [];
  server.sendCommand = (command, ...how) => {
    const bytes = String(command.toWritable(server));
    if (!bytes.includes(key)) return sendCommand.call(server, command, ...how);
    asked.push(bytes);
    setImmediate(() => command.reject(new Error("Command timed out")));
    return command.promise;
  };
  const end = () => {
    server.sendCommand = sendCommand;
  };
  return { asked, end };
}

/** A node takes the command that often, and gives it to nobody. */
async function leave(
  t: Pick<Test, "teardown">,
  prefix: string,
  { draft, count }: { readonly draft: CommandDraft; readonly count: number },
): Promise<void> {
  const dying = await openStore(t, servers.url, { settings: { prefix } });
  const { link, store } = dying;
  const keys = draft.recipients.map((uid) => link.keys.user("inbox", uid));
  for (const key of keys) silence(link.primaryOf(key), key);
  const calls = Array.from({ length: count }, () => store.appendCommand(draft));
  for (const code of await Promise.all(calls.map(codeOf)))
    if (code !== "unavailable") throw new Error("somebody was given it");
}

// By its step: a store puts nothing that has ended, unless it ends on the way.
t.test("copies that come too late end by themselves", async (t) => {
  const { link, time } = await openStore(t, servers.url);
  const limits = {
    ...{ dedupeWindowS: 3600, retentionS: 0, sweepIntervalMs: 1000 },
    maxChannelMessages: 0,
    ...{ maxStreamBytes: 1000, maxInbox: 10, inboxTtlS: 10 },
  };
  const parts = { link, clock: () => time.nowMs, limits };
  const command = newCommand(parts, commandOf({ expireS: 1 }));
  time.nowMs += 5000;
  await put(parts, { ...command, messageId: 7 }, ["bob"]);
  for (const part of ["inbox", "inboxExpiry"])
    t.not(await link.call("pttl", link.keys.user(part, "bob")), -1, part);
});

t.test(
  "a clock that is put forward while servers are asked for theirs removes nothing, nor does one that none of them confirms",
  async (t) => {
    const limits = { sweepIntervalMs: 10 };
    const one = await openStore(t, servers.url, { limits });
    const { store, link, time, problems } = one;
    time.nowMs = Date.now() - HOUR_MS;
    const head = (name: string) => link.keys.channel("head", `2:${name}`);
    const [at, not] = [nameAt(0, "g", head), nameAt(1, "g", head)];
    const [first] = link.primaries();
    const id = link.primaryOf(head(at)) === first ? not : at;
    await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
    const logged = async () => Number(await link.call("xlen", link.keys.channel("log", `2:${id}`)));
    const [slow, ...others] = link.primaries();
    const real = [slow, ...others].map((server) => server?.time);
    let sweeps = 0;
    if (slow !== undefined)
      slow.time = async () => {
        await Promise.all(others.map((server) => server.time()));
        time.nowMs = Date.now() + HOUR_MS; // the others answered for the time before
        sweeps += 1;
        return [Math.floor(Date.now() / 1000), 0];
      };
    while (sweeps < 2) await logged();
    t.equal(await logged(), 1, "put forward");
    for (const server of link.primaries())
      server.time = async () => {
        sweeps += 1;
        throw new Error("Command timed out");
      };
    problems.length = 0;
    while (problems.length < 2 && (await logged()) === 1);
    t.equal(await logged(), 1, "not confirmed");
    for (const [at, server] of [slow, ...others].entries())
      if (server !== undefined) server.time = real[at] ?? server.time;
    time.nowMs = Date.now();
    while ((await logged()) > 0);
  },
);

const indexOf = (link: RedisLink) => (uid: string) => link.keys.user("groups", uid);

/** Loses the link's connections to its servers, and resolves when new ones are there. */
async function reconnect(link: RedisLink): Promise<void> {
  const all = link.primaries();
  const before = new Set(all.map(({ stream }) => stream));
  for (const { stream } of all) stream.destroy();
  const isNew = ({ status, stream }: (typeof all)[number]) =>
    status === "ready" && !before.has(stream);
  const isBack = () => link.isUp && link.primaries().filter(isNew).length === before.size;
  while (!isBack()) {
    const keys = [0, 1, 2].map((at) => nameAt(at, "key", (name) => name));
    for (const key of keys) await codeOf(link.call("get", key)); // it looks for its servers, and connects to them
    await new Promise((go) => setTimeout(go, 5));
  }
}

/** Until a sweep fails no more: servers come back meanwhile. */
async function swept(store: RedisStore): Promise<void> {
  while ((await codeOf(store.sweep())) !== undefined) await new Promise((go) => setTimeout(go, 5));
}

t.test(
  "what a fail-over took from the index of a user's groups is entered again, and told",
  async (t) => {
    const { store, link, time } = await openStore(t, servers.url);
    const index = indexOf(link);
    const told = await toldTo(t, link, ["a", "b", "c"]);
    const g = group("g");
    await store.createChannel(g, ["a"]);
    time.nowMs += 30_000;
    await store.addSubscribers(g, ["b", "c"], PERMANENT);
    const added = (uid: string) => ({ kind: "addition", uid, channelId: "g" });

    for (const uid of ["a", "b"]) await link.call("del", index(uid));
    await store.sweep();
    t.same(await store.groupsOf("b"), [], "no connection was lost");
    time.nowMs += 30_000;
    await store.sweep(); // that of a is a minute old
    await store.removeSubscribers(g, ["c"], "permanent");
    await reconnect(link);
    await swept(store);
    t.same(await store.groupsOf("b"), ["g"]);
    t.same(await store.groupsOf("a"), [], "it is remembered for a minute");
    t.same(await store.groupsOf("c"), [], "who left stays out");
    const uidOf = (event: ClusterEvent) => ("uid" in event ? event.uid : "");
    const events = [...(await told())];
    events.sort((one, other) => (uidOf(one) < uidOf(other) ? -1 : 1));
    t.same(events, [added("b"), added("c")], "blindly");

    await link.call("del", index("b"));
    await reconnect(link);
    await swept(store);
    t.same(await store.groupsOf("b"), ["g"], "a second fail-over");
  },
);

t.test("with replicas that have all nothing is entered again", async (t) => {
  const settings = { minReplicas: 1, timeoutMs: 200 };
  const { store, link } = await openStore(t, servers.url, { settings });
  const creating = store.createChannel(group("g"), ["a"]);
  t.equal(await codeOf(creating), "unavailable", "there are no replicas");
  await link.call("del", indexOf(link)("a"));
  await reconnect(link);
  await codeOf(store.sweep());
  t.equal(await link.call("exists", indexOf(link)("a")), 0);
});

t.test(
  "entries of many calls are repeated together, and a server that does not answer is waited for once",
  async (t) => {
    const { link, time } = await openStore(t, servers.url);
    const index = indexOf(link);
    const silent = nameAtFirst("u", index);
    const others = Array.from({ length: 600 }, (_, n) => nameAt(1, `u${n}-`, index));
    let repeated = 0;
    const repairs: IndexRepairs = new IndexRepairs({
      ...{ link, clock: () => time.nowMs },
      onError: (error) => t.fail(String(error)),
      async add(_groupId, uid) {
        await link.call("hset", index(uid), "g", 1);
        repeated += 1;
      },
    });
    const lost = {};
    const unmade = undefined; // it was sent while its server was being connected to
    const uids = [...others.slice(0, 300), silent, ...others.slice(300)];
    for (const [at, uid] of uids.entries()) {
      const connection = at % 2 ? lost : unmade;
      repairs.note({ groupId: "g", uid, connection });
    }
    const first = repairs.sweep(() => repeated > 0);
    t.equal(link.inFlight, 256);
    await first;
    t.equal(repeated, 256, "it is stopped");

    const { end } = silence(link.primaryOf(index(silent)));
    await repairs.sweep(() => false);
    end();
    t.equal(repeated, 256 + 255, "it ends with the round of the silent one");
    await repairs.sweep(() => false);
    t.equal(repeated, 601);
  },
);

t.test("an index is repaired when its server is back", async (t) => {
  const settings = { timeoutMs: 1000 };
  const { store, link, time } = await openStore(t, servers.url, { settings });
  const [first] = servers.primaries;
  const uid = nameAtFirst("u", indexOf(link));
  await store.createChannel(group("g"), [uid, "b"]);
  await link.call("del", indexOf(link)(uid));
  await first?.stop("SIGKILL");
  time.nowMs += 600_000; // however late
  await codeOf(store.sweep());
  await first?.restart();
  await swept(store);
  t.same(await store.groupsOf(uid), ["g"]);
});

t.test("a server that does not answer is not asked anew for each command", async (t) => {
  const { store, link, time } = await openStore(t, servers.url);
  const inbox = (uid: string) => link.keys.user("inbox", uid);
  const [silent, other] = [nameAt(0, "u", inbox), nameAt(1, "u", inbox)];
  const id = nameAt(1, "g", (name) => link.keys.channel("head", `2:${name}`));
  const recipients = [silent, other];
  const draft = commandOf({ channel: { id, type: 2 }, recipients });
  await leave(t, link.keys.prefix, { draft, count: 40 });

  const { asked, end } = silence(link.primaryOf(inbox(silent)));
  time.nowMs += MINUTES_MS;
  t.equal(await codeOf(store.sweep()), "unavailable");
  end();
  const copies = async (uid: string) =>
    (await store.readInbox(uid, 0, { ...PAGE, limit: 100 })).length;
  t.equal(await copies(other), 40);
  const tries = asked.filter((sent) => sent.includes(inbox(silent))).length;
  t.ok(tries > 0 && tries < 20, `asked ${tries} times`);
  t.equal(await copies(silent), 0);
  time.nowMs += MINUTES_MS;
  await store.sweep();
  t.same(await Promise.all([silent, other].map(copies)), [40, 40]);
});

t.test("commands there are finished, and messages removed", async (t) => {
  const settings = { timeoutMs: 1000 };
  const one = await openStore(t, servers.url, { settings });
  const { store, link, time } = one;
  const id = nameAtFirst("g", (name) => link.keys.channel("head", `2:${name}`));
  const uid = nameAtFirst("u", (name) => link.keys.user("inbox", name));
  const channel = { id, type: 2 } as const;
  const draft = commandOf({ channel, recipients: [uid] });
  await leave(t, link.keys.prefix, { draft, count: 1 });
  await store.append(draftOf({ channel, expireS: 10 }));
  await servers.primaries[2]?.stop("SIGKILL");
  time.nowMs += MINUTES_MS;
  t.equal(await codeOf(store.sweep()), "unavailable");
  t.equal((await store.readInbox(uid, 0, PAGE)).length, 1);
  t.equal(await link.call("xlen", link.keys.channel("log", `2:${id}`)), 0);
});

t.test("a server whose clock is behind holds up no other", async (t) => {
  const settings = { timeoutMs: 1000 };
  const limits = { sweepIntervalMs: 10 };
  const one = await openStore(t, servers.url, { settings, limits });
  const { store, link, time } = one;
  time.nowMs = Date.now() - HOUR_MS;
  const head = (name: string) => link.keys.channel("head", `2:${name}`);
  const [behind, other] = [nameAt(0, "g", head), nameAt(1, "g", head)];
  const server = link.primaryOf(head(behind));
  const { time: realTime } = server;
  server.time = async () => [0, 0];
  await codeOf(store.sweep()); // one that asked it before is over
  for (const id of [behind, other])
    await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
  time.nowMs = Date.now();
  const logged = async (id: string) =>
    Number(await link.call("xlen", link.keys.channel("log", `2:${id}`)));
  while ((await logged(other)) > 0);
  t.equal(await logged(behind), 1);
  server.time = realTime;
  while ((await logged(behind)) > 0);
});

t.test("a node whose clock is ahead removes nothing, whichever server is away", async (t) => {
  const settings = { timeoutMs: 1000 };
  const limits = { sweepIntervalMs: 10 };
  const one = await openStore(t, servers.url, { settings, limits });
  const { store, link, time, problems } = one;
  const [asked] = link.primaries();
  const alive = servers.primaries.slice(0, 2).findIndex(({ port }) => port !== asked?.options.port);
  const id = nameAt(alive, "g", (name) => link.keys.channel("head", `2:${name}`));
  time.nowMs = Date.now() - HOUR_MS;
  await store.append(draftOf({ channel: { id, type: 2 }, expireS: 10 }));
  await servers.primaries[1 - alive]?.stop("SIGKILL");
  problems.length = 0;
  time.nowMs = Date.now() + HOUR_MS;
  const logged = () => link.call("xlen", link.keys.channel("log", `2:${id}`));
  const refused = () => problems.filter((problem) => /clock is ahead/.test(String(problem))).length;
  while (refused() < 3 && (await logged()) === 1);
  t.equal(await logged(), 1);
});
