// The contract of broker/ports.ts's Store, run by every driver. A driver hands in how to make one; each test gets its own, empty.

import type { Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import {
  type ChannelInfo,
  channelKey,
  type Message,
  type MessageHeader,
} from "../../src/broker/model.ts";
import type {
  ClusterEvent,
  MessageDraft,
  Publisher,
  Store,
} from "../../src/broker/ports.ts";

/** One empty place for data, and stores on it, one after the other. */
export interface StorePlace {
  /** A store that is not started. Two of one place are never open at once. */
  create(parts: StoreParts): Store;
}

export interface StoreParts {
  readonly publisher: Publisher;
  readonly clock: () => number;
}

export interface StoreDriver {
  readonly name: string;
  /** Registers its own teardown. */
  place(t: Test): Promise<StorePlace>;
  /** Whether the store takes the time from the clock it is given. */
  readonly supportsClock: boolean;
}

/** A running store and what it published. */
class Bench {
  readonly events: ClusterEvent[] = [];
  nowMs = Date.UTC(2026, 0, 1);
  store: Store;
  /** Called with each event, while the store publishes it. */
  onPublish: (event: ClusterEvent) => void = () => {};
  readonly #place: StorePlace;

  constructor(place: StorePlace) {
    this.#place = place;
    this.store = this.create();
  }

  create(): Store {
    return this.#place.create({
      publisher: {
        publish: (event) => {
          this.events.push(event);
          this.onPublish(event);
        },
      },
      clock: () => this.nowMs,
    });
  }

  async reopen(): Promise<void> {
    await this.store.close();
    this.store = this.create();
    await this.store.start();
  }

  get messages(): Message[] {
    return this.events.flatMap((e) =>
      e.kind === "message" ? [e.message] : [],
    );
  }
}

const NO_FLAGS = {
  ban: false,
  disband: false,
  sendBan: false,
  allowStranger: false,
  large: false,
};
const group = (id: string): ChannelInfo => ({ id, type: 2, ...NO_FLAGS });
const person = (id: string): ChannelInfo => ({ id, type: 1, ...NO_FLAGS });
const PERMANENT = { membership: "permanent", reset: false } as const;
const TEMPORARY = { membership: "temporary", reset: false } as const;
const ALL = {
  fromSeq: 1,
  toSeq: Number.MAX_SAFE_INTEGER,
  limit: 100_000,
  reverse: false,
  maxBytes: Number.MAX_SAFE_INTEGER,
};

/** A draft of a group message; `over` replaces parts of it. */
export function draftOf(over: Partial<MessageDraft> = {}): MessageDraft {
  const channel = over.channel ?? { id: "g", type: 2 };
  const fromUid = over.fromUid ?? "alice";
  const header: MessageHeader = { noPersist: false, redDot: true };
  return {
    key: channelKey(channel, fromUid),
    channel,
    fromUid,
    clientMsgNo: "server-made",
    dedupe: false,
    header,
    expireS: 0,
    streamNo: undefined,
    tagKey: undefined,
    payload: new TextEncoder().encode('{"type":1}'),
    origin: undefined,
    recipients: undefined,
    ...over,
  };
}

/** The code of the BrokerError that `promise` is rejected with; undefined when it is not. */
export async function codeOf(
  promise: Promise<unknown>,
): Promise<string | undefined> {
  try {
    await promise;
    return undefined;
  } catch (error) {
    return error instanceof BrokerError ? error.code : `not ours: ${error}`;
  }
}

const retryOf = (clientMsgNo: string) => draftOf({ clientMsgNo, dedupe: true });
const seqsOf = (messages: readonly Message[]) =>
  messages.map((m) => m.messageSeq);

export function storeContract(t: Test, driver: StoreDriver): void {
  const given = async (t: Test): Promise<Bench> => {
    const bench = new Bench(await driver.place(t));
    await bench.store.start();
    t.teardown(() => bench.store.close());
    return bench;
  };
  t.test(`${driver.name}: life cycle`, (t) => lifeCycle(t, driver));
  t.test(`${driver.name}: users`, (t) => users(t, given));
  t.test(`${driver.name}: channels`, (t) => channels(t, given));
  t.test(`${driver.name}: members`, (t) => members(t, given));
  t.test(`${driver.name}: facts`, (t) => facts(t, given));
  t.test(`${driver.name}: appending`, (t) => appending(t, given));
  t.test(`${driver.name}: retries`, (t) => retries(t, given));
  t.test(`${driver.name}: history`, (t) => history(t, given));
  t.test(`${driver.name}: managers`, (t) => managers(t, given));
  if (driver.supportsClock)
    t.test(`${driver.name}: time`, (t) => time(t, given));
}

