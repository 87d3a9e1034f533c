// Store contract: read positions and unread counts, by the table of `unread-cases.ts`. The
// conversation list must contain the same position as the conversation.

import type { Test } from "tap";
import { type ChannelRef, STREAM_START } from "../../src/broker/model.ts";
import type { ConversationChange } from "../../src/broker/ports.ts";
import { conversationsOf } from "../support/conversation-list.ts";
import { numbersOf } from "./conversation-fixture.ts";
import { draftOf, type FixtureFactory, group, type StoreFixture } from "./store-fixture.ts";
import { commandOf } from "./store-inbox-fixture.ts";
import { eventOf } from "./store-stream-fixture.ts";
import { UNREAD_CASES, type UnreadCase, type UnreadStep } from "./unread-cases.ts";

/**
 * Runs all cases. Cases without limits and without a passing clock share one store, which is
 * restarted once for all of them. Every other case has a store of its own.
 */
export async function unread(t: Test, createFixture: FixtureFactory): Promise<void> {
  const needsOwnStore = ({ maxChannelMessages, retentionS, lines }: UnreadCase) =>
    (maxChannelMessages ?? retentionS) !== undefined ||
    lines.some(([step]) => step.kind === "pass");
  const fixture = await createFixture(t);
  const runners: CaseRunner[] = [];
  for (const unreadCase of UNREAD_CASES.filter((one) => !needsOwnStore(one)))
    t.test(unreadCase.title, async (t) => {
      const runner = new CaseRunner(fixture, runners.length);
      runners.push(runner);
      await runner.run(t, unreadCase);
    });
  t.test("read positions and unread counts are the same after a restart", async (t) => {
    await fixture.reopen();
    for (const runner of runners) await runner.checkUnchanged(t);
  });

  for (const unreadCase of UNREAD_CASES.filter(needsOwnStore))
    t.test(unreadCase.title, async (t) => {
      const fixture = await createFixture(t);
      const { maxChannelMessages = 0, retentionS = 0 } = unreadCase;
      Object.assign(fixture, { maxChannelMessages, retentionS });
      await fixture.reopen();
      const runner = new CaseRunner(fixture, 0);
      await runner.run(t, unreadCase);
      await fixture.reopen();
      await runner.checkUnchanged(t);
    });
}

/** Runs one case in a group and with users of its own. Stores the last expected positions. */
class CaseRunner {
  readonly #fixture: StoreFixture;
  readonly #at: number;
  readonly #lastPositions = new Map<string, string>();

  constructor(fixture: StoreFixture, at: number) {
    this.#fixture = fixture;
    this.#at = at;
  }

  async run(t: Test, { lines }: UnreadCase): Promise<void> {
    const members = ["alice", "bob", "carol"].map((name) => this.#uid(name));
    await this.#fixture.store.createChannel(group(this.#group.id), members);
    for (const [at, [step, positions = {}]] of lines.entries()) {
      const result = await this.#apply(step);
      const line = `line ${at + 1}: ${step.kind}`;
      const expectedResult = "uid" in step ? positions[positionName(step)] : undefined;
      if (isChange(step) && expectedResult !== undefined)
        t.equal(result, expectedResult, `${line}: the change returns the expected position`);
      for (const [name, expected] of Object.entries(positions)) {
        t.equal(
          await this.#positionOf(t, name),
          expected,
          `${line}: the store returns the expected position of ${name}`,
        );
        this.#lastPositions.set(name, expected);
      }
    }
    for (const name of this.#lastPositions.keys())
      this.#lastPositions.set(name, await this.#positionOf(t, name));
  }

  /** Checks that all positions are the same as at the end of the case. */
  async checkUnchanged(t: Test): Promise<void> {
    for (const [name, expected] of this.#lastPositions)
      t.equal(
        await this.#positionOf(t, name),
        expected,
        `the position of ${name} in case ${this.#at} is unchanged`,
      );
  }

  get #group(): ChannelRef {
    return { id: `unread${this.#at}`, type: 2 };
  }

  #uid(name: string): string {
    return `${name}-${this.#at}`;
  }

  #channel(other: string | undefined): ChannelRef {
    return other === undefined ? this.#group : { id: this.#uid(other), type: 1 };
  }

