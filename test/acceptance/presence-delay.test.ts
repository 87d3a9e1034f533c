// Presence that is pushed to watchers when sessions end, on every store. A user who returns within
// `presence.offlineDelayMs`, at any node, is never pushed as offline. A user who logged out is
// pushed as offline at once. In most tests the delay is longer than the test, so a push that
// arrives did not wait for the delay.

import t, { type Test } from "tap";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { type ChildBroker, type Settings, spawnBroker } from "../support/broker.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { startRedis, startRedisCluster } from "../support/redis.ts";
import { openWkproto } from "../support/wkproto-client.ts";
import { eventually } from "./logins.ts";

t.setTimeout(300_000);

const LONG_MS = 60_000;
const SHORT_MS = 400;
/**
 * Minimum time until the push with the delay `SHORT_MS`. It is shorter than the delay, because a
 * timer counts from the beginning of its event-loop turn, which may be long on a busy machine.
 */
const MIN_MS = SHORT_MS / 2;
const TIMEOUT_MS = 50_000;

interface User {
  readonly uid: string;
  connect(node: ChildBroker, options?: { readonly jsonRpc?: boolean }): Promise<NativeClient>;
}

let users = 0;

async function newUser(t: Test, node: ChildBroker, name: string): Promise<User> {
  users += 1;
  const uid = `${name}-${users}`;
  const body = { uid, token: `token-${uid}`, device_flag: 0 };
  const { status } = await node.call("/user/token", body);
  if (status !== 200) throw new Error(`/user/token responded with ${status}`);
  return {
    uid,
    connect: ({ clientPort: port }, { jsonRpc = false } = {}) =>
      connectNative(t, {
        ...{ uid, port, token: `token-${uid}`, timeoutMs: TIMEOUT_MS },
        ...(jsonRpc ? { wire: jsonRpcWire(uid) } : {}),
      }),
  };
}

/**
 * Connects a watcher of the users. `pushed` returns the changes that the watcher was pushed, as
 * `<uid> <on|off>`.
 */
async function watcherOf(t: Test, node: ChildBroker, watched: readonly User[]) {
  const client = await (await newUser(t, node, "watcher")).connect(node);
  const fence = await newUser(t, node, "fence");
  const fenceClient = await fence.connect(node);
  const uids = watched.map(({ uid }) => uid);
  const { presence } = await client.watch([...uids, fence.uid]);
  const all = () =>
    client
      .pushesOf("presence")
      .flatMap((push) => push.presence)
      .map(({ uid, online }) => `${uid} ${online ? "on" : "off"}`);
  const pushed = () => all().filter((push) => !push.startsWith(fence.uid));
  return {
    online: presence.slice(0, uids.length).map(({ online }) => online),
    pushed,
    until: (push: string) => client.waitFor(() => pushed().includes(push), push),
    /** Returns all pushes, after a later change of another user was pushed. */
    async pushedBeforeFence(): Promise<readonly string[]> {
      await fenceClient.disconnect();
      await client.waitFor(() => all().includes(`${fence.uid} off`), "the fence");
      return pushed();
    },
  };
}

async function untilStatus(node: ChildBroker, { uid }: User, online: 0 | 1): Promise<void> {
  await eventually(`${uid} to be ${online}`, async () => {
    const { body } = await node.call("/user/onlinestatus", [uid]);
    return body[0]?.online === online;
  });
}

interface StoreNode extends ChildBroker {
  /** Settings shared by all nodes on the same store. */
  readonly settings: Settings;
}

type NodePair = readonly [StoreNode, StoreNode];

const [redis, cluster] = await Promise.all([startRedis(t), startRedisCluster(t)]);
const stores = [
  ["the embedded store", ""],
  ["one Redis", redis.url],
  ["a Redis Cluster", cluster.url],
] as const;
let prefixes = 0;
const longDelay = { JINDOU_PRESENCE_OFFLINE_DELAY_MS: String(LONG_MS) };