type Given = (t: Test) => Promise<Bench>;

async function lifeCycle(t: Test, driver: StoreDriver): Promise<void> {
  const calls = (store: Store): Promise<unknown>[] => [
    store.append(draftOf()),
    store.readMessages("2:g", ALL),
    store.headSeq("2:g"),
    store.channel(group("g")),
    store.createChannel(group("g"), []),
    store.groupFacts("g", "alice"),
    store.device("alice", 0),
    store.accessTokenOwner(new Uint8Array(32)),
    store.ping(),
  ];

  t.test("before start every call is refused as unavailable", async (t) => {
    const { store } = new Bench(await driver.place(t));
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test("after close every call is refused as unavailable", async (t) => {
    const { store } = new Bench(await driver.place(t));
    await store.start();
    await store.ping();
    await store.close();
    for (const call of calls(store)) t.equal(await codeOf(call), "unavailable");
  });

  t.test(
    "closing finishes what is under way and takes nothing new",
    async (t) => {
      const bench = new Bench(await driver.place(t));
      const { store } = bench;
      await store.start();
      const sends = Array.from({ length: 50 }, () => store.append(draftOf()));
      const created = store.createChannel(group("late"), ["alice"]);
      const closed = store.close();
      t.equal(await codeOf(store.append(draftOf())), "unavailable");
      t.equal((await Promise.all(sends)).at(-1)?.messageSeq, 50);
      t.equal(await created, true);
      await closed;
      bench.store = bench.create();
      await bench.store.start();
      t.equal(await bench.store.headSeq("2:g"), 50);
      t.same(await bench.store.groupsOf("alice"), ["late"]);
      await bench.store.close();
    },
  );

  t.test(
    "close may be called twice, at once or later, and before start",
    async (t) => {
      const bench = new Bench(await driver.place(t));
      await bench.store.close();
      bench.store = bench.create();
      await bench.store.start();
      await bench.store.append(draftOf());
      await Promise.all([bench.store.close(), bench.store.close()]);
      await bench.store.close();
      bench.store = bench.create();
      await bench.store.start();
      t.equal(await bench.store.headSeq("2:g"), 1);
      await bench.store.close();
    },
  );
}

async function users(t: Test, given: Given): Promise<void> {
  const hash = (byte: number) => new Uint8Array(32).fill(byte);

  t.test(
    "a device is given back as stored, also after a restart",
    async (t) => {
      const bench = await given(t);
      const device = {
        uid: "alice",
        flag: 1,
        level: 1,
        tokenHash: hash(1),
      } as const;
      t.equal(await bench.store.device("alice", 1), undefined);
      t.equal(await bench.store.putDevice(device), undefined);
      t.same(await bench.store.device("alice", 1), device);
      t.equal(await bench.store.device("alice", 0), undefined);
      t.equal(await bench.store.device("alic", 1), undefined);
      await bench.reopen();
      t.same(await bench.store.device("alice", 1), device);
    },
  );

  t.test(
    "of replacements at once each returns the one before it",
    async (t) => {
      const { store } = await given(t);
      const olds = await Promise.all(
        Array.from({ length: 20 }, (_, i) =>
          store.putDevice({ uid: "a", flag: 0, level: 0, tokenHash: hash(i) }),
        ),
      );
      const last = await store.device("a", 0);
      const seen = [...olds, last].flatMap((d) => (d ? [d.tokenHash[0]] : []));
      t.equal(seen.length, 20);
      t.equal(new Set(seen).size, 20, "no replacement was lost");
    },
  );

  t.test("an empty token hash is kept as empty", async (t) => {
    const { store } = await given(t);
    const device = {
      uid: "a",
      flag: 2,
      level: 0,
      tokenHash: new Uint8Array(0),
    } as const;
    await store.putDevice(device);
    t.same(await store.device("a", 2), device);
  });
}

async function channels(t: Test, given: Given): Promise<void> {
  t.test("a channel is created once, with its flags and members", async (t) => {
    const bench = await given(t);
    const info = { ...group("g"), sendBan: true, large: true };
    t.equal(await bench.store.channel(info), undefined);
    t.equal(await bench.store.createChannel(info, ["a", "b", "a"]), true);
    t.equal(await bench.store.createChannel(group("g"), ["c"]), false);
    t.same(await bench.store.channel({ id: "g", type: 2 }), info);
    t.equal((await bench.store.groupFacts("g", "c")).isSubscriber, false);
    await bench.reopen();
    t.same(await bench.store.channel({ id: "g", type: 2 }), info);
    t.equal((await bench.store.groupFacts("g", "b")).isSubscriber, true);
  });

  t.test("types have separate ids", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("x"), []);
    t.equal(await store.channel({ id: "x", type: 1 }), undefined);
    t.equal(await store.createChannel(person("x"), []), true);
  });

  t.test("of creations at once exactly one wins, wholly", async (t) => {
    const { store } = await given(t);
    const won = await Promise.all(
      Array.from({ length: 10 }, (_, i) =>
        store.createChannel(group("g"), [`m${i}`]),
      ),
    );
    t.equal(won.filter(Boolean).length, 1);
    for (const [i, isWinner] of won.entries())
      t.equal((await store.groupFacts("g", `m${i}`)).isSubscriber, isWinner);
  });

  t.test("flags change and the others stay", async (t) => {
    const { store } = await given(t);
    t.equal(await store.updateChannel(group("g"), { ban: true }), undefined);
    await store.createChannel(group("g"), ["a"]);
    t.same(await store.updateChannel(group("g"), { ban: true }), {
      ...group("g"),
      ban: true,
    });
    t.same(await store.updateChannel(group("g"), { large: true }), {
      ...group("g"),
      ban: true,
      large: true,
    });
    t.equal((await store.groupFacts("g", "a")).info?.ban, true);
    t.equal((await store.groupFacts("g", "a")).isSubscriber, true);
  });

  t.test("disband is never unset and the id stays taken", async (t) => {
    const bench = await given(t);
    await bench.store.createChannel(group("g"), ["a"]);
    await bench.store.updateChannel(group("g"), { disband: true });
    const after = await bench.store.updateChannel(group("g"), {
      disband: false,
      ban: false,
    });
    t.equal(after?.disband, true);
    t.equal(await bench.store.createChannel(group("g"), []), false);
    await bench.reopen();
    t.equal((await bench.store.channel(group("g")))?.disband, true);
  });

  t.test("changes at once are all kept", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), []);
    await Promise.all([
      store.updateChannel(group("g"), { ban: true }),
      store.updateChannel(group("g"), { sendBan: true }),
      store.addSubscribers(group("g"), ["a"], PERMANENT),
      store.addSubscribers(group("g"), ["b"], PERMANENT),
    ]);
    const { info, isSubscriber } = await store.groupFacts("g", "b");
    t.same([info?.ban, info?.sendBan, isSubscriber], [true, true, true]);
    t.equal((await store.groupFacts("g", "a")).isSubscriber, true);
  });
}