  async #apply(step: UnreadStep): Promise<string | undefined> {
    const fixture = this.#fixture;
    const { store } = fixture;
    const info = group(this.#group.id);
    const reset = { membership: "permanent", reset: true } as const;
    switch (step.kind) {
      case "send":
        await this.#send(step);
        return undefined;
      case "stream":
        await store.streamEvent(
          eventOf(STREAM_START, "", {
            ...{ channel: this.#group, fromUid: this.#uid("alice") },
          }),
        );
        return undefined;
      case "command":
        await store.appendCommand(
          commandOf({
            ...{ channel: this.#group, fromUid: this.#uid("alice") },
            recipients: [this.#uid("bob")],
          }),
        );
        return undefined;
      case "read":
        return this.#change(step.uid, step.with, step);
      case "unread":
      case "delete":
        return this.#change(step.uid, undefined, step);
      case "join": {
        const { membership, uid } = step;
        const options = { membership, reset: false };
        await store.addSubscribers(info, [this.#uid(uid)], options);
        return undefined;
      }
      case "leave":
        await store.removeSubscribers(...([info, [this.#uid(step.uid)], step.membership] as const));
        return undefined;
      case "reset":
        await store.addSubscribers(
          ...([info, step.uids.map((uid) => this.#uid(uid)), reset] as const),
        );
        return undefined;
      case "flags":
        await store.updateChannel(info, step.flags);
        return undefined;
      case "pass":
        fixture.nowMs += step.ms;
        return undefined;
      case "sweep":
        await store.sweep();
        return undefined;
      case "restart":
        await fixture.reopen();
        return undefined;
    }
  }

  /** Sends all messages at the same time. Their seqs follow the order of the calls. */
  async #send(step: Extract<UnreadStep, { readonly kind: "send" }>): Promise<void> {
    const { count, from, to, redDot, noPersist, expireS } = step;
    const draft = draftOf({
      ...{ channel: this.#channel(to), fromUid: this.#uid(from), expireS },
      header: { redDot, noPersist },
    });
    await Promise.all(Array.from({ length: count }, () => this.#fixture.store.append(draft)));
  }

  async #change(
    name: string,
    other: string | undefined,
    change: ConversationChange,
  ): Promise<string> {
    const { store } = this.#fixture;
    return positionText(
      await store.changeConversation(...([this.#uid(name), this.#channel(other), change] as const)),
    );
  }

  /**
   * Returns the user's position in the conversation, and checks that the list has that position.
   */
  async #positionOf(t: Test, positionName: string): Promise<string> {
    const { store } = this.#fixture;
    const [name = "", other] = positionName.split(" with ");
    const uid = this.#uid(name);
    const channel = this.#channel(other);
    const conversation = await store.conversation(uid, channel);
    const head = (await conversationsOf(store, uid)).find(
      (entry) => entry.channel.id === channel.id,
    );
    const listed = conversation?.last === undefined ? undefined : positionText(conversation);
    t.equal(
      head && positionText(head),
      listed,
      `the list has the same position of ${positionName} as the conversation`,
    );
    return positionText(conversation);
  }
}

type Change = Extract<UnreadStep, { readonly kind: "read" | "unread" | "delete" }>;

function isChange(step: UnreadStep): step is Change {
  return ["read", "unread", "delete"].includes(step.kind);
}

/** Returns the name under which the table lists the position that the step changes. */
function positionName(step: Extract<UnreadStep, { readonly uid: string }>): string {
  return "with" in step ? `${step.uid} with ${step.with}` : step.uid;
}

type PositionSource = Parameters<typeof numbersOf>[0] & {
  readonly last: { readonly messageSeq: number } | undefined;
};

/** Returns the position in the form of the table. */
function positionText(conversation: PositionSource | undefined): string {
  if (conversation === undefined) return "none";
  return [...numbersOf(conversation), conversation.last?.messageSeq ?? "-"].join(" ");
}