/** Starts two nodes on the store. On the embedded store, the pair is the same node twice. */
async function startPair(t: Test, url: string, settings: Settings): Promise<NodePair> {
  prefixes += 1;
  const shared: Settings = {
    JINDOU_REDIS_URL: url,
    JINDOU_REDIS_PREFIX: `p${prefixes}`,
    JINDOU_CLUSTER_DEAD_AFTER_MS: "1000",
  };
  const start = async () => ({
    ...(await spawnBroker(t, { ...settings, ...shared })),
    settings: shared,
  });
  const first = await start();
  return [first, url === "" ? first : await start()];
}

/** Nodes of each store with the long delay. The last test that uses them ends the second node. */
const longDelayPairs = new Map<string, NodePair>();
for (const [name, url] of stores) longDelayPairs.set(name, await startPair(t, url, longDelay));

/** Runs the scenario on the nodes of each store with the long delay. */
async function onNodesWithLongDelay(
  t: Test,
  scenario: (t: Test, nodes: NodePair) => Promise<void>,
): Promise<void> {
  for (const [name, nodes] of longDelayPairs) await t.test(name, (t) => scenario(t, nodes));
}

t.test(
  "watchers who saw a user online are pushed no change if the user reconnects within presence.offlineDelayMs",
  async (t) => {
    await onNodesWithLongDelay(t, async (t, [here, there]) => {
      const user = await newUser(t, here, "lost");
      const client = await user.connect(there);
      const watcher = await watcherOf(t, here, [user]);
      t.same(watcher.online, [true]);
      client.kill();
      await untilStatus(here, user, 0);
      const late = await watcherOf(t, here, [user]);
      t.same(late.online, [false], "WATCH returns the present state");
      await user.connect(here);
      await late.until(`${user.uid} on`);
      t.same(await watcher.pushedBeforeFence(), []);
      t.same(await late.pushedBeforeFence(), [`${user.uid} on`]);
    });
  },
);

t.test(
  "watchers are notified at once of a user who logs out or whose device is logged out",
  async (t) => {
    await onNodesWithLongDelay(t, async (t, [here, there]) => {
      const names = ["native", "jsonrpc", "wkproto", "quit", "last", "first"];
      const all = await Promise.all(names.map((name) => newUser(t, here, name)));
      const [native, jsonRpc, wkproto, quit, last, first] = all as [
        User,
        User,
        User,
        User,
        User,
        User,
      ];
      const nativeClient = await native.connect(there);
      const jsonRpcClient = await jsonRpc.connect(there, { jsonRpc: true });
      const { clientPort: port } = there;
      const wkClient = await openWkproto(t, { port, uid: wkproto.uid, deviceFlag: 0 });
      t.equal((await wkClient.connect()).reasonCode, 1);
      await quit.connect(there);
      const sessions = await Promise.all(
        [last, last, first, first].map((user) => user.connect(there)),
      );
      const watcher = await watcherOf(t, here, all);
      const sinceMs = performance.now();
      await nativeClient.disconnect();
      await jsonRpcClient.disconnect();
      wkClient.write("DISCONNECT", { reasonCode: 0, reason: "" });
      t.equal(
        (await there.call("/user/device_quit", { uid: quit.uid, device_flag: 0 })).status,
        200,
      );
      for (const { uid } of [native, jsonRpc, wkproto, quit]) await watcher.until(`${uid} off`);
      const isOneLeft = async (user: User) => {
        const { body } = await here.call(`/connz?uid=${user.uid}`);
        const { body: other } = await there.call(`/connz?uid=${user.uid}`);
        return new Set([...body.connections, ...other.connections].map(({ id }) => id)).size === 1;
      };
      sessions[0]?.kill();
      await eventually("one session to be left", () => isOneLeft(last));
      await sessions[1]?.disconnect();
      await watcher.until(`${last.uid} off`);
      await sessions[2]?.disconnect();
      await eventually("one session to be left", () => isOneLeft(first));
      sessions[3]?.kill();
      await untilStatus(here, first, 0);
      const pushed = await watcher.pushedBeforeFence();
      t.notOk(
        pushed.includes(`${first.uid} off`),
        "the user's last session was lost, so the push waits for the delay",
      );
      t.ok(performance.now() - sinceMs < LONG_MS, "no push waited for the delay");
      t.equal(pushed.length, 5, "each change is pushed once");
    });
  },
);