async function members(t: Test, given: Given): Promise<void> {
  const isMember = async ({ store }: Bench, uid: string) =>
    (await store.groupFacts("g", uid)).isSubscriber;

  t.test(
    "adding tells who is new, and adding again changes nothing",
    async (t) => {
      const { store } = await given(t);
      t.equal(
        await store.addSubscribers(group("g"), ["a"], PERMANENT),
        undefined,
      );
      await store.createChannel(group("g"), ["a"]);
      const first = await store.addSubscribers(
        group("g"),
        ["a", "b", "b"],
        PERMANENT,
      );
      t.same(first, { added: ["b"], gone: [] });
      const again = await store.addSubscribers(
        group("g"),
        ["a", "b"],
        PERMANENT,
      );
      t.same(again, { added: [], gone: [] });
    },
  );

  t.test("a uid may hold both kinds; it is gone with the second", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a"]);
    const added = await store.addSubscribers(group("g"), ["a", "b"], TEMPORARY);
    t.same(added, { added: ["b"], gone: [] });
    t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
      kind: "removed",
      gone: [],
    });
    t.equal(await isMember(bench, "a"), true);
    t.same(await store.removeSubscribers(group("g"), ["a"], "temporary"), {
      kind: "removed",
      gone: ["a"],
    });
    t.equal(await isMember(bench, "a"), false);
    await bench.reopen();
    t.equal(await isMember(bench, "b"), true);
    t.equal(await isMember(bench, "a"), false);
  });

  t.test("removal takes all or none", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a", "b"]);
    await store.addSubscribers(group("g"), ["t"], TEMPORARY);
    const removal = await store.removeSubscribers(
      group("g"),
      ["a", "x", "t", "b"],
      "permanent",
    );
    t.equal(removal.kind, "not_members");
    t.same(removal.kind === "not_members" && removal.uids, ["x", "t"]);
    for (const uid of ["a", "b", "t"])
      t.equal(await isMember(bench, uid), true);
    const both = await store.removeSubscribers(
      group("g"),
      ["b", "a"],
      "permanent",
    );
    t.equal(both.kind, "removed");
    t.same(both.kind === "removed" && [...both.gone].sort(), ["a", "b"]);
    t.equal(await isMember(bench, "a"), false);
  });

  t.test("of removals of the same uid at once one succeeds", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), ["a"]);
    const kinds = await Promise.all(
      Array.from({ length: 5 }, () =>
        store.removeSubscribers(group("g"), ["a"], "permanent"),
      ),
    );
    t.equal(kinds.filter((r) => r.kind === "removed").length, 1);
  });

  t.test(
    "a channel that is not there or disbanded refuses changes",
    async (t) => {
      const { store } = await given(t);
      t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
        kind: "no_channel",
      });
      await store.createChannel(group("g"), ["a"]);
      await store.updateChannel(group("g"), { disband: true });
      t.same(await store.removeSubscribers(group("g"), ["a"], "permanent"), {
        kind: "disbanded",
      });
      t.equal(
        await store.addSubscribers(group("g"), ["b"], PERMANENT),
        undefined,
      );
    },
  );

  t.test("reset replaces one kind's list and leaves the other", async (t) => {
    const bench = await given(t);
    const { store } = bench;
    await store.createChannel(group("g"), ["a", "b", "c"]);
    await store.addSubscribers(group("g"), ["c", "d"], TEMPORARY);
    const change = await store.addSubscribers(group("g"), ["b", "e", "d"], {
      membership: "permanent",
      reset: true,
    });
    t.same(change, { added: ["e"], gone: ["a"] });
    const left = await Promise.all(
      ["a", "b", "c", "d", "e"].map((uid) => isMember(bench, uid)),
    );
    t.same(left, [false, true, true, true, true]);
    t.same(
      await store.addSubscribers(group("g"), [], {
        membership: "permanent",
        reset: true,
      }),
      { added: [], gone: ["b", "e"] },
    );
  });

  t.test("reset leaves channels with longer ids alone", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), ["a"]);
    await store.createChannel(group("g1"), ["a"]);
    await store.createChannel(group("\u{1F600}"), ["\u{1F600}", "a"]);
    await store.addSubscribers(group("g"), [], { ...PERMANENT, reset: true });
    await store.addSubscribers(group("\u{1F600}"), ["b"], {
      ...PERMANENT,
      reset: true,
    });
    t.equal((await store.groupFacts("g1", "a")).isSubscriber, true);
    t.same(await store.groupsOf("\u{1F600}"), []);
    t.same(await store.groupsOf("b"), ["\u{1F600}"]);
  });

  t.test("a list of 10000 is one step", async (t) => {
    const bench = await given(t);
    const uids = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
    await bench.store.createChannel(group("g"), uids);
    t.equal(await isMember(bench, "user-9999"), true);
    const removal = await bench.store.removeSubscribers(
      group("g"),
      uids,
      "permanent",
    );
    t.equal(removal.kind === "removed" && removal.gone.length, 10_000);
    t.equal(await isMember(bench, "user-0"), false);
  });
}

