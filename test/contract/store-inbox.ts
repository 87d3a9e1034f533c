// Store contract: commands and their inboxes.

import type { Test } from "tap";
import { clientMsgNoOf } from "../../src/broker/model.ts";
import {
  ALL,
  codeOf,
  draftOf,
  earlierResult,
  type FixtureFactory,
  group as groupInfo,
  REUSED,
} from "./store-fixture.ts";
import {
  commandEventsOf,
  commandOf,
  commandRetryOf,
  inboxSeqsOf,
  mergedCommandEvents,
  readInbox,
} from "./store-inbox-fixture.ts";

export { commandOf, LISTENED_USERS } from "./store-inbox-fixture.ts";

/** Maximum number of commands in an inbox. All drivers of the suites use this value. */
const MAX_INBOX = 1000;
/** Maximum number of copies of one user in the inbox of another user. */
export const SHARE = MAX_INBOX / 10;

export async function inbox(t: Test, createFixture: FixtureFactory): Promise<void> {
  storing(t, createFixture);
  order(t, createFixture);
  commandRetries(t, createFixture);
  acknowledgements(t, createFixture);
}

function storing(t: Test, createFixture: FixtureFactory): void {
  t.test("userStates returns the groups and the newest inboxSeq of many users", async (t) => {
    const fixture = await createFixture(t);
    const { store } = fixture;
    for (const id of ["g1", "g2"]) await store.createChannel(groupInfo(id), ["bob"]);
    for (const recipients of [["bob"], ["bob", "carol"]])
      await store.appendCommand(commandOf({ recipients }));
    const uids = Array.from({ length: 120 }, (_, at) => `nobody-${at}`);
    uids.splice(60, 0, "bob", "carol");
    const states = async () =>
      (await store.userStates(uids)).map(
        ({ groups, inboxSeq }) => `${[...groups].sort()} ${inboxSeq}`,
      );
    const expected = uids.map(() => " 0");
    expected.splice(60, 2, "g1,g2 2", " 1");
    t.same(await states(), expected);
    await store.acknowledgeCommands("bob", [1, 2]);
    await store.removeSubscribers(groupInfo("g1"), ["bob"], "permanent");
    await store.groupsOf("bob");
    expected.splice(60, 1, "g2 0");
    const actual = (await states()).map((state) => state.replace("g1,", "")); // a group that the user left may be listed for a while
    t.same(actual, expected, "the states change with the user's groups and inbox");
  });

  t.test(
    "a command is published and stored with all its fields, with one copy for each recipient",
    async (t) => {
      const fixture = await createFixture(t);
      const draft = commandOf({
        channel: { id: "bob", type: 1 },
        fromUid: "älice",
        clientMsgNo: "nö-1",
        header: { noPersist: false, redDot: true },
        expireS: 3600,
        tagKey: "tag",
        passthrough: { setting: 0x80, topic: "töpic" },
        payload: Uint8Array.from({ length: 300 }, (_, i) => i & 0xff),
        recipients: ["bob", "cärol", "\u{1F600}"],
        pushOnlyRecipients: ["älice"],
        origin: "session-1",
      });
      await fixture.store.appendCommand(commandOf());
      const result = await fixture.store.appendCommand(draft);
      t.equal(result.messageSeq, 0);
      t.equal(result.duplicate, false);
      const event = mergedCommandEvents(fixture)[1];
      t.equal(event?.origin, "session-1");
      const copies = event?.copies ?? [];
      t.equal(copies.length, 4);
      t.same(Object.fromEntries(copies.map((copy) => [copy.uid, copy.inboxSeq])), {
        ...{ bob: 2, cärol: 1, "\u{1F600}": 1, älice: 0 },
      });
      const [, bobsCopy] = await readInbox(fixture, "bob");
      const [carolsCopy] = await readInbox(fixture, "cärol");
      t.equal(bobsCopy?.message.messageSeq, 2);
      t.equal(carolsCopy?.message.messageSeq, 1);
      for (const message of [event?.message, bobsCopy?.message, carolsCopy?.message]) {
        t.equal(message?.messageId, result.messageId);
        t.equal(message?.key, draft.key);
        t.same(message?.channel, draft.channel);
        t.equal(message?.fromUid, "älice");
        t.equal(message?.clientMsgNo, "nö-1");
        t.same(message?.passthrough, draft.passthrough);
        t.equal(message?.timestampMs, fixture.nowMs);
        t.same(message?.header, draft.header);
        t.equal(message?.expireS, 3600);
        t.equal(message?.streamNo, undefined);
        t.equal(message?.tagKey, "tag");
        t.equal(message?.stream, undefined);
        t.same([...(message?.payload ?? [])], [...draft.payload]);
      }
      t.same(
        await readInbox(fixture, "älice"),
        [],
        "a push-only recipient has no copy in the inbox",
      );
      const before = await readInbox(fixture, "bob");
      await fixture.reopen();
      t.same(await readInbox(fixture, "bob"), before, "the inbox is the same after a restart");
    },
  );

  t.test("a command is not part of the history and uses no seq of its channel", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf());
    t.equal((await fixture.store.append(draftOf())).messageSeq, 1);
    await fixture.store.appendCommand(commandOf());
    t.equal(await fixture.store.headSeq("2:g"), 1);
    t.equal((await fixture.store.readMessages("2:g", ALL)).messages.length, 1);
  });

  t.test("a command that has only push-only recipients is published and not stored", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf({ recipients: [], pushOnlyRecipients: ["alice"] }));
    t.same(mergedCommandEvents(fixture)[0]?.copies, [{ uid: "alice", inboxSeq: 0 }]);
    t.same(await readInbox(fixture, "alice"), []);
  });

  t.test(
    "the copies after an inboxSeq are read from an inbox, oldest first, up to `limit` and `maxBytes`",
    async (t) => {
      const fixture = await createFixture(t);
      for (let i = 0; i < 5; i++)
        await fixture.store.appendCommand(
          commandOf({ recipients: i % 2 === 0 ? ["bob", "bo"] : ["bob"] }),
        );
      t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1, 2, 3, 4, 5]);
      t.same(inboxSeqsOf(await readInbox(fixture, "bob", 2)), [3, 4, 5]);
      t.same(inboxSeqsOf(await readInbox(fixture, "bob", 1, { limit: 2 })), [2, 3]);
      const readUpTo = async (maxBytes: number) =>
        inboxSeqsOf(await readInbox(fixture, "bob", 1, { maxBytes }));
      const { length } = commandOf().payload;
      t.same(await readUpTo(2 * length), [2, 3]);
      t.same(await readUpTo(2 * length - 1), [2]);
      t.same(await readUpTo(1), [2], "at least one copy is returned");
      t.same(inboxSeqsOf(await readInbox(fixture, "bob", 5)), []);
      t.same(
        inboxSeqsOf(await readInbox(fixture, "bo")),
        [1, 2, 3],
        "every inbox has its own seqs",
      );
      t.same(await readInbox(fixture, "b"), []);
      t.same(await readInbox(fixture, "bob", 0, { limit: 0 }), []);
      t.same(await readInbox(fixture, "bob", Number.MAX_SAFE_INTEGER), []);
    },
  );

  t.test(
    "an inbox with more than its maximum number of copies loses its oldest copies",
    async (t) => {
      const { store } = await createFixture(t);
      const calls = Array.from({ length: MAX_INBOX + 5 }, () =>
        store.appendCommand(commandOf({ recipients: ["zoe"] })),
      );
      await Promise.all(calls);
      const kept = inboxSeqsOf(await store.readInbox("zoe", 0, ALL));
      t.equal(kept.length, MAX_INBOX);
      t.same([kept[0], kept.at(-1)], [6, MAX_INBOX + 5]);
      t.equal(await store.acknowledgeCommands("zoe", [5, 6]), 1);
    },
  );

  t.test(
    "the commands of one user fill at most a tenth of another user's inbox, and further commands to that user are refused as overloaded",
    async (t) => {
      const fixture = await createFixture(t);

      const send = (fromUid: string, origin: string | undefined, over = {}) =>
        codeOf(
          fixture.store.appendCommand(commandOf({ fromUid, origin, recipients: ["zoe"], ...over })),
        );
      for (let i = 0; i < 3; i++) await send("backend", undefined);
      for (let i = 0; i < SHARE; i++) t.equal(await send("eve", "s1"), undefined);
      t.equal(await send("eve", "s1", { clientMsgNo: "late" }), "overloaded");
      t.equal(
        await send("eve", "s2"),
        "overloaded",
        "the share is counted over all sessions of the sender",
      );
      const before = await readInbox(fixture, "zoe");
      t.equal(before.length, SHARE + 3);
      t.equal(await send("carl", "s3"), undefined, "another user's command is stored");
      t.equal(await send("eve", undefined), undefined, "a backend's command is stored");
      t.equal(
        await send("eve", "s1", { recipients: ["bob"] }),
        undefined,
        "the sender can still send commands to other users",
      );
      await fixture.reopen();
      t.equal(await send("eve", "s1"), "overloaded", "the share still applies after a restart");
      t.equal(await fixture.store.acknowledgeCommands("zoe", [4]), 1);
      t.equal(await send("eve", "s1", { clientMsgNo: "late" }), undefined);
      t.equal(await send("eve", "s1"), "overloaded");
      t.equal(await send("eve", "s1", { clientMsgNo: "late" }), undefined, "a retry is accepted");
      const own = { recipients: ["eve"], channel: { id: "eve", type: 1 } } as const;
      for (let i = 0; i <= SHARE; i++) t.equal(await send("eve", "s1", own), undefined);
      t.equal(
        (await readInbox(fixture, "eve")).length,
        SHARE + 1,
        "a user's own inbox has no share limit",
      );
    },
  );

  t.test(
    "a command to several users replaces the sender's oldest copy in each inbox in which the sender's share is full",
    async (t) => {
      const fixture = await createFixture(t);
      const send = (fromUid: string, recipients: readonly string[], clientMsgNo = "") =>
        fixture.store.appendCommand(commandOf({ fromUid, recipients, clientMsgNo, origin: "s1" }));
      await send("carl", ["zoe"]);
      for (let i = 0; i < SHARE + 5; i++) await send("eve", ["zoe", "bob"], `c-${i}`);
      const zoes = await readInbox(fixture, "zoe");
      t.equal(zoes.length, SHARE + 1);
      t.equal(zoes[0]?.message.fromUid, "carl", "no other sender loses a copy");
      t.equal(zoes[1]?.message.clientMsgNo, "c-5");
      t.equal(zoes.at(-1)?.message.clientMsgNo, `c-${SHARE + 4}`);
    },
  );

  t.test(
    "a user's command to a full inbox displaces a copy of the user with the most copies, not a backend's copy",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const send = (fromUid: string, origin?: string) =>
        store.appendCommand(commandOf({ fromUid, origin, recipients: ["zoe"] }));
      const many = (count: number, fromUid: string, origin?: string) =>
        Promise.all(Array.from({ length: count }, () => send(fromUid, origin)));
      const countsOf = async () => {
        const counts: Record<string, number> = {};
        for (const { message } of await readInbox(fixture, "zoe"))
          counts[message.fromUid] = (counts[message.fromUid] ?? 0) + 1;
        return counts;
      };
      await many(1, "carl", "s1");
      await many(SHARE, "eve", "s2");
      await many(SHARE - 1, "mallory", "s3");
      await many(MAX_INBOX - 2 * SHARE, "backend");
      const first = { carl: 1, eve: SHARE, mallory: SHARE - 1, backend: MAX_INBOX - 2 * SHARE };
      t.same(await countsOf(), first);
      await send("dora", "s4");
      t.same(
        await countsOf(),
        { ...first, eve: SHARE - 1, dora: 1 },
        "a user's command does not displace a backend's command",
      );
      await many(10, "backend");
      const { messageId } = await send("backend");
      t.same(await countsOf(), { ...first, eve: SHARE - 1, dora: 1 - 0, backend: first.backend });
      const inbox = await readInbox(fixture, "zoe");
      t.equal(inbox.at(-1)?.message.messageId, messageId);
      const users = inbox.filter(({ message }) => message.fromUid !== "backend");
      t.equal(await store.acknowledgeCommands("zoe", inboxSeqsOf(users)), users.length);
      await many(users.length, "backend");
      t.equal(await codeOf(send("carl", "s1")), "overloaded", "no copy of a backend is dropped");
      t.same(await countsOf(), { backend: MAX_INBOX });
      const both = commandOf({ fromUid: "carl", origin: "s1", recipients: ["zoe", "bob"] });
      await store.appendCommand(both);
      t.same(await countsOf(), { backend: MAX_INBOX });
      t.equal((await readInbox(fixture, "bob")).length, 1, "other recipients receive their copy");
    },
  );

  t.test(
    "an expired command does not count towards its sender's share or the inbox's maximum number of copies, even before a sweep",
    async (t) => {
      const fixture = await createFixture(t);
      const { store } = fixture;
      const send = (fromUid: string, origin: string | undefined, over = {}) =>
        codeOf(store.appendCommand(commandOf({ fromUid, origin, recipients: ["zoe"], ...over })));
      await send("carl", "s1");
      for (let i = 0; i < SHARE; i++) await send("eve", "s2", { expireS: i < 2 ? 10 : 20 });
      t.equal(await send("eve", "s2"), "overloaded", "nothing has expired");
      fixture.nowMs += 10_000;
      const late = { clientMsgNo: "late", expireS: 100 };
      t.equal(await send("eve", "s2", late), undefined, "two copies have expired");
      t.equal(await send("eve", "s2", { recipients: ["zoe", "bob"] }), undefined);
      t.equal(await send("eve", "s2"), "overloaded", "the share is full again");
      t.equal((await readInbox(fixture, "zoe")).length, SHARE + 1);

      await Promise.all(Array.from({ length: MAX_INBOX - SHARE - 1 }, () => send("b", undefined)));
      fixture.nowMs += 10_000;
      for (let i = 0; i < SHARE - 2; i++) await send("b", undefined);
      const kept = await readInbox(fixture, "zoe");
      t.equal(kept.length, MAX_INBOX);
      t.equal(kept[0]?.message.fromUid, "carl", "the oldest command is still valid");
      t.ok(kept.some(({ message }) => message.clientMsgNo === "late"));
      await send("b", undefined);
      t.equal((await readInbox(fixture, "zoe")).length, MAX_INBOX);
    },
  );

  t.test("message ids increase across commands, messages and restarts", async (t) => {
    const fixture = await createFixture(t);
    const ids: number[] = [];
    for (let i = 0; i < 4; i++) {
      ids.push((await fixture.store.appendCommand(commandOf())).messageId);
      ids.push((await fixture.store.append(draftOf())).messageId);
      ids.push((await fixture.store.appendCommand(commandOf())).messageId);
      fixture.nowMs -= 60_000;
      await fixture.reopen();
    }
    t.same(
      ids,
      ids.toSorted((a, b) => a - b),
    );
    t.equal(new Set(ids).size, ids.length, "every id is unique");
  });

  t.test(
    "a command with an invalid or oversized field is rejected and does not affect other commands",
    async (t) => {
      const fixture = await createFixture(t);
      const long = "x".repeat(100_000);
      const others = fixture.store.appendCommand(commandOf());
      for (const over of [
        { clientMsgNo: long },
        { fromUid: long },
        { channel: { id: long, type: 2 } },
        { tagKey: long },
        { recipients: ["bob", long] },
      ] as const)
        t.equal(await codeOf(fixture.store.appendCommand(commandOf(over))), "too_large");
      for (const expireS of [-1, 0.5, 2 ** 40])
        t.equal(await codeOf(fixture.store.appendCommand(commandOf({ expireS }))), "bad_request");
      await others;
      t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1]);
    },
  );
}

