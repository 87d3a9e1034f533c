// What other nodes and those who watch a user are told when a node dies, freezes or loses its
// Redis, and when Redis forgets: presence ends right, and a session that may not go on does not.
// Broker processes on a Redis of their own.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { Keys } from "../../src/redis/keys.ts";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { startRedis } from "../support/redis.ts";
import { eventually, farewellOf } from "./logins.ts";

t.setTimeout(300_000);

const DEAD_AFTER_MS = 1000;
const TIMEOUT_MS = 60_000;
const TOKEN = "a-token";
const JOINING = /^jindou_sessions_joining (\d+)$/m;
const MAIN = { device_flag: 0, device_level: 1 };

const redis = await startRedis(t);
const raw = redis.client();
const keys = new Keys("jd");
const settings = {
  JINDOU_REDIS_URL: redis.url,
  JINDOU_REDIS_TIMEOUT_MS: "1500",
  JINDOU_CLUSTER_DEAD_AFTER_MS: String(DEAD_AFTER_MS),
};
const spawnNode = (id: string) => spawnBroker(t, { ...settings, JINDOU_NODE_ID: id });
const [here, there] = await Promise.all([spawnNode("here"), spawnNode("n2")]);

async function register(uid: string, token = TOKEN): Promise<void> {
  const body = { uid, token, ...MAIN };
  const { status } = await here.call("/user/token", body);
  if (status !== 200) throw new Error(`/user/token: ${status}`);
}

/** A main device of a user, its own or another one. */
async function connect(
  { clientPort: port }: Pick<ChildBroker, "clientPort">,
  uid: string,
  deviceId = "",
): Promise<NativeClient> {
  const known = { uid, token: TOKEN, timeoutMs: TIMEOUT_MS };
  return connectNative(t, { ...known, port, deviceId });
}

/**
 * A session on the node `here` that watches these users, and what it was told of them, newest last.
 */
async function watcherOf(uids: readonly string[]) {
  const uid = `watcher of ${uids[0]}`;
  await register(uid);
  const client = await connect(here, uid);
  const { presence } = await client.watch(uids);
  await until("it to be live", async () => {
    const { body } = await here.call("/metrics");
    return JOINING.exec(String(body))?.[1] === "0"; // until then a fault ends it
  });
  return {
    presence,
    told: (uid: string): readonly boolean[] =>
      client
        .pushesOf("presence")
        .flatMap((push) => push.presence)
        .filter((one) => one.uid === uid)
        .map(({ online }) => online),
  };
}

async function isOnline(node: ChildBroker, uid: string): Promise<boolean> {
  const { body } = await node.call("/user/onlinestatus", [uid]);
  return body[0]?.online === 1;
}

const until = (what: string, holds: () => boolean | Promise<boolean>) =>
  eventually(what, async () => holds());

t.test("a node is killed: its sessions are offline, watchers are told", async (t) => {
  const doomed = await spawnNode("doomed");
  const uids = ["killed 1", "killed 2", "both"];
  for (const uid of uids) await register(uid);
  for (const uid of uids) await connect(doomed, uid, "there");
  const watcher = await watcherOf(uids);
  t.same(
    watcher.presence.map(({ online }) => online),
    [true, true, true],
    "all are online",
  );
  await doomed.kill();
  await until("all to be offline", async () => {
    const states = await Promise.all(
      uids.flatMap((uid) => [isOnline(here, uid), isOnline(there, uid)]),
    );
    return !states.includes(true);
  });
  for (const uid of uids) await until("the push", () => watcher.told(uid).join() === "false");
  const back = await connect(there, "both", "there");
  await until("it online", () => watcher.told("both").length === 2);
  t.same(watcher.told("both"), [false, true], "each change once");
  await back.disconnect();
  await until("it offline", () => watcher.told("both").length === 3);
  t.same(watcher.told("both"), [false, true, false], "and its end");
});

t.test("a node is frozen: its sessions are offline, then online or ended", async (t) => {
  const frozen = await spawnNode("frozen");
  const uids = ["stays", "kicked", "logged out"];
  for (const uid of uids) await register(uid);
  const [stays, kicked, out] = (await Promise.all(uids.map((uid) => connect(frozen, uid)))) as [
    NativeClient,
    NativeClient,
    NativeClient,
  ];
  const watcher = await watcherOf(uids);
  frozen.process.kill("SIGSTOP");
  await until("all to be offline", () => uids.every((uid) => watcher.told(uid).at(-1) === false));
  const later = await connect(there, "kicked");
  const quit = { uid: "logged out", device_flag: 0 };
  t.equal((await there.call("/user/device_quit", quit)).status, 200, "quit");
  frozen.process.kill("SIGCONT");
  await until("it online", () => watcher.told("stays").at(-1) === true);
  t.equal((await stays.ping()).kind, "pong", "the session goes on");
  const { code } = await kicked.closed;
  t.equal(code, CLOSE_REASONS.kicked.code, "the older login is ended");
  t.equal(farewellOf(kicked), "kicked", "and told why");
  const { logged_out: loggedOut } = CLOSE_REASONS;
  t.equal((await out.closed).code, loggedOut.code, "so is the one that quit");
  t.equal((await later.ping()).kind, "pong", "the newer login goes on");
  t.notOk(await isOnline(here, "logged out"), "nor is it online");
  t.equal(watcher.told("logged out").at(-1), false, "for watchers, too");
});

t.test("Redis forgets a session: it is online again", async (t) => {
  const uids = ["forgotten", "revoked"];
  for (const uid of uids) await register(uid);
  const [stays, gone] = (await Promise.all(uids.map((uid) => connect(there, uid)))) as [
    NativeClient,
    NativeClient,
  ];
  for (const uid of uids) await raw.del(keys.user("sessions", uid), keys.user("logins", uid));
  t.notOk(await isOnline(here, "forgotten"), "Redis forgot it");
  await raw.hset(keys.user("devices", "revoked"), "0", Buffer.from([1, 1])); // a logout of which nobody was told
  await raw.call("CLIENT", "KILL", "TYPE", "pubsub");
  await until("it online", () => isOnline(here, "forgotten"));
  t.equal((await stays.ping()).kind, "pong", "it was never ended");
  const { code } = await gone.closed;
  t.equal(code, CLOSE_REASONS.logged_out.code, "the one that may not is ended");
  t.notOk(await isOnline(here, "revoked"), "and offline");
});

t.test("Redis does not hear that a session ended: it is offline", async (t) => {
  await register("unheard");
  const client = await connect(there, "unheard");
  const watcher = await watcherOf(["unheard"]);
  redis.signal("SIGSTOP");
  await client.disconnect();
  await pause(2000); // the removal is not answered in time
  redis.signal("SIGCONT");
  await until("the push", () => watcher.told("unheard").at(-1) === false);
  t.notOk(await isOnline(here, "unheard"), "for all nodes");
});
