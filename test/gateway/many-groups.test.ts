// A user with thousands of groups connects: other clients are served during the join, and messages
// sent during the join reach the session once. Uses a broker process of its own, to measure how
// long its event loop is blocked. JINDOU_TEST_GROUPS sets the number of groups.

import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import { type ChildBroker, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { t } from "../support/suite.ts";

const GROUPS = Number(process.env.JINDOU_TEST_GROUPS ?? 1500);
const AT_ONCE = 16;
/** Number of attempts. A busy machine may delay any single attempt. */
const ATTEMPTS = 3;
const PATIENCE_MS = 60_000;

t.test("a user with more than a thousand groups can connect", async (t) => {
  const broker = await spawnBroker(t, { JINDOU_AUTH_CLIENTS: "none" });
  await inParallel(GROUPS, async (at) => {
    const body = { channel_id: `g${at}`, channel_type: 2 };
    const subscribers = ["alice", "bob"];
    await broker.call("/channel", { ...body, subscribers });
  });

  await t.test(
    "other clients are served while a user joins more than a thousand groups",
    async (t) => {
      const shares: number[] = [];
      for (const named of [0, 1000]) {
        let best = 1;
        for (let at = 0; at < ATTEMPTS && best >= 0.5; at++)
          best = Math.min(best, await stallShare(t, broker, named));
        shares.push(best);
      }
      t.comment(`longest stalls as fractions of the time of joining: ${shares}`);
      for (const share of shares) t.ok(share < 0.5, "no stall lasts half of the time of joining");
    },
  );

  await t.test(
    "a user who joins more than a thousand groups receives each message sent during the join once",
    async (t) => {
      let hasConnack = false;
      let isOver = false;
      const seen = new Map<string, number>();
      const owed: string[] = [];
      const talking = inParallel(4, async (talker) => {
        for (let at = 0; !isOver; at++) {
          const clientMsgNo = `${talker}-${at}`;
          if (hasConnack) owed.push(clientMsgNo);
          const { status } = await broker.call("/message/send", {
            ...{ from_uid: "bob", client_msg_no: clientMsgNo },
            channel_id: `g${(at * 4 + talker) % GROUPS}`,
            ...{ channel_type: 2, payload: "eyJ0eXBlIjoxfQ==" },
          });
          if (status !== 200) throw new Error(`sending failed with ${status}`);
        }
      });
      const alice = await connect(t, broker, []);
      hasConnack = true;
      await joined(broker);
      isOver = true;
      await talking;
      await broker.call("/message/send", {
        ...{ from_uid: "bob", client_msg_no: "last", channel_id: "alice" },
        ...{ channel_type: 1, payload: "eyJ0eXBlIjoxfQ==" },
      });
      await alice.waitFor(() => alice.messages.some(({ clientMsgNo }) => clientMsgNo === "last"));
      for (const { clientMsgNo } of alice.messages)
        seen.set(clientMsgNo, (seen.get(clientMsgNo) ?? 0) + 1);
      t.ok(owed.length > 0, "messages were sent between the CONNACK and the end of joining");
      t.same(
        owed.filter((no) => !seen.has(no)),
        [],
        "no message sent after the CONNACK is missing",
      );
      t.same(
        [...seen].filter(([, times]) => times > 1),
        [],
        "no message was received twice",
      );
    },
  );
});

/**
 * Returns the longest time without a response from the broker, as a fraction of the time that
 * joining took.
 */
async function stallShare(t: Test, broker: ChildBroker, named: number): Promise<number> {
  let isOver = false;
  let longestMs = 0;
  const url = `http://127.0.0.1:${broker.apiPort}/healthz`;
  await (await fetch(url)).text();
  const probing = (async () => {
    while (!isOver) {
      const atMs = performance.now();
      await (await fetch(url)).text();
      longestMs = Math.max(longestMs, performance.now() - atMs);
    }
  })();
  const startMs = performance.now();
  const alice = await connect(
    t,
    broker,
    Array.from({ length: Math.min(named, GROUPS) }, (_, at) => ({
      channel: { id: `g${at}`, type: 2 as const },
      lastSeq: 0,
    })),
  );
  await joined(broker);
  const tookMs = performance.now() - startMs;
  isOver = true;
  await probing;
  alice.kill();
  await alice.closed;
  return longestMs / tookMs;
}

function connect(
  t: Test,
  { clientPort: port }: ChildBroker,
  resume: Parameters<typeof connectNative>[1]["resume"] & object,
) {
  return connectNative(t, {
    ...{ port, uid: "alice", resume, timeoutMs: PATIENCE_MS },
  });
}

/** Resolves when no session is catching up. */
async function joined(broker: ChildBroker): Promise<void> {
  for (;;) {
    const page = await fetch(`http://127.0.0.1:${broker.apiPort}/metrics`);
    if (/^\w*sessions_joining\S* 0$/m.test(await page.text())) return;
    await pause(5);
  }
}

async function inParallel(count: number, step: (at: number) => Promise<void>): Promise<void> {
  let next = 0;
  const work = async () => {
    while (next < count) {
      const at = next;
      next += 1;
      await step(at);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}