async function facts(t: Test, given: Given): Promise<void> {
  t.test(
    "a group that does not exist has no info and no subscribers",
    async (t) => {
      const { store } = await given(t);
      t.same(await store.groupFacts("g", "a"), {
        info: undefined,
        isSubscriber: false,
      });
    },
  );

  t.test("an acknowledged change is seen by the next call", async (t) => {
    const { store } = await given(t);
    await store.createChannel(group("g"), []);
    for (let i = 0; i < 50; i++) {
      await store.addSubscribers(group("g"), ["a"], PERMANENT);
      if (!(await store.groupFacts("g", "a")).isSubscriber) t.fail("not seen");
      await store.removeSubscribers(group("g"), ["a"], "permanent");
      if ((await store.groupFacts("g", "a")).isSubscriber) t.fail("still seen");
    }
    t.equal((await store.groupFacts("g", "a")).isSubscriber, false);
  });

  t.test("person facts tell both records and who is a contact", async (t) => {
    const { store } = await given(t);
    t.same(await store.personFacts("a", "b"), {
      receiver: undefined,
      receiverHasContacts: false,
      isContact: false,
      sender: undefined,
    });
    const b = { ...person("b"), allowStranger: true };
    const a = { ...person("a"), sendBan: true };
    await store.createChannel(b, []);
    await store.createChannel(a, []);
    t.same(await store.personFacts("a", "b"), {
      receiver: b,
      receiverHasContacts: false,
      isContact: false,
      sender: a,
    });
    await store.addSubscribers(b, ["c"], PERMANENT);
    t.match(await store.personFacts("a", "b"), {
      receiverHasContacts: true,
      isContact: false,
    });
    t.match(await store.personFacts("c", "b"), { isContact: true });
    await store.removeSubscribers(b, ["c"], "permanent");
    t.match(await store.personFacts("c", "b"), {
      receiverHasContacts: false,
      isContact: false,
    });
  });

  t.test(
    "groupsOf lists groups of either kind, but none disbanded",
    async (t) => {
      const bench = await given(t);
      const { store } = bench;
      for (const id of ["g1", "g2", "g3", "g4"])
        await store.createChannel(group(id), id === "g2" ? [] : ["a"]);
      await store.createChannel(person("p"), ["a"]);
      await store.addSubscribers(group("g2"), ["a"], TEMPORARY);
      await store.removeSubscribers(group("g3"), ["a"], "permanent");
      await store.updateChannel(group("g4"), { disband: true });
      await store.createChannel(group("other"), ["ab"]);
      t.same([...(await store.groupsOf("a"))].sort(), ["g1", "g2"]);
      t.same(await store.groupsOf("nobody"), []);
      await bench.reopen();
      t.same([...(await bench.store.groupsOf("a"))].sort(), ["g1", "g2"]);
    },
  );
}