function order(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "each user's commands are published in call order, before the calls return and before the commands can be read",
    async (t) => {
      const fixture = await createFixture(t);
      const publishedUids = new Map<number, string[]>();
      fixture.onPublish = (event) => {
        if (event.kind !== "command") return;
        const uids = publishedUids.get(event.message.messageId) ?? [];
        const newUids = event.copies.map(({ uid }) => uid);
        publishedUids.set(event.message.messageId, [...uids, ...newUids]);
      };
      let isDone = false;
      let early = 0;
      const reading = (async () => {
        while (!isDone) {
          for (const { message } of await readInbox(fixture, "bob"))
            if (!publishedUids.get(message.messageId)?.includes("bob")) early++;
          await new Promise(setImmediate);
        }
      })();
      for (let round = 0; round < 10; round++) {
        const calls = Array.from({ length: 20 }, async (_, i) => {
          const clientMsgNo = `${round}-${i}`;
          const result = await fixture.store.appendCommand(
            commandOf({ clientMsgNo, recipients: ["bob", `u${i % 3}`] }),
          );
          return publishedUids.get(result.messageId)?.length;
        });
        t.same(
          new Set(await Promise.all(calls)),
          new Set([2]),
          "both recipients are published before the call returns",
        );
      }
      isDone = true;
      await reading;
      t.equal(early, 0, "no read returns a command before it is published");
      const indexes = Array.from({ length: 200 }, (_, i) => i);
      for (const uid of ["bob", "u0", "u1", "u2"]) {
        const actual = commandEventsOf(fixture).flatMap(({ message, copies }) =>
          copies.flatMap((copy) =>
            copy.uid === uid ? [[copy.inboxSeq, message.clientMsgNo]] : [],
          ),
        );
        const expected = indexes
          .filter((i) => uid === "bob" || uid === `u${(i % 20) % 3}`)
          .map((i, at) => [at + 1, `${Math.floor(i / 20)}-${i % 20}`]);
        t.same(actual, expected, uid);
      }
    },
  );

  t.test(
    "commands of a channel are published in the order of the calls, even if some have many recipients and commands of other channels are waiting",
    async (t) => {
      const fixture = await createFixture(t);
      const crowd = Array.from({ length: 299 }, (_, i) => `user-${i}`);
      const send = (id: string, recipients: readonly string[]) =>
        fixture.store.appendCommand(commandOf({ channel: { id, type: 2 }, recipients }));
      const others = Array.from({ length: 20 }, (_, i) => send(`o${i}`, crowd));
      const calls = [
        ...[send("a", [...crowd, "bob"]), send("a", ["bob"])],
        ...[send("a", [...crowd, "bob"]), send("a", ["bob"])],
      ];
      const ids = (await Promise.all(calls)).map((result) => result.messageId);
      await Promise.all(others);
      t.same(
        (await readInbox(fixture, "bob")).map(({ message }) => message.messageId),
        ids,
      );
      const publishedIds = commandEventsOf(fixture).flatMap(({ message, copies }) =>
        copies.flatMap(({ uid }) => (uid === "bob" ? [message.messageId] : [])),
      );
      t.same(publishedIds, ids);
    },
  );

  t.test("a command may have 10,000 recipients", async (t) => {
    const fixture = await createFixture(t);
    const recipients = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
    const { messageId } = await fixture.store.appendCommand(commandOf({ recipients }));
    const sample = ["user-0", "user-5000", "user-9999"];
    const uids = mergedCommandEvents(fixture)[0]?.copies.map((copy) => copy.uid) ?? [];
    t.same(
      sample.filter((uid) => uids.includes(uid)),
      sample,
    );
    t.equal(new Set(uids).size, uids.length);
    await fixture.reopen();
    for (const uid of sample)
      t.same(
        (await readInbox(fixture, uid)).map((command) => command.message.messageId),
        [messageId],
      );
  });
}

