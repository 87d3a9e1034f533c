// The Store contract: commands and their inboxes.

import type { Test } from "tap";
import { clientMsgNoOf } from "../../src/broker/model.ts";
import {
  ALL,
  codeOf,
  draftOf,
  earlierResult,
  type FixtureFactory,
  group as groupInfo,
} from "./store-fixture.ts";
import {
  commandEvents,
  commandOf,
  copiesOf,
  inboxSeqsOf,
  read,
  retry,
} from "./store-inbox-fixture.ts";

export { commandOf, LISTENED_USERS } from "./store-inbox-fixture.ts";

/** Of every driver in the suites. */
const MAX_INBOX = 1000;

export async function inbox(t: Test, createFixture: FixtureFactory): Promise<void> {
  keeping(t, createFixture);
  order(t, createFixture);
  commandRetries(t, createFixture);
  acknowledging(t, createFixture);
}

function keeping(t: Test, createFixture: FixtureFactory): void {
  t.test("userStates tells what may be new for many users", async (t) => {
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
    const left = (await states()).map((one) => one.replace("g1,", "")); // others may be named for a while
    t.same(left, expected, "as the user stands then");
  });

  t.test(
    "a command is published and kept with all it has, one copy for each recipient",
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
      const appended = await fixture.store.appendCommand(draft);
      t.equal(appended.messageSeq, 0);
      t.equal(appended.duplicate, false);
      const event = commandEvents(fixture)[1];
      t.equal(event?.origin, "session-1");
      const copies = event?.copies ?? [];
      t.equal(copies.length, 4);
      t.same(Object.fromEntries(copies.map((c) => [c.uid, c.inboxSeq])), {
        ...{ bob: 2, cärol: 1, "\u{1F600}": 1, älice: 0 },
      });
      const [, ofBob] = await read(fixture, "bob");
      const [ofCarol] = await read(fixture, "cärol");
      t.equal(ofBob?.message.messageSeq, 2);
      t.equal(ofCarol?.message.messageSeq, 1);
      for (const message of [event?.message, ofBob?.message, ofCarol?.message]) {
        t.equal(message?.messageId, appended.messageId);
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
      t.same(await read(fixture, "älice"), [], "who is only told keeps nothing");
      const before = await read(fixture, "bob");
      await fixture.reopen();
      t.same(await read(fixture, "bob"), before, "the same after a restart");
    },
  );

  t.test("a command is in no history and takes no seq", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf());
    t.equal((await fixture.store.append(draftOf())).messageSeq, 1);
    await fixture.store.appendCommand(commandOf());
    t.equal(await fixture.store.headSeq("2:g"), 1);
    t.equal((await fixture.store.readMessages("2:g", ALL)).messages.length, 1);
  });

  t.test("a command without recipients is told and not kept", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf({ recipients: [], pushOnlyRecipients: ["alice"] }));
    t.same(commandEvents(fixture)[0]?.copies, [{ uid: "alice", inboxSeq: 0 }]);
    t.same(await read(fixture, "alice"), []);
  });

  t.test("copies are read behind a seq, oldest first, some", async (t) => {
    const fixture = await createFixture(t);
    for (let i = 0; i < 5; i++)
      await fixture.store.appendCommand(
        commandOf({ recipients: i % 2 === 0 ? ["bob", "bo"] : ["bob"] }),
      );
    t.same(inboxSeqsOf(await read(fixture, "bob")), [1, 2, 3, 4, 5]);
    t.same(inboxSeqsOf(await read(fixture, "bob", 2)), [3, 4, 5]);
    t.same(inboxSeqsOf(await read(fixture, "bob", 1, { limit: 2 })), [2, 3]);
    const upTo = async (maxBytes: number) =>
      inboxSeqsOf(await read(fixture, "bob", 1, { maxBytes }));
    const { length } = commandOf().payload;
    t.same(await upTo(2 * length), [2, 3]);
    t.same(await upTo(2 * length - 1), [2]);
    t.same(await upTo(1), [2], "one in any case");
    t.same(inboxSeqsOf(await read(fixture, "bob", 5)), []);
    t.same(inboxSeqsOf(await read(fixture, "bo")), [1, 2, 3], "other inboxes count apart");
    t.same(await read(fixture, "b"), []);
    t.same(await read(fixture, "bob", 0, { limit: 0 }), []);
    t.same(await read(fixture, "bob", Number.MAX_SAFE_INTEGER), []);
  });

  t.test("an inbox over its bound loses its oldest copies", async (t) => {
    const { store } = await createFixture(t);
    const calls = Array.from({ length: MAX_INBOX + 5 }, () =>
      store.appendCommand(commandOf({ recipients: ["zoe"] })),
    );
    await Promise.all(calls);
    const kept = inboxSeqsOf(await store.readInbox("zoe", 0, ALL));
    t.equal(kept.length, MAX_INBOX);
    t.same([kept[0], kept.at(-1)], [6, MAX_INBOX + 5]);
    t.equal(await store.acknowledgeCommands("zoe", [5, 6]), 1);
  });

  t.test("message ids grow over commands, messages and restarts", async (t) => {
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
    t.equal(new Set(ids).size, ids.length);
  });

  t.test("what no record can hold is refused and harms nobody", async (t) => {
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
    t.same(inboxSeqsOf(await read(fixture, "bob")), [1]);
  });
}

