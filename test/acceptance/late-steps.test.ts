// A network that stalls between one node and Redis. The node's commands wait in the network, its
// calls are answered as failed, and the commands reach Redis later. They must not change anything
// then, because other nodes have stored newer logins, tokens and memberships meanwhile. Uses two
// broker processes.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { type ChildBroker, spawnBroker, textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { startRedis } from "../support/redis.ts";
import { startStallingProxy } from "../support/stalling-proxy.ts";

const TIMEOUT_MS = 2000;
/** Time in which the delayed commands run after the stall. */
const AFTERMATH_MS = 1500;
const APP = 0;
const WEB = 1;

const GROUP = { channel_id: "team", channel_type: 2 } as const;

const token = (uid: string, text: string, flag = APP) => ({
  ...{ uid, token: text, device_flag: flag, device_level: 1 },
});

async function statusOf(broker: ChildBroker, path: string, body: unknown): Promise<number> {
  return (await broker.call(path, body)).status;
}

interface Stall {
  readonly title: string;
  /** Time from the begin of the stall until the calls. */
  readonly beforeCallsMs: number;
  /** True if the node's connections are reset while its commands wait in the network. */
  readonly isCut: boolean;
  /** Time from the answers to the calls until the end of the stall. */
  readonly afterAnswersMs: number;
}

const STALLS: readonly Stall[] = [
  {
    title: "Redis does not respond for a long time",
    ...{ beforeCallsMs: 0, isCut: false, afterAnswersMs: 4 * TIMEOUT_MS },
  },
  {
    title: "the node replaces its connection before the calls have timed out",
    ...{ beforeCallsMs: 0.8 * TIMEOUT_MS, isCut: false, afterAnswersMs: 0 },
  },
  {
    title: "the connection is reset and Redis gets the commands later",
    ...{ beforeCallsMs: 0, isCut: true, afterAnswersMs: 0 },
  },
];

for (const stall of STALLS)
  t.test(`a call that failed changes nothing later: ${stall.title}`, async (t) => {
    const redis = await startRedis(t);
    const proxy = await startStallingProxy(t, redis.port);
    const timeouts = { JINDOU_REDIS_TIMEOUT_MS: String(TIMEOUT_MS) };
    const [stalled, healthy] = await Promise.all([
      spawnBroker(t, { JINDOU_REDIS_URL: `redis://127.0.0.1:${proxy.port}`, ...timeouts }),
      spawnBroker(t, { JINDOU_REDIS_URL: redis.url, ...timeouts }),
    ]);
    const ok = async (path: string, body: unknown) =>
      t.equal(await statusOf(healthy, path, body), 200, `${path} is acknowledged`);

    await ok("/user/token", token("alice", "first"));
    await ok("/user/token", token("bob", "first"));
    await ok("/user/token", token("bob", "first", WEB));
    await ok("/channel", { ...GROUP, subscribers: ["alice", "bob", "carol"] });

    proxy.stall();
    await pause(stall.beforeCallsMs);
    const message = { ...GROUP, from_uid: "bob", payload: textPayload("late") };
    const late: Readonly<Record<string, unknown>> = {
      "/user/token": token("bob", "stale", WEB),
      "/channel/subscriber_remove": { ...GROUP, subscribers: ["bob"] },
      "/channel/subscriber_add": { ...GROUP, subscribers: ["mallory"] },
      "/channel/blacklist_add": { ...GROUP, uids: ["alice"] },
      "/message/send": message,
      "/event": {
        ...{ ...GROUP, from_uid: "bob", client_msg_no: "late-stream" },
        event: { type: "___TextMessageStart", data: "{}" },
      },
      "/conversations/setUnread": { ...GROUP, uid: "carol", unread: 1 },
      "/user/systemuids_add": { uids: ["mallory"] },
    };
    const answers = Promise.all(
      Object.entries(late).map(async ([path, body]) => [path, await statusOf(stalled, path, body)]),
    );
    const login = connectNative(t, { port: stalled.clientPort, uid: "alice", token: "first" }).then(
      () => "connected",
      () => "refused",
    );
    if (stall.isCut) {
      await pause(300); // the commands are in the network by then
      proxy.cut();
    }
    for (const [path, status] of await answers) t.equal(status, 503, `${path} fails in the stall`);
    t.equal(await login, "refused", "the login in the stall fails");
    await ok("/user/token", token("bob", "newest", WEB));
    await ok("/channel/subscriber_remove", { ...GROUP, subscribers: ["bob"] });
    await ok("/channel/subscriber_add", { ...GROUP, subscribers: ["bob"] });
    const alice = await connectNative(t, {
      ...{ port: healthy.clientPort, uid: "alice", token: "first" },
    });

    await pause(stall.afterAnswersMs);
    proxy.resume();
    await pause(AFTERMATH_MS);

    await t.resolves(alice.ping(), "the newest login of the main device stays connected");
    const bob = await connectNative(t, {
      ...{ port: healthy.clientPort, uid: "bob", token: "newest", flag: WEB },
    });
    await bob.ping();
    await ok("/message/send", { ...message, payload: textPayload("on time") });
    await alice.waitFor(({ messages }) => messages.length > 0, "the message of the added member");
    t.same(
      alice.messages.map(({ messageSeq }) => messageSeq),
      [1],
      "the late message and the late stream were not stored",
    );
    const members = await healthy.call(`/channel/members?channel_id=team&channel_type=2`);
    t.notMatch(JSON.stringify(members.body), "mallory", "the late member was not added");
    await ok("/message/send", { ...message, from_uid: "alice" });
  });