async function appending(t: Test, given: Given): Promise<void> {
  t.test(
    "a message is stored, published and given back with all it has",
    async (t) => {
      const bench = await given(t);
      const draft = draftOf({
        channel: { id: "bob", type: 1 },
        fromUid: "älice",
        clientMsgNo: "nö-1",
        header: { noPersist: false, redDot: false },
        expireS: 3600,
        streamNo: "stream-1",
        tagKey: "tag",
        payload: Uint8Array.from({ length: 300 }, (_, i) => i & 0xff),
        origin: "session-1",
      });
      const appended = await bench.store.append(draft);
      const { messages } = await bench.store.readMessages(draft.key, ALL);
      t.equal(appended.messageSeq, 1);
      t.equal(appended.duplicate, false);
      t.equal(bench.events.length, 1);
      t.match(bench.events[0], { kind: "message", origin: "session-1" });
      for (const message of [bench.messages[0], messages[0]]) {
        t.equal(message?.messageId, appended.messageId);
        t.equal(message?.messageSeq, 1);
        t.equal(message?.key, draft.key);
        t.same(message?.channel, { id: "bob", type: 1 });
        t.equal(message?.fromUid, "älice");
        t.equal(message?.clientMsgNo, "nö-1");
        t.same(message?.header, draft.header);
        t.equal(message?.expireS, 3600);
        t.equal(message?.streamNo, "stream-1");
        t.equal(message?.tagKey, "tag");
        t.same([...(message?.payload ?? [])], [...draft.payload]);
      }
      await bench.reopen();
      const again = await bench.store.readMessages(draft.key, ALL);
      t.same(again.messages, messages, "the same after a restart");
    },
  );

  t.test(
    "seqs are per channel, from 1, in the order of the calls",
    async (t) => {
      const { store } = await given(t);
      const ids = ["g1", "g2", "g3"];
      const answers = await Promise.all(
        Array.from({ length: 300 }, (_, i) =>
          store.append(draftOf({ channel: { id: ids[i % 3] ?? "", type: 2 } })),
        ),
      );
      t.same(
        answers.map((a) => a.messageSeq),
        answers.map((_, i) => Math.floor(i / 3) + 1),
      );
    },
  );

  t.test(
    "events of a channel come in the order of seqs, each before its answer",
    async (t) => {
      const bench = await given(t);
      const published = new Set<number>();
      bench.onPublish = (e) =>
        e.kind === "message" && published.add(e.message.messageId);
      const sends = Array.from({ length: 200 }, async () => {
        const { messageId } = await bench.store.append(draftOf());
        return published.has(messageId);
      });
      t.same(new Set(await Promise.all(sends)), new Set([true]));
      t.same(
        seqsOf(bench.messages),
        sends.map((_, i) => i + 1),
      );
    },
  );

  t.test("no read shows a message that is not published", async (t) => {
    const bench = await given(t);
    const published = new Set<number>();
    bench.onPublish = (e) =>
      e.kind === "message" && published.add(e.message.messageSeq);
    let isDone = false;
    let early = 0;
    const reading = (async () => {
      while (!isDone) {
        const [head, slice] = await Promise.all([
          bench.store.headSeq("2:g"),
          bench.store.readMessages("2:g", { ...ALL, reverse: true, limit: 5 }),
        ]);
        for (const seq of [head, ...seqsOf(slice.messages)])
          if (seq > 0 && !published.has(seq)) early++;
        await new Promise(setImmediate);
      }
    })();
    for (let i = 0; i < 20; i++)
      await Promise.all(
        Array.from({ length: 10 }, () => bench.store.append(draftOf())),
      );
    isDone = true;
    await reading;
    t.equal(early, 0);
    t.equal(published.size, 200);
  });

  t.test(
    "message ids grow, also over a restart and with a clock that goes back",
    async (t) => {
      const bench = await given(t);
      const take = async (over?: Partial<MessageDraft>) =>
        (await bench.store.append(draftOf(over))).messageId;
      const unstored = { header: { noPersist: true, redDot: false } };
      const ids = [await take(), await take({ channel: { id: "h", type: 2 } })];
      bench.nowMs -= 3_600_000;
      ids.push(await take(), await take(unstored));
      await bench.reopen();
      bench.nowMs -= 3_600_000;
      ids.push(await take(unstored), await take(), await take(unstored));
      await bench.reopen();
      ids.push(await take());
      t.same(
        ids,
        [...new Set(ids)].sort((a, b) => a - b),
      );
      t.ok(ids.every((id) => Number.isSafeInteger(id)));
    },
  );

  t.test("seqs go on after a restart", async (t) => {
    const bench = await given(t);
    await bench.store.append(draftOf());
    await bench.store.append(draftOf());
    await bench.reopen();
    t.equal(await bench.store.headSeq("2:g"), 2);
    t.equal((await bench.store.append(draftOf())).messageSeq, 3);
  });

  t.test(
    "an unstored message is published in its turn and leaves nothing",
    async (t) => {
      const bench = await given(t);
      const header = { noPersist: true, redDot: false };
      const answers = await Promise.all([
        bench.store.append(draftOf()),
        bench.store.append(draftOf({ header, recipients: ["bob"] })),
        bench.store.append(draftOf()),
      ]);
      t.same(
        answers.map((a) => a.messageSeq),
        [1, 0, 2],
      );
      t.same(seqsOf(bench.messages), [1, 0, 2]);
      t.match(bench.events[1], { recipients: ["bob"] });
      const { messages } = await bench.store.readMessages("2:g", ALL);
      t.same(seqsOf(messages), [1, 2]);
      t.equal(await bench.store.headSeq("2:g"), 2);
    },
  );

  t.test("what a publisher throws harms nobody", async (t) => {
    const bench = await given(t);
    bench.onPublish = () => {
      throw new Error("a publisher's bug");
    };
    t.equal((await bench.store.append(draftOf())).messageSeq, 1);
    t.equal((await bench.store.append(draftOf())).messageSeq, 2);
    t.equal(bench.events.length, 2);
  });
}