function order(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "each user's events come in the order of the calls, each before its answer and before a read shows it",
    async (t) => {
      const fixture = await createFixture(t);
      const told = new Map<number, string[]>();
      fixture.onPublish = (e) => {
        if (e.kind !== "command") return;
        const before = told.get(e.message.messageId) ?? [];
        const uids = e.copies.map((c) => c.uid);
        told.set(e.message.messageId, [...before, ...uids]);
      };
      let isDone = false;
      let early = 0;
      const reading = (async () => {
        while (!isDone) {
          for (const { message } of await read(fixture, "bob"))
            if (!told.get(message.messageId)?.includes("bob")) early++;
          await new Promise(setImmediate);
        }
      })();
      for (let round = 0; round < 10; round++) {
        const calls = Array.from({ length: 20 }, async (_, i) => {
          const clientMsgNo = `${round}-${i}`;
          const answer = await fixture.store.appendCommand(
            commandOf({ clientMsgNo, recipients: ["bob", `u${i % 3}`] }),
          );
          return told.get(answer.messageId)?.length;
        });
        t.same(new Set(await Promise.all(calls)), new Set([2]));
      }
      isDone = true;
      await reading;
      t.equal(early, 0);
      const called = Array.from({ length: 200 }, (_, i) => i);
      for (const uid of ["bob", "u0", "u1", "u2"]) {
        const ofUser = copiesOf(fixture).flatMap(({ message, copies }) =>
          copies.flatMap((copy) =>
            copy.uid === uid ? [[copy.inboxSeq, message.clientMsgNo]] : [],
          ),
        );
        const expected = called
          .filter((i) => uid === "bob" || uid === `u${(i % 20) % 3}`)
          .map((i, at) => [at + 1, `${Math.floor(i / 20)}-${i % 20}`]);
        t.same(ofUser, expected, uid);
      }
    },
  );

  t.test(
    "commands of a channel come in the order of the calls, however many users some are for and whatever else waits",
    async (t) => {
      const fixture = await createFixture(t);
      const crowd = Array.from({ length: 299 }, (_, i) => `user-${i}`);
      const send = (id: string, recipients: readonly string[]) =>
        fixture.store.appendCommand(commandOf({ channel: { id, type: 2 }, recipients }));
      const others = Array.from({ length: 20 }, (_, i) => send(`o${i}`, crowd));
      const called = [
        ...[send("a", [...crowd, "bob"]), send("a", ["bob"])],
        ...[send("a", [...crowd, "bob"]), send("a", ["bob"])],
      ];
      const ids = (await Promise.all(called)).map((one) => one.messageId);
      await Promise.all(others);
      t.same(
        (await read(fixture, "bob")).map(({ message }) => message.messageId),
        ids,
      );
      const told = copiesOf(fixture).flatMap(({ message, copies }) =>
        copies.flatMap(({ uid }) => (uid === "bob" ? [message.messageId] : [])),
      );
      t.same(told, ids);
    },
  );

  t.test("a command may be for 10000 users", async (t) => {
    const fixture = await createFixture(t);
    const recipients = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
    const { messageId } = await fixture.store.appendCommand(commandOf({ recipients }));
    const some = ["user-0", "user-5000", "user-9999"];
    const told = commandEvents(fixture)[0]?.copies.map((c) => c.uid) ?? [];
    t.same(
      some.filter((uid) => told.includes(uid)),
      some,
    );
    t.equal(new Set(told).size, told.length);
    await fixture.reopen();
    for (const uid of some)
      t.same(
        (await read(fixture, uid)).map((c) => c.message.messageId),
        [messageId],
      );
  });
}

