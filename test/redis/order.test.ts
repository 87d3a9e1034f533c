// On a Redis Cluster, calls keep their order while slots move to other servers: accepted messages
// are stored in the order of their calls.

import t from "tap";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { ALL, codeOf, draftOf } from "../contract/store-fixture.ts";
import { openStore } from "../store/redis/one-store.ts";
import { failOverTo, startRedisCluster } from "../support/redis.ts";

const PER_TURN = 5;
const numberOf = (payload: Uint8Array) => Number(new TextDecoder().decode(payload));

t.test(
  "accepted messages are stored in the order of their calls, even during fail-overs of a Redis Cluster",
  async (t) => {
    const { url, replicas } = await startRedisCluster(t, { replicas: true });
    const { store, link } = await openStore(t, url);
    const buckets = new Set<number>();
    const groups = Array.from({ length: 12 }, (_, i) => ({ id: `g${i}`, type: 2 }) as const);
    for (const { id } of groups) buckets.add(bucketOf(`2:${id}`));
    t.ok(buckets.size > 6);

    const accepted = new Map<string, number[]>(groups.map(({ id }) => [id, []]));
    const codes = new Set<string | undefined>();
    const calls: Promise<void>[] = [];
    let sent = 0;
    /** Sends several messages to each group without waiting. */
    function sendBurst(): void {
      for (let i = 0; i < PER_TURN; i++, sent++)
        for (const channel of groups) {
          const number = sent;
          const payload = new TextEncoder().encode(`${number}`);
          const call = store.append(draftOf({ channel, payload }));
          const recorded = call.then(() => accepted.get(channel.id)?.push(number));
          calls.push(codeOf(recorded).then((code) => void codes.add(code)));
        }
    }
    const sendFor = async (turns: number): Promise<void> => {
      for (let turn = 0; turn < turns; turn++) {
        sendBurst();
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
    };
    await sendFor(20);
    for (const replica of replicas) {
      await Promise.all([failOverTo(replica), sendFor(60)]);
    }
    const isUp = async () =>
      (
        await Promise.all(
          groups.map((channel) =>
            codeOf(store.append(draftOf({ channel, payload: new Uint8Array(0) }))),
          ),
        )
      ).every((code) => code === undefined);
    await Promise.all(calls);
    while (!(await isUp())) await new Promise((resolve) => setTimeout(resolve, 20));

    // On a slow machine, a message may reach its server after the message's deadline.
    const expected = [undefined, "unavailable", "too_late"];
    t.ok(
      [...codes].every((code) => expected.includes(code)),
      [...codes].join(),
    );
    for (const { id } of groups) {
      const { messages } = await store.readMessages(`2:${id}`, ALL);
      const numbers = messages
        .filter(({ payload }) => payload.length > 0)
        .map(({ payload }) => numberOf(payload));
      t.same(
        numbers,
        numbers.toSorted((a, b) => a - b),
        "messages are stored in the order of the calls",
      );
      t.equal(new Set(numbers).size, numbers.length, "each message is stored once");
      const stored = new Set(numbers);
      t.ok(
        accepted.get(id)?.every((number) => stored.has(number)),
        "every accepted message is stored",
      );
    }
    t.equal(link.inFlight, 0);
  },
);