async function retries(t: Test, given: Given): Promise<void> {
  t.test(
    "a retry gets the first answer and is neither stored nor published",
    async (t) => {
      const bench = await given(t);
      const first = await bench.store.append(retryOf("n1"));
      const second = await bench.store.append(retryOf("n1"));
      t.same(second, { ...first, duplicate: true });
      t.equal(bench.events.length, 1);
      t.equal(await bench.store.headSeq("2:g"), 1);
      await bench.reopen();
      t.same(await bench.store.append(retryOf("n1")), second);
      t.equal(bench.events.length, 1);
      t.equal((await bench.store.append(retryOf("n2"))).messageSeq, 2);
    },
  );

  t.test("retries at once make one message", async (t) => {
    const bench = await given(t);
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, i) =>
        bench.store.append(retryOf(`n${i % 4}`)),
      ),
    );
    t.equal(answers.filter((a) => !a.duplicate).length, 4);
    t.equal(new Set(answers.map((a) => a.messageId)).size, 4);
    t.same(seqsOf(bench.messages), [1, 2, 3, 4]);
  });

  t.test(
    "a retry is one only in the same channel and from the same sender",
    async (t) => {
      const { store } = await given(t);
      await store.append(retryOf("n"));
      const others = await Promise.all([
        store.append({ ...retryOf("n"), ...draftKey("h", "alice") }),
        store.append({ ...retryOf("n"), ...draftKey("g", "bob") }),
      ]);
      t.same(
        others.map((a) => a.duplicate),
        [false, false],
      );
    },
  );

  t.test("a clientMsgNo that the server made is not looked up", async (t) => {
    const { store } = await given(t);
    await store.append(draftOf({ clientMsgNo: "n" }));
    t.equal(
      (await store.append(draftOf({ clientMsgNo: "n" }))).duplicate,
      false,
    );
  });

  t.test("the retry of an unstored message is one too", async (t) => {
    const bench = await given(t);
    const header = { noPersist: true, redDot: false };
    const draft = { ...retryOf("n"), header };
    const first = await bench.store.append(draft);
    t.same(await bench.store.append(draft), { ...first, duplicate: true });
    await bench.reopen();
    t.same(await bench.store.append(draft), { ...first, duplicate: true });
    t.equal(bench.events.length, 1);
  });
}