function commandRetries(t: Test, createFixture: FixtureFactory): void {
  t.test("a retry is answered with the first command, also after a restart", async (t) => {
    const fixture = await createFixture(t);
    const first = await fixture.store.appendCommand(retry("c-1"));
    const again = { ...first, duplicate: true };
    t.same(await fixture.store.appendCommand(retry("c-1")), again);
    t.same(await earlierResult(fixture.store, retry("c-1")), again);
    t.same(await fixture.store.append(draftOf({ clientMsgNo: "c-1" })), again);
    await fixture.reopen();
    t.same(await fixture.store.append(draftOf({ clientMsgNo: "c-1" })), again);
    t.same(await fixture.store.appendCommand(retry("c-1")), again);
    t.same(await earlierResult(fixture.store, retry("c-1")), again);
    t.equal(fixture.events.length, 1);
    t.same(inboxSeqsOf(await read(fixture, "bob")), [1]);
    t.equal(await fixture.store.headSeq("2:g"), 0);
  });

  t.test("a command is not found by what only looks like it", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(retry("c-1"));
    for (const other of [
      retry("c-2"),
      retry("c-1", { fromUid: "alic" }),
      retry("c-1", { channel: { id: "h", type: 2 } }),
      retry("c-1", { channel: { id: "g", type: 1 } }),
      retry("c-1", { channel: { id: "alice", type: 1 }, fromUid: "g" }),
    ]) {
      t.equal(await earlierResult(fixture.store, other), undefined);
      t.equal((await fixture.store.appendCommand(other)).duplicate, false);
    }
  });

  t.test("a command without a clientMsgNo has that of its id, and no retry", async (t) => {
    const fixture = await createFixture(t);
    const first = await fixture.store.appendCommand(commandOf());
    const second = await fixture.store.appendCommand(commandOf());
    t.same([first.duplicate, second.duplicate], [false, false]);
    const numbers = [first, second].map((c) => clientMsgNoOf(c.messageId));
    const reads = async () => (await read(fixture, "bob")).map((c) => c.message.clientMsgNo);
    await fixture.untilEvents(2);
    t.same(
      commandEvents(fixture).map((event) => event.message.clientMsgNo),
      numbers,
    );
    t.same(await reads(), numbers);
    await fixture.reopen();
    t.same(await reads(), numbers, "the same after a restart");
  });

  t.test("a command that repeats a message is a duplicate of it", async (t) => {
    const fixture = await createFixture(t);
    const first = await fixture.store.append(draftOf({ clientMsgNo: "m" }));
    const again = { ...first, duplicate: true };
    await fixture.untilEvents(1);
    t.same(await fixture.store.appendCommand(retry("m")), again);
    await fixture.reopen();
    t.same(await fixture.store.appendCommand(retry("m")), again);
    t.same(await read(fixture, "bob"), []);
    t.equal(fixture.events.length, 1);
  });

  t.test(
    "of calls at once with one clientMsgNo one is stored, and all get its answer; a command's when it is published",
    async (t) => {
      const fixture = await createFixture(t);
      for (const kinds of ["cccc", "cmcm", "mcmc", "mmcc", "ccmm"]) {
        const before = fixture.events.length;
        const early: boolean[] = [];
        const calls = [...kinds].map(async (kind) => {
          const answer = await (kind === "c"
            ? fixture.store.appendCommand(retry(kinds))
            : fixture.store.append(draftOf({ clientMsgNo: kinds })));
          if (kind === "c") early.push(fixture.events.length === before);
          return answer;
        });
        const answers = await Promise.all(calls);
        t.equal(new Set(answers.map((a) => a.messageId)).size, 1, kinds);
        t.equal(answers.filter((a) => !a.duplicate).length, 1, kinds);
        await fixture.untilEvents(before + 1);
        t.equal(fixture.events.length, before + 1, kinds);
        t.notOk(early.includes(true), kinds);
      }
    },
  );
}

