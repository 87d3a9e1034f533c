// A node that was frozen does not deliver unstored messages that reached its socket meanwhile,
// because the user may have received them on another node and would see them twice. The same holds
// for a channel that the node knows and for one it had no message of.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError, textOf } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { ClusterNodes, DEAD_AFTER_MS } from "./cluster-nodes.ts";

const FROZEN = 0;
const OTHER = 1;
const UNSTORED = { header: { no_persist: 1 } };

t.setTimeout(120_000);

const { url: redisUrl } = await startRedis(t);
const random = new Random(1);
const nodes = await ClusterNodes.start(t, { redisUrl, random, count: 2 });

async function send(receiver: string, text: string, overrides = {}): Promise<void> {
  const response = await nodes.callOf(OTHER, "/message/send", {
    ...{ channel_id: receiver, channel_type: 1, from_uid: "alice" },
    ...{ payload: textPayload(text), ...overrides },
  });
  if (response.status !== 200) throw new Error(JSON.stringify(response.body));
}

/**
 * Connects. Retries while the node refuses clients with 4102, because it got no processor time for
 * so long that the other nodes consider it dead.
 */
async function connect(uid: string): Promise<NativeClient> {
  const port = nodes.clientPortOf(FROZEN);
  for (;;)
    try {
      return await connectNative(t, { uid, port });
    } catch (error) {
      const isRetryable = error instanceof NativeClientError && error.code === "closed_4102";
      if (!isRetryable) throw error;
      await pause(100);
    }
}

const textsOf = ({ messages }: NativeClient) => messages.map(textOf);

t.test(
  "unstored messages that are sent while a node is frozen are not delivered when the node resumes",
  async (t) => {
    await nodes.untilReady();
    const [active, idle] = await Promise.all([connect("active"), connect("idle")]);
    await send("active", "before");
    await active.waitFor(() => textsOf(active).includes("before"));
    nodes.signal(FROZEN, "SIGSTOP");
    await pause(DEAD_AFTER_MS);
    for (const uid of ["active", "idle"])
      for (const text of ["first", "second"]) await send(uid, text, UNSTORED);
    await pause(DEAD_AFTER_MS);
    nodes.signal(FROZEN, "SIGCONT");
    await nodes.untilReady();
    for (const uid of ["active", "idle"]) await send(uid, "after");
    for (const client of [active, idle])
      await client.waitFor(() => textsOf(client).includes("after"));
    t.same(
      textsOf(active),
      ["before", "after"],
      "the user of a known channel gets only stored messages",
    );
    t.same(textsOf(idle), ["after"], "the user of an unknown channel gets only stored messages");
    await send("idle", "unstored again", UNSTORED);
    await idle.waitFor(() => textsOf(idle).includes("unstored again"));
  },
);
