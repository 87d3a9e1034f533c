// Two drivers of the Store port are given the same seeded course of calls and must agree after
// each: equal answers, and in each channel and for each user equal events in the same order. Ids
// that a store chooses are compared by the order in which they appear. State: of each side, its
// store and those names.

import { isDeepStrictEqual } from "node:util";
import type { Test } from "tap";
import { groupTopic, presenceTopic, userTopic } from "../../src/broker/model.ts";
import type { ClusterEvent, LoggedInSession } from "../../src/broker/ports.ts";
import { Random } from "../support/random.ts";
import { volume } from "../support/volume.ts";
import { type CallContext, GROUPS, RandomCalls, type Step, UIDS } from "./random-calls.ts";
import { type StoreDriver, StoreFixture } from "./store-fixture.ts";

/** Fixed by default: other seeds are for longer runs, which may find something new. */
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
const STEPS = volume(500, "JINDOU_TEST_STEPS");
const ROUNDS = volume(20, "JINDOU_TEST_ROUNDS");
const TOPICS = [
  ...GROUPS.map(groupTopic),
  ...UIDS.flatMap((uid) => [userTopic(uid), presenceTopic(uid)]),
];

export function differential(t: Test, one: StoreDriver, other: StoreDriver): void {
  t.test(`${one.name} and ${other.name} agree on random calls`, async (t) => {
    for (let round = 0; round < ROUNDS; round++) {
      const seed = SEED + round;
      const random = new Random(seed);
      const limits = {
        maxChannelMessages: random.pick([0, 7]),
        retentionS: random.pick([0, 90]),
      };
      const sides = [await Side.open(t, one, limits), await Side.open(t, other, limits)] as const;
      const taken = await takeAll(new RandomCalls(random), sides);
      const { length } = taken.steps;
      if (taken.answers !== undefined) {
        const [found, expected] = taken.answers;
        t.same(found, expected, `JINDOU_TEST_SEED=${seed}, call ${length}`);
        t.comment(`${length} calls of the shortest course that fails:`);
        for (const step of taken.steps) t.comment(step);
        return;
      }
      t.equal(length, STEPS, `JINDOU_TEST_SEED=${seed}`);
      for (const side of sides) await side.close();
    }
  });
}

/** Takes steps until the sides differ; then `answers` has both. */
async function takeAll(course: RandomCalls, sides: readonly [Side, Side]) {
  const steps: string[] = [];
  while (steps.length < STEPS) {
    const step = course.next();
    steps.push(step.text);
    const [one, other] = await Promise.all(sides.map((s) => s.take(step)));
    if (!isDeepStrictEqual(one, other)) return { steps, answers: [other, one] as const };
  }
  return { steps, answers: undefined };
}

class Side implements CallContext {
  readonly fixture: StoreFixture;
  readonly logins: LoggedInSession[] = [];
  readonly #ids = new Names();
  readonly #orders = new Names();
  readonly #sinces = new Names();
  #seen = 0;

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

  /** What the step was answered and what it published, in the same words on both sides. */
  async take(step: Step): Promise<unknown> {
    const { fixture } = this;
    fixture.nowMs += step.passMs;
    const answer = await step.run(this).catch(codeOf);
    for (const { channel, fromUid } of step.channels)
      await fixture.untilPublished(channel, fromUid);
    await fixture.store.headSeq("2:none"); // events of users and members have come when a read is answered
    const events = fixture.events.slice(this.#seen);
    this.#seen = fixture.events.length;
    const comparable = events.filter(
      ({ kind }) => !(step.isReset && kind === "removal"), // names those removed, or anybody
    );
    return this.#plain({ answer, events: byReceiver(comparable) });
  }

  /** Without what only this side's store chose. */
  #plain(value: unknown, name = ""): unknown {
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
    if (Array.isArray(value)) return value.map((one) => this.#plain(one, name));
    if (typeof value !== "object" || value === null) return value;
    const fields = Object.entries(value)
      .filter(([, field]) => field !== undefined)
      .sort(([a], [b]) => (a < b ? -1 : 1));
    return Object.fromEntries(fields.map(([key, field]) => [key, this.#plain(field, key)]));
  }
}

/** Numbers by the order in which they came. */
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
 * Events have an order for each channel and each user. A command is published to its users in one
 * event or in several.
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
        add(`session ${event.sessionId}`, event); // of several that one login ends none is first
        break;
      case "presence":
        add(`p:${event.uid}`, event);
        break;
      default:
        add("others", event);
    }
  return lists;
}
