// A node that was frozen does not deliver unstored messages that reached its socket during the
// freeze, because the user may have received them on another node and would see them twice. This
// holds whether or not the node had received a message of the channel before.

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
 * Connects. Retries while the node refuses clients with 4102, because the node got no processor
 * time for so long that the other nodes consider it dead.
 */
async function connect(uid: string): Promise<NativeClient> {
  const port = nodes.clientPortOf(FROZEN);
  for (;;)
    try {
      return await connectNative(t, { uid, port });
    } catch (error) {
      if (!isClosedAsUnavailable(error)) throw error;
      await pause(100);
    }
}

/**
 * Waits for the text. Returns false if the node closed the session with 4102 instead, because on a
 * busy machine it could not confirm the session soon enough after the freeze.
 */
async function receivesUnlessClosed(client: NativeClient, text: string): Promise<boolean> {
  try {
    await client.waitFor(() => textsOf(client).includes(text));
    return true;
  } catch (error) {
    if (!isClosedAsUnavailable(error)) throw error;
    return false;
  }
}

function isClosedAsUnavailable(error: unknown): boolean {
  return error instanceof NativeClientError && error.code === "closed_4102";
}

const textsOf = ({ messages }: NativeClient) => messages.map(textOf);

/**
 * Durations of the freezes. After a short freeze, the connections to Redis continue. After a long
 * freeze, these connections have timed out, and the node may notice the time-out before it reads
 * the bytes that have arrived.
 */
const FREEZES_MS = [2 * DEAD_AFTER_MS, 4 * DEAD_AFTER_MS];

for (const freezeMs of FREEZES_MS)
  t.test(
    `unstored messages that are sent to a user while the user's node is frozen for ${freezeMs} ms are not delivered`,
    async (t) => {
      await nodes.untilReady();
      const [activeUid, idleUid] = [`active${freezeMs}`, `idle${freezeMs}`];
      const [active, idle] = await Promise.all([connect(activeUid), connect(idleUid)]);
      await send(activeUid, "before");
      await active.waitFor(() => textsOf(active).includes("before"));
      nodes.signal(FROZEN, "SIGSTOP");
      await pause(freezeMs / 2);
      for (const uid of [activeUid, idleUid])
        for (const text of ["first", "second"]) await send(uid, text, UNSTORED);
      await pause(freezeMs / 2);
      nodes.signal(FROZEN, "SIGCONT");
      await nodes.untilReady();
      for (const uid of [activeUid, idleUid]) await send(uid, "after");
      const expected = { known: ["before", "after"], unknown: ["after"] };
      for (const [kind, client] of [
        ["known", active],
        ["unknown", idle],
      ] as const) {
        const isOpen = await receivesUnlessClosed(client, "after");
        const texts = textsOf(client);
        t.same(
          texts,
          isOpen ? expected[kind] : expected[kind].slice(0, texts.length),
          `a user of a channel that is ${kind} on the node gets only stored messages`,
        );
      }
      await send(idleUid, "unstored again", UNSTORED);
      if (await receivesUnlessClosed(idle, "unstored again"))
        t.pass("later unstored messages are delivered");
    },
  );