function draftKey(id: string, fromUid: string) {
  const channel = { id, type: 2 } as const;
  return { key: channelKey(channel, fromUid), channel, fromUid };
}

async function history(t: Test, given: Given): Promise<void> {
  const read = async ({ store }: Bench, over: Partial<typeof ALL>) => {
    const slice = await store.readMessages("2:g", { ...ALL, ...over });
    return { seqs: seqsOf(slice.messages), more: slice.more };
  };

  t.test("an unknown channel is empty", async (t) => {
    const bench = await given(t);
    t.same(await read(bench, {}), { seqs: [], more: false });
    t.equal(await bench.store.headSeq("2:g"), 0);
  });

  t.test(
    "ranges, limits and direction, from new and from settled messages",
    async (t) => {
      const bench = await given(t);
      const send = () => bench.store.append(draftOf());
      for (let i = 0; i < 5; i++) await send();
      await bench.reopen();
      for (let i = 0; i < 5; i++) await send();
      const cases: [Partial<typeof ALL>, number[], boolean][] = [
        [{}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], false],
        [{ reverse: true }, [10, 9, 8, 7, 6, 5, 4, 3, 2, 1], false],
        [{ fromSeq: 4, toSeq: 7 }, [4, 5, 6, 7], false],
        [{ fromSeq: 4, toSeq: 7, reverse: true }, [7, 6, 5, 4], false],
        [{ limit: 3 }, [1, 2, 3], true],
        [{ limit: 3, reverse: true }, [10, 9, 8], true],
        [{ fromSeq: 3, toSeq: 8, limit: 4 }, [3, 4, 5, 6], true],
        [
          { fromSeq: 3, toSeq: 8, limit: 6, reverse: true },
          [8, 7, 6, 5, 4, 3],
          false,
        ],
        [{ fromSeq: 0, toSeq: 2 }, [1, 2], false],
        [{ fromSeq: 10 }, [10], false],
        [{ fromSeq: 11 }, [], false],
        [{ fromSeq: 7, toSeq: 6 }, [], false],
      ];
      for (const [over, seqs, more] of cases)
        t.same(await read(bench, over), { seqs, more }, JSON.stringify(over));
    },
  );

  t.test(
    "maxBytes ends a slice, but not before its first message",
    async (t) => {
      const bench = await given(t);
      const payload = new Uint8Array(100);
      for (let i = 0; i < 4; i++)
        await bench.store.append(draftOf({ payload }));
      t.same(await read(bench, { maxBytes: 250 }), {
        seqs: [1, 2],
        more: true,
      });
      t.same(await read(bench, { maxBytes: 1 }), { seqs: [1], more: true });
      t.same(await read(bench, { maxBytes: 1, reverse: true }), {
        seqs: [4],
        more: true,
      });
      t.same(await read(bench, { maxBytes: 400 }), {
        seqs: [1, 2, 3, 4],
        more: false,
      });
    },
  );

  t.test("both users of a conversation read the same messages", async (t) => {
    const { store } = await given(t);
    await store.append(
      draftOf({ channel: { id: "bob", type: 1 }, fromUid: "alice" }),
    );
    await store.append(
      draftOf({ channel: { id: "alice", type: 1 }, fromUid: "bob" }),
    );
    const { messages } = await store.readMessages("1:alice@bob", ALL);
    t.same(
      messages.map((m) => m.fromUid),
      ["alice", "bob"],
    );
    t.same(
      messages.map((m) => m.channel.id),
      ["bob", "alice"],
    );
  });
}