function acknowledging(t: Test, createFixture: FixtureFactory): void {
  t.test(
    "an acknowledged copy is gone for good, for its user only, and counted once",
    async (t) => {
      const fixture = await createFixture(t);
      for (let i = 0; i < 4; i++)
        await fixture.store.appendCommand(commandOf({ recipients: ["bob", "carol"] }));
      const ack = (uid: string, seqs: number[]) => fixture.store.acknowledgeCommands(uid, seqs);
      t.equal(await ack("bob", [2, 3, 2]), 2);
      t.same(inboxSeqsOf(await read(fixture, "bob")), [1, 4]);
      t.equal(await ack("bob", [2]), 0);
      t.same(inboxSeqsOf(await read(fixture, "carol")), [1, 2, 3, 4]);
      await fixture.reopen();
      t.same(inboxSeqsOf(await read(fixture, "bob")), [1, 4]);
      t.equal(await ack("bob", [1, 4]), 2);
      t.same(await read(fixture, "bob"), []);
      await fixture.store.appendCommand(commandOf());
      t.same(inboxSeqsOf(await read(fixture, "bob")), [5], "seqs go on");
    },
  );

  t.test("acknowledging what is not there is harmless", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf());
    const odd = [0, -1, 2, 1.5, Number.NaN, 2 ** 60, Number.POSITIVE_INFINITY];
    t.equal(await fixture.store.acknowledgeCommands("bob", odd), 0);
    t.equal(await fixture.store.acknowledgeCommands("bob", []), 0);
    t.equal(await fixture.store.acknowledgeCommands("nobody", [1]), 0);
    t.same(inboxSeqsOf(await read(fixture, "bob")), [1]);
  });

  t.test("of acknowledgements at once one counts the copy", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf());
    const counts = await Promise.all(
      Array.from({ length: 5 }, () => fixture.store.acknowledgeCommands("bob", [1])),
    );
    t.equal(
      counts.reduce((sum, count) => sum + count),
      1,
    );
  });
}

/** For drivers that take the time from the clock they are given. */
export async function inboxTime(t: Test, createFixture: FixtureFactory): Promise<void> {
  t.test("a command that expires is no longer read or counted", async (t) => {
    const fixture = await createFixture(t);
    await fixture.store.appendCommand(commandOf({ expireS: 10 }));
    await fixture.store.appendCommand(commandOf());
    fixture.nowMs += 9999;
    t.same(inboxSeqsOf(await read(fixture, "bob")), [1, 2]);
    fixture.nowMs += 1;
    t.same(inboxSeqsOf(await read(fixture, "bob")), [2]);
    t.equal(await fixture.store.acknowledgeCommands("bob", [1, 2]), 1);
  });
}
