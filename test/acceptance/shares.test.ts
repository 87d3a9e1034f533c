// Nobody pays for another's work [decisions: Limits that hold under attack]. A user sends the
// requests that cost the node more than their frame shows, and is refused when the user's budget is
// used up. Users who behave like people are never refused. The bounds contain the time that passed,
// so that they hold on any machine.

import t, { type Test } from "tap";
import { type Settings, spawnBroker } from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { NativeClientError } from "../support/native-session.ts";
import { startRedis } from "../support/redis.ts";

t.setTimeout(180_000);

const OPEN = { JINDOU_AUTH_CLIENTS: "none" };
const range = (length: number) => Array.from({ length }, (_, i) => i);

/** Default limits of the work of one connection. */
const RATE = 500;
const BURST = 1000;

async function startNode(t: Test, settings: Settings = {}) {
  const broker = await spawnBroker(t, { ...OPEN, ...settings });
  const connect = (uid: string) => connectNative(t, { port: broker.clientPort, uid });
  return { broker, connect };
}

/** Resolves with the number of calls that were not refused with `rate_limited`. */
async function acceptedOf(calls: readonly Promise<unknown>[]): Promise<number> {
  const outcomes = await Promise.allSettled(calls);
  for (const outcome of outcomes)
    if (outcome.status === "rejected" && !isRateLimited(outcome.reason)) throw outcome.reason;
  return outcomes.filter(({ status }) => status === "fulfilled").length;
}

function isRateLimited(error: unknown): boolean {
  return error instanceof NativeClientError && error.code === "rate_limited";
}

/** Returns how many calls of this cost a budget pays for. The last of them may leave a debt. */
function affordable(cost: number, sinceMs: number, budget = { rate: RATE, burst: BURST }): number {
  const tokens = budget.burst + (budget.rate * (performance.now() - sinceMs)) / 1000;
  return Math.ceil(tokens / cost);
}

t.test(
  "a user who watches other users each time pays for each new subscription in Redis",
  async (t) => {
    const WATCHED = 200;
    const redis = await startRedis(t);
    const { connect } = await startNode(t, { JINDOU_REDIS_URL: redis.url });
    const watched = (from: number, count = WATCHED) => range(count).map((i) => `user-${from + i}`);

    const person = await connect("alice");
    const growing = range(40).map((i) => person.watch(watched(0, WATCHED - 40 + i)));
    t.equal(await acceptedOf(growing), 40, "a client whose list changes by one user is served");

    const startMs = performance.now();
    const attacker = await connect("eve");
    const attack = range(20).map((i) => attacker.watch(watched(1000 + WATCHED * i)));
    const accepted = await acceptedOf(attack);
    const bound = affordable(WATCHED, startMs);
    t.ok(accepted <= bound, `${accepted} of 20 requests are served, at most ${bound}`);
    const topics = await redis.client().call("PUBSUB", "SHARDCHANNELS");
    const bystanders = 300; // topics of alice's request, of the node and of the sessions
    t.ok(
      (topics as readonly unknown[]).length <= accepted * WATCHED + bystanders,
      "a refused request subscribes to nothing",
    );
  },
);