async function managers(t: Test, given: Given): Promise<void> {
  t.test("a password is stored once", async (t) => {
    const bench = await given(t);
    const put = (hash: string) =>
      bench.store.putPasswordOnce("admin", { passwordHash: hash });
    const answers = await Promise.all([put("h1"), put("h2"), put("h3")]);
    t.equal(new Set(answers.map((a) => a.passwordHash)).size, 1);
    await bench.reopen();
    t.same(await put("h4"), answers[0]);
  });

  t.test("an access token has its owner until it is removed", async (t) => {
    const bench = await given(t);
    const hash = new Uint8Array(32).fill(7);
    const later = bench.nowMs + 86_400_000 * 365 * 50;
    t.equal(await bench.store.accessTokenOwner(hash), undefined);
    await bench.store.putAccessToken(hash, "admin", later);
    t.equal(await bench.store.accessTokenOwner(hash), "admin");
    await bench.reopen();
    t.equal(await bench.store.accessTokenOwner(hash), "admin");
    await bench.store.removeAccessToken(hash);
    await bench.store.removeAccessToken(hash);
    t.equal(await bench.store.accessTokenOwner(hash), undefined);
  });
}

async function time(t: Test, given: Given): Promise<void> {
  t.test(
    "a message is shown until it expires, wherever it is kept",
    async (t) => {
      const bench = await given(t);
      await bench.store.append(draftOf({ expireS: 10 }));
      await bench.store.append(draftOf());
      const shown = async () =>
        seqsOf((await bench.store.readMessages("2:g", ALL)).messages);
      bench.nowMs += 9_999;
      t.same(await shown(), [1, 2]);
      bench.nowMs += 1;
      t.same(await shown(), [2]);
      bench.nowMs -= 1;
      await bench.reopen();
      t.same(await shown(), [1, 2]);
      bench.nowMs += 1;
      t.same(await shown(), [2]);
      t.equal(await bench.store.headSeq("2:g"), 2);
    },
  );

  t.test("an access token ends by itself", async (t) => {
    const bench = await given(t);
    const hash = new Uint8Array(32).fill(7);
    await bench.store.putAccessToken(hash, "admin", bench.nowMs + 1000);
    bench.nowMs += 999;
    t.equal(await bench.store.accessTokenOwner(hash), "admin");
    bench.nowMs += 1;
    t.equal(await bench.store.accessTokenOwner(hash), undefined);
  });
}
