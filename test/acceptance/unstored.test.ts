// Unstored messages that reach a frozen node's socket are not delivered when it wakes: the user may
// have had them at another node meanwhile, and would see them twice there. The same for a channel
// that the node knows and for one that it hears of first then.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { textPayload } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError, textOf } from "../support/native-session.ts";
import { Random } from "../support/random.ts";
import { startRedis } from "../support/redis.ts";
import { ClusterNodes, DEAD_AFTER_MS } from "./cluster-nodes.ts";

const FROZEN = 0;
const ELSEWHERE = 1;
const UNSTORED = { header: { no_persist: 1 } };

t.setTimeout(120_000);

const { url: redisUrl } = await startRedis(t);
const random = new Random(1);
const nodes = await ClusterNodes.start(t, { redisUrl, random, count: 2 });

async function send(to: string, text: string, over = {}): Promise<void> {
  const answer = await nodes.callOf(ELSEWHERE, "/message/send", {
    ...{ channel_id: to, channel_type: 1, from_uid: "alice" },
    ...{ payload: textPayload(text), ...over },
  });
  if (answer.status !== 200) throw new Error(JSON.stringify(answer.body));
}

/**
 * A node that got no processor for as long as the others wait for it refuses a connect: it is to
 * come back (4102).
 */
async function connected(uid: string): Promise<NativeClient> {
  const port = nodes.clientPortOf(FROZEN);
  for (;;)
    try {
      return await connectNative(t, { uid, port });
    } catch (error) {
      const isLater = error instanceof NativeClientError && error.code === "closed_4102";
      if (!isLater) throw error;
      await pause(100);
    }
}

const textsOf = ({ messages }: NativeClient) => messages.map(textOf);

t.test("a node that wakes delivers no unstored message of before", async (t) => {
  await nodes.untilReady();
  const [known, fresh] = await Promise.all([connected("known"), connected("fresh")]);
  await send("known", "before");
  await known.waitFor(() => textsOf(known).includes("before"));
  nodes.signal(FROZEN, "SIGSTOP");
  await pause(DEAD_AFTER_MS);
  for (const uid of ["known", "fresh"])
    for (const text of ["one", "two"]) await send(uid, text, UNSTORED);
  await pause(DEAD_AFTER_MS);
  nodes.signal(FROZEN, "SIGCONT");
  await nodes.untilReady();
  for (const uid of ["known", "fresh"]) await send(uid, "after");
  for (const client of [known, fresh])
    await client.waitFor(() => textsOf(client).includes("after"));
  t.same(textsOf(known), ["before", "after"], "of a known channel");
  t.same(textsOf(fresh), ["after"], "of one that it had not heard of");
  await send("fresh", "unstored again", UNSTORED);
  await fresh.waitFor(() => textsOf(fresh).includes("unstored again"));
});
