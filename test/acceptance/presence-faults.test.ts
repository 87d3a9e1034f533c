// Presence when a node dies, freezes or loses Redis, and when Redis loses its data. Other nodes and
// watchers end up with the right status, and a session that was ended on another node does not
// continue. Uses broker processes on their own Redis.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { Keys } from "../../src/redis/keys.ts";
import { encodeDevice } from "../../src/store/redis/steps/users.ts";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { startRedis } from "../support/redis.ts";
import { disconnectReasonOf, eventually } from "./logins.ts";

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
  if (status !== 200) throw new Error(`/user/token responded with ${status}`);
}

/** Connects a main device of a user. */
async function connect(
  { clientPort: port }: Pick<ChildBroker, "clientPort">,
  uid: string,
  deviceId = "",
): Promise<NativeClient> {
  const credentials = { uid, token: TOKEN, timeoutMs: TIMEOUT_MS };
  return connectNative(t, { ...credentials, port, deviceId });
}

/**
 * Connects a watcher of these users to the node `here`. `pushed` returns the presence values that
 * the watcher was pushed for a user, newest last.
 */
async function watcherOf(uids: readonly string[]) {
  const uid = `watcher of ${uids[0]}`;
  await register(uid);
  const client = await connect(here, uid);
  const { presence } = await client.watch(uids);
  await until("the watcher's session to be live", async () => {
    const { body } = await here.call("/metrics");
    return JOINING.exec(String(body))?.[1] === "0"; // a fault before that would end the session
  });
  return {
    presence,
    pushed: (uid: string): readonly boolean[] =>
      client
        .pushesOf("presence")
        .flatMap((push) => push.presence)
        .filter((item) => item.uid === uid)
        .map(({ online }) => online),
  };
}

async function isOnline(node: ChildBroker, uid: string): Promise<boolean> {
  const { body } = await node.call("/user/onlinestatus", [uid]);
  return body[0]?.online === 1;
}

const until = (condition: string, holds: () => boolean | Promise<boolean>) =>
  eventually(condition, async () => holds());

t.test("the users of a killed node go offline, and their watchers are notified", async (t) => {
  const dying = await spawnNode("dying");
  const uids = ["killed 1", "killed 2", "both"];
  for (const uid of uids) await register(uid);
  for (const uid of uids) await connect(dying, uid, "there");
  const watcher = await watcherOf(uids);
  t.same(
    watcher.presence.map(({ online }) => online),
    [true, true, true],
    "all users are online",
  );
  await dying.kill();
  await until("all users to be offline", async () => {
    const states = await Promise.all(
      uids.flatMap((uid) => [isOnline(here, uid), isOnline(there, uid)]),
    );
    return !states.includes(true);
  });
  for (const uid of uids)
    await until("the presence push", () => watcher.pushed(uid).join() === "false");
  const back = await connect(there, "both", "there");
  await until("the push that the user is online", () => watcher.pushed("both").length === 2);
  t.same(watcher.pushed("both"), [false, true], "each change is pushed once");
  await back.disconnect();
  await until("the push that the user is offline", () => watcher.pushed("both").length === 3);
  t.same(watcher.pushed("both"), [false, true, false], "the logout is pushed once");
});

t.test(
  "the users of a frozen node are offline, and when the node wakes up, only sessions that are still valid continue",
  async (t) => {
    const frozen = await spawnNode("frozen");
    const uids = ["stays", "kicked", "logged out"];
    for (const uid of uids) await register(uid);
    const [stays, kicked, loggedOutClient] = (await Promise.all(
      uids.map((uid) => connect(frozen, uid)),
    )) as [NativeClient, NativeClient, NativeClient];
    const watcher = await watcherOf(uids);
    frozen.process.kill("SIGSTOP");
    await until("all users to be offline", () =>
      uids.every((uid) => watcher.pushed(uid).at(-1) === false),
    );
    const later = await connect(there, "kicked");
    const quit = { uid: "logged out", device_flag: 0 };
    t.equal(
      (await there.call("/user/device_quit", quit)).status,
      200,
      "the device quit is accepted",
    );
    frozen.process.kill("SIGCONT");
    await until("the push that the user is online", () => watcher.pushed("stays").at(-1) === true);
    t.equal((await stays.ping()).kind, "pong", "the session continues");
    const { code } = await kicked.closed;
    t.equal(code, CLOSE_REASONS.kicked.code, "the older login is ended");
    t.equal(disconnectReasonOf(kicked), "kicked", "the older login is ended as kicked");
    const { logged_out: loggedOut } = CLOSE_REASONS;
    t.equal((await loggedOutClient.closed).code, loggedOut.code, "the device that quit is ended");
    t.equal((await later.ping()).kind, "pong", "the newer login continues");
    t.notOk(await isOnline(here, "logged out"), "the device that quit is offline");
    t.equal(
      watcher.pushed("logged out").at(-1),
      false,
      "watchers see the device that quit as offline",
    );
  },
);

t.test(
  "a session whose entry was lost in Redis comes online again, and a revoked session is ended",
  async (t) => {
    const uids = ["forgotten", "revoked"];
    for (const uid of uids) await register(uid);
    const [stays, revoked] = (await Promise.all(uids.map((uid) => connect(there, uid)))) as [
      NativeClient,
      NativeClient,
    ];
    for (const uid of uids) await raw.del(keys.user("sessions", uid), keys.user("logins", uid));
    t.notOk(await isOnline(here, "forgotten"), "the session has no entry");
    const loggedOut = encodeDevice({ level: 1, tokenHash: new Uint8Array() });
    await raw.hset(keys.user("devices", "revoked"), "0", loggedOut); // a logout that was not published
    await raw.call("CLIENT", "KILL", "TYPE", "pubsub");
    await until("the user to be online", () => isOnline(here, "forgotten"));
    t.equal((await stays.ping()).kind, "pong", "the session was never ended");
    const { code } = await revoked.closed;
    t.equal(code, CLOSE_REASONS.logged_out.code, "the revoked session is ended");
    t.notOk(await isOnline(here, "revoked"), "the revoked user is offline");
  },
);

t.test(
  "a user whose session ends while Redis does not respond goes offline when Redis responds again",
  async (t) => {
    await register("unheard");
    const client = await connect(there, "unheard");
    const watcher = await watcherOf(["unheard"]);
    redis.signal("SIGSTOP");
    await client.disconnect();
    await pause(2000); // the removal of the session times out
    redis.signal("SIGCONT");
    await until("the presence push", () => watcher.pushed("unheard").at(-1) === false);
    t.notOk(await isOnline(here, "unheard"), "the user is offline on every node");
  },
);