t.test("watchers are notified at once of a user who is banned", async (t) => {
  const settings = { ...longDelay, JINDOU_API_DIALECT: "wukongim" };
  for (const [name, url] of stores)
    await t.test(name, async (t) => {
      const [here, there] = await startPair(t, url, settings);
      const user = await newUser(t, here, "banned");
      const client = await user.connect(there);
      const watcher = await watcherOf(t, here, [user]);
      const sinceMs = performance.now();
      const ban = { channel_id: user.uid, channel_type: 1, ban: 1 };
      t.equal((await here.call("/channel/info", ban)).status, 200);
      t.equal((await client.closed).code, CLOSE_REASONS.banned.code);
      await watcher.until(`${user.uid} off`);
      t.ok(performance.now() - sinceMs < LONG_MS, "the push did not wait for the delay");
    });
});

t.test(
  "watchers are pushed no change if a node stops and its users reconnect to another node within presence.offlineDelayMs",
  async (t) => {
    await onNodesWithLongDelay(t, async (t, [here, there]) => {
      if (here === there) return; // a single node has no watchers after its end
      const [drained, killed] = [
        await newUser(t, here, "drained"),
        await newUser(t, here, "killed"),
      ];
      const client = await drained.connect(there);
      const watcher = await watcherOf(t, here, [drained]);
      const exit = there.terminate();
      t.equal((await client.closed).code, CLOSE_REASONS.draining.code);
      await untilStatus(here, drained, 0);
      await drained.connect(here);
      t.equal(await exit, 0);
      t.same(await watcher.pushedBeforeFence(), []);

      const dying = await spawnBroker(t, { ...longDelay, ...here.settings });
      await killed.connect(dying);
      const watcherOfKilled = await watcherOf(t, here, [killed]);
      await dying.kill();
      await untilStatus(here, killed, 0);
      await killed.connect(here);
      t.same(await watcherOfKilled.pushedBeforeFence(), []);
    });
  },
);

t.test("if a user stays away, watchers are notified after presence.offlineDelayMs", async (t) => {
  const settings = { JINDOU_PRESENCE_OFFLINE_DELAY_MS: String(SHORT_MS) };
  for (const [name, url] of stores)
    await t.test(name, async (t) => {
      const [here, there] = await startPair(t, url, settings);
      const user = await newUser(t, here, "away");
      const client = await user.connect(there);
      const watcher = await watcherOf(t, here, [user]);
      const lostMs = performance.now();
      client.kill();
      await watcher.until(`${user.uid} off`);
      t.ok(performance.now() - lostMs >= MIN_MS);
      const again = await user.connect(there);
      await watcher.until(`${user.uid} on`);
      const lostAgainMs = performance.now();
      again.kill();
      await eventually("the second push", () => watcher.pushed().length === 3);
      t.ok(performance.now() - lostAgainMs >= MIN_MS);
      t.same(
        watcher.pushed(),
        ["off", "on", "off"].map((state) => `${user.uid} ${state}`),
      );
      if (here === there) return;
      const dying = await newUser(t, here, "dying");
      await dying.connect(there);
      const watcherOfDying = await watcherOf(t, here, [dying]);
      await there.kill();
      await watcherOfDying.until(`${dying.uid} off`);
    });
});

t.test(
  "if presence.offlineDelayMs is 0, watchers are notified at once of a user whose connection is lost",
  async (t) => {
    const node = await spawnBroker(t, { JINDOU_PRESENCE_OFFLINE_DELAY_MS: "0" });
    const user = await newUser(t, node, "away");
    const client = await user.connect(node);
    const watcher = await watcherOf(t, node, [user]);
    client.kill();
    await untilStatus(node, user, 0);
    t.same(await watcher.pushedBeforeFence(), [`${user.uid} off`]);
  },
);