function commandRetries(t: Test, createFixture: FixtureFactory): void {
  const { payload } = commandOf();

  t.test("a command that reuses a clientMsgNo with a different payload is refused", async (t) => {
    const fixture = await createFixture(t);
    const other = { payload: new TextEncoder().encode('{"type":99,"cmd":"other"}') };
    const first = await fixture.store.appendCommand(commandRetryOf("c"));
    const message = await fixture.store.append(draftOf({ clientMsgNo: "m", payload }));
    await fixture.untilEvents(2);
    const assertRefused = async () => {
      const { store } = fixture;
      for (const clientMsgNo of ["c", "m"]) {
        t.same(await store.appendCommand(commandRetryOf(clientMsgNo, other)), REUSED);
        t.same(await store.append(draftOf({ clientMsgNo, ...other })), REUSED);
      }
      t.same(await store.appendCommand(commandRetryOf("c")), { ...first, duplicate: true });
      t.same(await store.appendCommand(commandRetryOf("m")), { ...message, duplicate: true });
    };
    await assertRefused();
    await fixture.reopen();
    await assertRefused();
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1]);
    t.equal(fixture.events.length, 2);
    const reuse = { ...other, allowsReuse: true };
    const second = await fixture.store.appendCommand(commandRetryOf("c", reuse));
    t.equal(second.duplicate, false);
    t.same(await fixture.store.appendCommand(commandRetryOf("c", reuse)), {
      ...{ ...second, duplicate: true },
    });
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1, 2]);
  });

  t.test(
    "only one of several concurrent messages and commands with the same clientMsgNo but different payloads is stored",
    async (t) => {
      const fixture = await createFixture(t);
      for (const kinds of ["cccc", "cmcm", "mcmc"]) {
        const before = fixture.events.length;
        const results = await Promise.all(
          [...kinds].map((kind, i) => {
            const payload = new TextEncoder().encode(`{"type":99,"cmd":"${i}"}`);
            const draft = { clientMsgNo: kinds, payload };
            return kind === "c"
              ? fixture.store.appendCommand(commandOf(draft))
              : fixture.store.append(draftOf(draft));
          }),
        );
        const refusals = results.filter(({ refused }) => refused === "client_msg_no_reused");
        t.equal(refusals.length, 3, kinds);
        await fixture.untilEvents(before + 1);
        t.equal(fixture.events.length, before + 1, `one event is published (${kinds})`);
      }
    },
  );

  t.test(
    "a retry of a command returns the result of the first call, even after a restart",
    async (t) => {
      const fixture = await createFixture(t);
      const first = await fixture.store.appendCommand(commandRetryOf("c-1"));
      const retryResult = { ...first, duplicate: true };
      t.same(await fixture.store.appendCommand(commandRetryOf("c-1")), retryResult);
      t.same(await earlierResult(fixture.store, commandRetryOf("c-1")), retryResult);
      t.same(await fixture.store.append(draftOf({ clientMsgNo: "c-1", payload })), retryResult);
      await fixture.reopen();
      t.same(await fixture.store.append(draftOf({ clientMsgNo: "c-1", payload })), retryResult);
      t.same(await fixture.store.appendCommand(commandRetryOf("c-1")), retryResult);
      t.same(await earlierResult(fixture.store, commandRetryOf("c-1")), retryResult);
      t.equal(fixture.events.length, 1);
      t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1]);
      t.equal(await fixture.store.headSeq("2:g"), 0);
    },
  );

  t.test("a command with a different sender, channel or clientMsgNo is not a retry", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandRetryOf("c-1"));
    for (const draft of [
      commandRetryOf("c-2"),
      commandRetryOf("c-1", { fromUid: "alic" }),
      commandRetryOf("c-1", { channel: { id: "h", type: 2 } }),
      commandRetryOf("c-1", { channel: { id: "g", type: 1 } }),
      commandRetryOf("c-1", { channel: { id: "alice", type: 1 }, fromUid: "g" }),
    ]) {
      t.equal(await earlierResult(fixture.store, draft), undefined);
      t.equal((await fixture.store.appendCommand(draft)).duplicate, false);
    }
  });

  t.test(
    "a command without a clientMsgNo is assigned a clientMsgNo from its id, and is not a retry",
    async (t) => {
      const fixture = await createFixture(t);
      const first = await fixture.store.appendCommand(commandOf());
      const second = await fixture.store.appendCommand(commandOf());
      t.same([first.duplicate, second.duplicate], [false, false]);
      const clientMsgNos = [first, second].map((result) => clientMsgNoOf(result.messageId));
      const readClientMsgNos = async () =>
        (await readInbox(fixture, "bob")).map((command) => command.message.clientMsgNo);
      await fixture.untilEvents(2);
      t.same(
        mergedCommandEvents(fixture).map((event) => event.message.clientMsgNo),
        clientMsgNos,
      );
      t.same(await readClientMsgNos(), clientMsgNos);
      await fixture.reopen();
      t.same(
        await readClientMsgNos(),
        clientMsgNos,
        "the clientMsgNos are the same after a restart",
      );
    },
  );

  t.test(
    "a command that repeats the clientMsgNo and the payload of a message is a duplicate of that message",
    async (t) => {
      const fixture = await createFixture(t);
      const first = await fixture.store.append(draftOf({ clientMsgNo: "m", payload }));
      const retryResult = { ...first, duplicate: true };
      await fixture.untilEvents(1);
      t.same(await fixture.store.appendCommand(commandRetryOf("m")), retryResult);
      await fixture.reopen();
      t.same(await fixture.store.appendCommand(commandRetryOf("m")), retryResult);
      t.same(await readInbox(fixture, "bob"), []);
      t.equal(fixture.events.length, 1);
    },
  );

  t.test(
    "only one of several concurrent messages and commands with the same clientMsgNo and payload is stored, and all calls return its id",
    async (t) => {
      const fixture = await createFixture(t);
      for (const kinds of ["cccc", "cmcm", "mcmc", "mmcc", "ccmm"]) {
        const before = fixture.events.length;
        const early: boolean[] = [];
        const calls = [...kinds].map(async (kind) => {
          const result = await (kind === "c"
            ? fixture.store.appendCommand(commandRetryOf(kinds))
            : fixture.store.append(draftOf({ clientMsgNo: kinds, payload })));
          if (kind === "c") early.push(fixture.events.length === before);
          return result;
        });
        const results = await Promise.all(calls);
        t.equal(
          new Set(results.map((result) => result.messageId)).size,
          1,
          `all calls return the same id (${kinds})`,
        );
        t.equal(
          results.filter((result) => !result.duplicate).length,
          1,
          `exactly one call is not a duplicate (${kinds})`,
        );
        await fixture.untilEvents(before + 1);
        t.equal(fixture.events.length, before + 1, `one event is published (${kinds})`);
        t.notOk(early.includes(true), `calls for commands return after the publication (${kinds})`);
      }
    },
  );
}

