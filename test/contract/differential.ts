// Runs the same random sequence of calls against two stores and compares them after each step: the
// results must be equal, and so must the events of each channel and user, in order. Values that a
// store chooses itself, such as message ids, are compared by the order in which they first appear.

import { isDeepStrictEqual } from "node:util";
import type { Test } from "tap";
import { groupTopic, presenceTopic, userTopic } from "../../src/broker/model.ts";
import type { ClusterEvent, LoggedInSession } from "../../src/broker/ports.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { type CallContext, GROUPS, RandomCalls, type Step, UIDS } from "./random-calls.ts";
import { type StoreDriver, StoreFixture } from "./store-fixture.ts";

/** Seed of the sequence. It is fixed by default. Longer runs use other seeds. */
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
const STEPS = volume(500, "JINDOU_TEST_STEPS");
const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const TOPICS = [
  ...GROUPS.map(groupTopic),
  ...UIDS.flatMap((uid) => [userTopic(uid), presenceTopic(uid)]),
];

export function differential(t: Test, first: StoreDriver, second: StoreDriver): void {
  t.test(
    `${first.name} and ${second.name} return the same results and publish the same events for random calls`,
    async (t) => {
      for (let round = 0; round < ROUNDS; round++) {
        const seed = SEED + round;
        const random = new Random(seed);
        const limits = {
          maxChannelMessages: random.pick([0, 7]),
          retentionS: random.pick([0, 90]),
        };
        const sides = [
          await Side.open(t, first, limits),
          await Side.open(t, second, limits),
        ] as const;
        const run = await runSteps(new RandomCalls(random), sides);
        const { length } = run.steps;
        if (run.difference !== undefined) {
          const [actual, expected] = run.difference;
          t.same(
            actual,
            expected,
            `both stores agree after step ${length} with JINDOU_TEST_SEED=${seed}`,
          );
          t.comment(`the ${length} steps up to the difference:`);
          for (const step of run.steps) t.comment(step);
          return;
        }
        t.equal(length, STEPS, `both stores agree after every step with JINDOU_TEST_SEED=${seed}`);
        for (const side of sides) await side.close();
      }
    },
  );
}

/**
 * Runs steps until the stores differ. `difference` contains both outcomes, and is `undefined` if
 * the stores agreed after every step.
 */
async function runSteps(calls: RandomCalls, sides: readonly [Side, Side]) {
  const steps: string[] = [];
  while (steps.length < STEPS) {
    const step = calls.next();
    steps.push(step.text);
    const [expected, actual] = await Promise.all(sides.map((side) => side.run(step)));
    if (!isDeepStrictEqual(expected, actual))
      return { steps, difference: [actual, expected] as const };
  }
  return { steps, difference: undefined };
}

/** One of the compared stores, with the names of the values that it chose. */
class Side implements CallContext {
  readonly fixture: StoreFixture;
  readonly logins: LoggedInSession[] = [];
  readonly #ids = new Names();
  readonly #orders = new Names();
  readonly #sinces = new Names();
  #seenCount = 0;

  private constructor(fixture: StoreFixture) {
    this.fixture = fixture;
  }

  static async open(
    t: Test,
    driver: StoreDriver,
    limits: Pick<StoreFixture, "maxChannelMessages" | "retentionS">,
  ): Promise<Side> {
    const fixture = new StoreFixture(await driver.createLocation(t));
    Object.assign(fixture, limits);
    await fixture.reopen();
    await fixture.listen(TOPICS);
    t.teardown(() => fixture.store.close());
    return new Side(fixture);
  }

  close(): Promise<void> {
    return this.fixture.store.close();
  }

  /**
   * Runs the step and returns its result and its events, without values that depend on the store.
   */
  async run(step: Step): Promise<unknown> {
    const { fixture } = this;
    fixture.nowMs += step.passMs;
    const result = await step.run(this).catch(codeOf);
    for (const { channel, fromUid } of step.channels)
      await fixture.untilPublished(channel, fromUid);
    await fixture.store.headSeq("2:none"); // the response arrives after the events of users and members
    const events = fixture.events.slice(this.#seenCount);
    this.#seenCount = fixture.events.length;
    const comparable = events.filter(
      ({ kind }) => !(step.isReset && kind === "removal"), // a store may list the removed members or leave them out
    );
    return this.#neutral({ result, events: byReceiver(comparable) });
  }

  /**
   * Returns a copy of the value in which values that only this store chose are replaced by names.
   */
  #neutral(value: unknown, name = ""): unknown {
    if (typeof value === "number") {
      if (name === "messageId" && value > 0) return this.#ids.name(value);
      if (name === "order") return this.#orders.name(value);
      if (name === "since") return this.#sinces.name(value);
      return value;
    }
    if (name === "clientMsgNo" && typeof value === "string") {
      const id = /^server-(\d+)$/.exec(value)?.[1];
      return id === undefined ? value : `server-${this.#ids.name(Number(id))}`;
    }
    if (value instanceof Uint8Array) return Buffer.from(value).toString();
    if (Array.isArray(value)) return value.map((item) => this.#neutral(item, name));
    if (typeof value !== "object" || value === null) return value;
    const fields = Object.entries(value)
      .filter(([, field]) => field !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : 1));
    return Object.fromEntries(fields.map(([key, field]) => [key, this.#neutral(field, key)]));
  }
}

/** Names for numbers, in the order in which the numbers first appear. */
class Names {
  readonly #places = new Map<number, number>();

  name(value: number): string {
    const place = this.#places.get(value) ?? this.#places.size;
    this.#places.set(value, place);
    return `#${place}`;
  }
}

const codeOf = (error: unknown) => ({
  code: (error as { code?: string }).code,
});

/**
 * Groups the events by channel, user or session, because only the events of one group have an
 * order. A command is split into its copies, because a store may publish it in one event or in
 * several.
 */
function byReceiver(events: readonly ClusterEvent[]) {
  const lists: Record<string, unknown[]> = {};
  const add = (receiver: string, event: unknown) => {
    lists[receiver] = [...(lists[receiver] ?? []), event];
  };
  for (const event of events)
    switch (event.kind) {
      case "message":
        add(event.message.key, event);
        break;
      case "event":
        add(event.event.key, event);
        break;
      case "command":
        for (const copy of event.copies) add(`u:${copy.uid}`, { ...event, copies: [copy] });
        break;
      case "removal":
        add(`2:${event.channelId}`, {
          ...event,
          uids: event.uids?.toSorted(),
        });
        break;
      case "end_session":
        add(`session ${event.sessionId}`, event); // sessions that one login ends have no order
        break;
      case "presence":
        add(`p:${event.uid}`, event);
        break;
      default:
        add("others", event);
    }
  return lists;
}
