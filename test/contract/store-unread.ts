// The Store contract: where users stand in conversations, by the table of `unread-cases.ts`. A list
// tells the same as the conversation.

import type { Test } from "tap";
import { type ChannelRef, STREAM_START } from "../../src/broker/model.ts";
import type { ConversationChange } from "../../src/broker/ports.ts";
import { numbersOf } from "./conversation-fixture.ts";
import { draftOf, type FixtureFactory, group, type StoreFixture } from "./store-fixture.ts";
import { commandOf } from "./store-inbox-fixture.ts";
import { eventOf } from "./store-stream-fixture.ts";
import { type Move, UNREAD_CASES, type UnreadCase } from "./unread-cases.ts";

/** Those in which no time passes share a store, which is started again once for all. */
export async function unread(t: Test, createFixture: FixtureFactory): Promise<void> {
  const alone = ({ maxChannelMessages, retentionS, lines }: UnreadCase) =>
    (maxChannelMessages ?? retentionS) !== undefined ||
    lines.some(([move]) => move.kind === "pass");
  const fixture = await createFixture(t);
  const scenes: Scene[] = [];
  for (const one of UNREAD_CASES.filter((one) => !alone(one)))
    t.test(one.what, async (t) => {
      const scene = new Scene(fixture, scenes.length);
      scenes.push(scene);
      await scene.play(t, one);
    });
  t.test("all of them, behind a restart", async (t) => {
    await fixture.reopen();
    for (const scene of scenes) await scene.standAsBefore(t);
  });

  for (const one of UNREAD_CASES.filter(alone))
    t.test(one.what, async (t) => {
      const fixture = await createFixture(t);
      const { maxChannelMessages = 0, retentionS = 0 } = one;
      Object.assign(fixture, { maxChannelMessages, retentionS });
      await fixture.reopen();
      const scene = new Scene(fixture, 0);
      await scene.play(t, one);
      await fixture.reopen();
      await scene.standAsBefore(t);
    });
}

/** One case, with a group and users of its own. */
class Scene {
  readonly #fixture: StoreFixture;
  readonly #at: number;
  readonly #last = new Map<string, string>();

  constructor(fixture: StoreFixture, at: number) {
    this.#fixture = fixture;
    this.#at = at;
  }

  async play(t: Test, { lines }: UnreadCase): Promise<void> {
    const members = ["alice", "bob", "carol"].map((name) => this.#uid(name));
    await this.#fixture.store.createChannel(group(this.#group.id), members);
    for (const [at, [move, standings = {}]] of lines.entries()) {
      const answer = await this.#move(move);
      const where = `line ${at + 1}: ${move.kind}`;
      const own = "uid" in move ? standings[moved(move)] : undefined;
      if (isChange(move) && own !== undefined) t.equal(answer, own, `${where} is answered`);
      for (const [who, expected] of Object.entries(standings)) {
        t.equal(await this.#standing(t, who), expected, `${where}: ${who}`);
        this.#last.set(who, expected);
      }
    }
    for (const who of this.#last.keys()) this.#last.set(who, await this.#standing(t, who));
  }

  /** Everybody as at the end of the case. */
  async standAsBefore(t: Test): Promise<void> {
    for (const [who, expected] of this.#last)
      t.equal(await this.#standing(t, who), expected, `${who} of ${this.#at}`);
  }

  get #group(): ChannelRef {
    return { id: `unread${this.#at}`, type: 2 };
  }

  #uid(name: string): string {
    return `${name}-${this.#at}`;
  }

  #place(other: string | undefined): ChannelRef {
    return other === undefined ? this.#group : { id: this.#uid(other), type: 1 };
  }

  async #move(move: Move): Promise<string | undefined> {
    const fixture = this.#fixture;
    const { store } = fixture;
    const info = group(this.#group.id);
    const reset = { membership: "permanent", reset: true } as const;
    switch (move.kind) {
      case "send":
        await this.#send(move);
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
        return this.#change(move.uid, move.with, move);
      case "unread":
      case "delete":
        return this.#change(move.uid, undefined, move);
      case "join": {
        const { membership, uid } = move;
        const how = { membership, reset: false };
        await store.addSubscribers(info, [this.#uid(uid)], how);
        return undefined;
      }
      case "leave":
        await store.removeSubscribers(...([info, [this.#uid(move.uid)], move.membership] as const));
        return undefined;
      case "reset":
        await store.addSubscribers(
          ...([info, move.uids.map((uid) => this.#uid(uid)), reset] as const),
        );
        return undefined;
      case "flags":
        await store.updateChannel(info, move.flags);
        return undefined;
      case "pass":
        fixture.nowMs += move.ms;
        return undefined;
      case "sweep":
        await store.sweep();
        return undefined;
      case "restart":
        await fixture.reopen();
        return undefined;
    }
  }

  /** All at once: the order of calls is that of seqs. */
  async #send(move: Extract<Move, { readonly kind: "send" }>): Promise<void> {
    const { count, from, to, redDot, noPersist, expireS } = move;
    const draft = draftOf({
      ...{ channel: this.#place(to), fromUid: this.#uid(from), expireS },
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
    return written(
      await store.changeConversation(...([this.#uid(name), this.#place(other), change] as const)),
    );
  }

  /** As the conversation says, and the user's list. */
  async #standing(t: Test, who: string): Promise<string> {
    const { store } = this.#fixture;
    const [name = "", other] = who.split(" with ");
    const uid = this.#uid(name);
    const channel = this.#place(other);
    const whole = await store.conversation(uid, channel);
    const head = (await store.conversationsOf(uid)).find((one) => one.channel.id === channel.id);
    const shown = whole?.last === undefined ? undefined : written(whole);
    t.equal(head && written(head), shown, `the list of ${who}`);
    return written(whole);
  }
}

type Change = Extract<Move, { readonly kind: "read" | "unread" | "delete" }>;

function isChange(move: Move): move is Change {
  return ["read", "unread", "delete"].includes(move.kind);
}

/** Who is changed by it, as the table names them. */
function moved(move: Extract<Move, { readonly uid: string }>): string {
  return "with" in move ? `${move.uid} with ${move.with}` : move.uid;
}

type Told = Parameters<typeof numbersOf>[0] & {
  readonly last: { readonly messageSeq: number } | undefined;
};

function written(found: Told | undefined): string {
  if (found === undefined) return "none";
  return [...numbersOf(found), found.last?.messageSeq ?? "-"].join(" ");
}