function acknowledgements(t: Test, createFixture: FixtureFactory): void {
  t.test("acknowledgeCommands removes copies from one inbox and returns their count", async (t) => {
    const fixture = await createFixture(t);
    for (let i = 0; i < 4; i++)
      await fixture.store.appendCommand(commandOf({ recipients: ["bob", "carol"] }));
    const ack = (uid: string, seqs: number[]) => fixture.store.acknowledgeCommands(uid, seqs);
    t.equal(await ack("bob", [2, 3, 2]), 2);
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1, 4]);
    t.equal(await ack("bob", [2]), 0);
    t.same(inboxSeqsOf(await readInbox(fixture, "carol")), [1, 2, 3, 4]);
    await fixture.reopen();
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1, 4]);
    t.equal(await ack("bob", [1, 4]), 2);
    t.same(await readInbox(fixture, "bob"), []);
    await fixture.store.appendCommand(commandOf());
    t.same(
      inboxSeqsOf(await readInbox(fixture, "bob")),
      [5],
      "the seqs continue after the acknowledged ones",
    );
  });

  t.test("acknowledging an unknown inboxSeq has no effect", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf());
    const unknownSeqs = [0, -1, 2, 1.5, Number.NaN, 2 ** 60, Number.POSITIVE_INFINITY];
    t.equal(await fixture.store.acknowledgeCommands("bob", unknownSeqs), 0);
    t.equal(await fixture.store.acknowledgeCommands("bob", []), 0);
    t.equal(await fixture.store.acknowledgeCommands("nobody", [1]), 0);
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1]);
  });

  t.test(
    "if several concurrent calls acknowledge the same copy, only one of the calls counts the copy",
    async (t) => {
      const fixture = await createFixture(t);
      await fixture.store.appendCommand(commandOf());
      const counts = await Promise.all(
        Array.from({ length: 5 }, () => fixture.store.acknowledgeCommands("bob", [1])),
      );
      t.equal(
        counts.reduce((sum, count) => sum + count),
        1,
      );
    },
  );
}

/** Tests of expiry, for drivers whose stores read the time from the fixture's clock. */
export async function inboxTime(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("an expired command is not read, and acknowledgeCommands does not count it", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf({ expireS: 10 }));
    await fixture.store.appendCommand(commandOf());
    fixture.nowMs += 9999;
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [1, 2]);
    fixture.nowMs += 1;
    t.same(inboxSeqsOf(await readInbox(fixture, "bob")), [2]);
    t.equal(await fixture.store.acknowledgeCommands("bob", [1, 2]), 1);
  });
}
