// Command inboxes of the embedded store: their limit, what a sweep removes, the time for which
// retries are recognised, and the state after a kill.

import { join } from "node:path";
import { open } from "lmdb";
import type { Test } from "tap";
import type { ClusterEvent, Store } from "../../../src/broker/ports.ts";
import type { EmbeddedOptions } from "../../../src/store/embedded/store.ts";
import { joinStateOf } from "../../contract/join-request.ts";
import { ALL, codeOf, draftOf } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { crashedCopy, damageRow, openStore, testFolder } from "./folder.ts";
import { startChild } from "./process.ts";

async function setUp(t: Test, over: Partial<EmbeddedOptions> = {}) {
  const path = testFolder(t);
  const time = { nowMs: Date.UTC(2026, 0, 1) };
  const clock = () => time.nowMs;
  const reopen = () => openStore(t, path, { clock, ...over });
  return { path, time, reopen, store: await reopen() };
}

const seqsOf = async (store: Store, uid: string) =>
  (await store.readInbox(uid, 0, ALL)).map((c) => c.inboxSeq);
const retry = (clientMsgNo: string) => commandOf({ clientMsgNo });

/** Returns the number of rows in the tables of inboxes in a copy of the folder. */
async function sizesIn(t: Test, path: string) {
  const env = open({
    path: join(await crashedCopy(t, path), "lmdb"),
    maxDbs: 48,
  });
  const sizeOf = (name: string) => env.openDB({ name, keyEncoding: "binary" }).getKeysCount({});
  const names = ["commands", "commandCopies", "inbox", "inboxes"];
  const sizes = names.map(sizeOf);
  const remainingRows = sizeOf("commandLeft");
  if (remainingRows > (sizes[0] ?? 0)) throw new Error("commandLeft has rows without a command");
  await env.close();
  return sizes;
}

/** Makes the state of an inbox unreadable. The user's name must have three letters. */
async function damageInbox(path: string, uid: string): Promise<void> {
  const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
  const inboxes = env.openDB<Buffer, Buffer>({
    ...{ name: "inboxes", encoding: "binary", keyEncoding: "binary" },
  });
  await inboxes.put(Buffer.from(`\0\x03${uid}`), Buffer.from([99]));
  await env.close();
}

t.test(
  "a command inbox over its limit loses its oldest commands, and the store counts the lost copies",
  async (t) => {
    const { store, reopen } = await setUp(t, { maxInbox: 5 });
    for (let i = 0; i < 4; i++) await store.appendCommand(commandOf());
    await store.acknowledgeCommands("bob", [2, 3]);
    const sends = Array.from({ length: 5 }, () =>
      store.appendCommand(commandOf({ recipients: ["bob", "carol"] })),
    );
    await Promise.all(sends);
    t.same(await seqsOf(store, "bob"), [5, 6, 7, 8, 9]);
    t.same(await seqsOf(store, "carol"), [1, 2, 3, 4, 5]);
    t.match(store.stats(), { commands: 9, inboxDropped: 2 });
    await store.close();
    const reopened = await reopen();
    t.same(await seqsOf(reopened, "bob"), [5, 6, 7, 8, 9]);
    await reopened.acknowledgeCommands("bob", [9, 7]);
    await reopened.appendCommand(commandOf());
    t.same(
      await seqsOf(reopened, "bob"),
      [5, 6, 8, 10],
      "acknowledged copies make space for a new one",
    );
    t.match(reopened.stats(), { inboxDropped: 0 });
  },
);

t.test(
  "a command inbox that overflows several times in one batch keeps its newest commands, even if a command is acknowledged at the same time",
  async (t) => {
    const { store } = await setUp(t, { maxInbox: 3 });
    for (let i = 0; i < 3; i++) await store.appendCommand(commandOf());
    const acknowledged = store.acknowledgeCommands("bob", [2]);
    await new Promise((go) => setImmediate(go)); // the acknowledgement is in the queue
    await Promise.all(Array.from({ length: 10 }, () => store.appendCommand(commandOf())));
    t.equal(await acknowledged, 1);
    t.equal(await store.acknowledgeCommands("bob", [1, 3]), 0);
    t.same(await seqsOf(store, "bob"), [11, 12, 13]);
    t.match(store.stats(), { inboxDropped: 9 });
  },
);

t.test("a command stays in an inbox until the inbox TTL ends or the command expires", async (t) => {
  const { path, time, store } = await setUp(t, { inboxTtlS: 100 });
  const recipients = ["bob", "carol"];
  await store.appendCommand(commandOf({ recipients, expireS: 10 }));
  await store.appendCommand(commandOf({ recipients, expireS: 1000 }));
  await store.appendCommand(commandOf({ recipients }));
  await store.acknowledgeCommands("carol", [3]);
  await store.sweep();
  t.same(await sizesIn(t, path), [3, 3, 5, 2]);
  time.nowMs += 10_000;
  t.same(await seqsOf(store, "bob"), [2, 3], "an expired copy is hidden before it is removed");
  await store.sweep();
  t.same(await sizesIn(t, path), [2, 2, 3, 2]);
  time.nowMs += 90_000;
  t.same(await seqsOf(store, "bob"), []);
  await store.sweep();
  t.same(await sizesIn(t, path), [0, 0, 0, 2]);
  await store.appendCommand(commandOf());
  t.same(await seqsOf(store, "bob"), [4], "seqs continue after a sweep");
});

t.test(
  "a sweep removes thousands of expired copies of commands and makes room in their inboxes",
  async (t) => {
    const { path, time, store } = await setUp(t, { maxInbox: 2, inboxTtlS: 5 });
    const recipients = Array.from({ length: 2500 }, (_, i) => `user-${i}`);
    await store.appendCommand(commandOf({ recipients }));
    for (let i = 0; i < 120; i++)
      void store.appendCommand(commandOf({ recipients: [`other-${i}`] }));
    await store.appendCommand(commandOf({ recipients }));
    time.nowMs += 5000;
    await store.sweep();
    t.same(await sizesIn(t, path), [0, 0, 0, 2620]);
    await store.appendCommand(commandOf({ recipients }));
    t.same(await seqsOf(store, "user-2499"), [3]);
    t.equal(store.stats().inboxDropped, 0);
  },
);

t.test(
  "a sweep that could not remove all copies of a command leaves the command to the next sweep",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const { path, time, store, reopen } = await setUp(t, { inboxTtlS: 5, databaseWrites });
    const recipients = Array.from({ length: 1000 }, (_, i) => `user-${i}`);
    await store.appendCommand(commandOf({ recipients }));
    time.nowMs += 5000;
    fail.commit = 1;
    t.equal(await codeOf(store.sweep()), "unavailable");
    await store.sweep();
    t.same(await sizesIn(t, path), [0, 0, 0, 1000]);

    for (let i = 0; i < 200; i++) void store.appendCommand(commandOf({ recipients: ["bad"] }));
    await store.appendCommand(commandOf({ recipients: ["bob", "bad", "carol"] }));
    await store.appendCommand(commandOf());
    await store.close();
    await damageInbox(path, "bad");
    const reopened = await reopen();
    time.nowMs += 5000;
    for (const round of [1, 2]) {
      t.equal(await codeOf(reopened.sweep()), "internal", `sweep ${round} reports the error`);
      t.same(await sizesIn(t, path), [201, 201, 201, 1003], "all other copies are removed");
    }
  },
);

t.test("a command is deleted when its last copy is acknowledged", async (t) => {
  const { path, store, reopen } = await setUp(t);
  const recipients = ["bob", "carol", "dave"];
  await store.appendCommand(commandOf({ recipients }));
  await store.acknowledgeCommands("bob", [1, 1, 7]);
  await store.acknowledgeCommands("bob", [1]);
  t.same(await sizesIn(t, path), [1, 1, 2, 3]);
  await store.close();
  const reopened = await reopen();
  await reopened.acknowledgeCommands("carol", [1]);
  t.same(await sizesIn(t, path), [1, 1, 1, 3]);
  t.same(await seqsOf(reopened, "dave"), [1]);
  await reopened.acknowledgeCommands("dave", [1]);
  t.same(await sizesIn(t, path), [0, 0, 0, 3]);
  await reopened.appendCommand(commandOf({ recipients }));
  const seqs = recipients.map((uid) => reopened.acknowledgeCommands(uid, [2]));
  t.same(await Promise.all(seqs), [1, 1, 1]);
  t.same(
    await sizesIn(t, path),
    [0, 0, 0, 3],
    "a command is deleted when all its copies are acknowledged in one batch",
  );
});

t.test("a command is deleted when its last copy is dropped from a full inbox", async (t) => {
  const { path, store } = await setUp(t, { maxInbox: 2 });
  const both = commandOf({ recipients: ["bob", "carol"] });
  await store.appendCommand(both);
  for (let i = 0; i < 2; i++) await store.appendCommand(commandOf());
  t.same(await sizesIn(t, path), [3, 3, 3, 2], "the first command is kept while carol has a copy");
  await store.acknowledgeCommands("carol", [1]);
  t.same(await sizesIn(t, path), [2, 2, 2, 2]);
  const more = Array.from({ length: 9 }, () => store.appendCommand(both));
  await Promise.all(more);
  t.same(await sizesIn(t, path), [2, 2, 4, 2], "commands whose copies a batch drops are deleted");
  t.same(await seqsOf(store, "carol"), [9, 10]);
  t.equal((await store.readInbox("bob", 0, ALL)).length, 2);
});

t.test(
  "a command that an older build stored without a count of its copies is deleted with the last copy",
  async (t) => {
    const { path, store, reopen } = await setUp(t);
    await store.appendCommand(commandOf({ recipients: ["bob", "carol"] }));
    await store.close();
    const env = open({ path: join(path, "lmdb"), maxDbs: 48 });
    const table = env.openDB<Buffer, Buffer>({
      ...{ name: "commandCopies", encoding: "binary", keyEncoding: "binary" },
    });
    for (const { key, value } of table.getRange({}))
      await table.put(key, Buffer.from([1, ...value.subarray(5)]));
    await env.close();
    const reopened = await reopen();
    await reopened.acknowledgeCommands("bob", [1]);
    t.same(await sizesIn(t, path), [1, 1, 1, 2]);
    await reopened.acknowledgeCommands("carol", [1]);
    t.same(await sizesIn(t, path), [0, 0, 0, 2]);
  },
);

t.test("a command to many users is published in one event", async (t) => {
  const events: ClusterEvent[] = [];
  const publisher = { publish: (event: ClusterEvent) => events.push(event) };
  const store = await openStore(t, testFolder(t), { publisher });
  const recipients = Array.from({ length: 10_000 }, (_, i) => `user-${i}`);
  await store.appendCommand(commandOf({ recipients, pushOnlyRecipients: ["alice"] }));
  const [event, ...furtherEvents] = events;
  t.same(furtherEvents, []);
  const copies = event?.kind === "command" ? event.copies : [];
  t.same(
    copies.map((c) => c.uid),
    [...recipients, "alice"],
  );
});

t.test("a retry of a command is recognised until the dedupe window ends", async (t) => {
  const { path, time, store } = await setUp(t, { dedupeWindowS: 10 });
  const first = await store.appendCommand(retry("n"));
  const retryResult = { ...first, duplicate: true };
  for (let i = 0; i < 3; i++) {
    time.nowMs += 3333;
    await store.checkpoint();
    t.same(await store.appendCommand(retry("n")), retryResult);
    const crashed = await openStore(t, await crashedCopy(t, path), {
      ...{ clock: () => time.nowMs, dedupeWindowS: 10 },
    });
    const message = draftOf({ clientMsgNo: "n", payload: commandOf().payload });
    t.same(await crashed.append(message), retryResult, "a retry is recognised after a crash");
    for (let turns = 0; turns < 5; turns++) await new Promise(setImmediate);
    t.same(
      await crashed.append(message),
      retryResult,
      "a retry is recognised once the filters are complete",
    );
  }
  time.nowMs += 1;
  t.equal((await store.appendCommand(retry("n"))).duplicate, false);
});

t.test("dedupe entries of commands are removed after the dedupe window", async (t) => {
  const { path, time, store } = await setUp(t, { dedupeWindowS: 10 });
  for (let i = 0; i < 50; i++) void store.appendCommand(retry(`n${i}`));
  await store.appendCommand(retry("last"));
  for (let i = 0; i < 3; i++) {
    time.nowMs += 10_000;
    await store.checkpoint();
  }
  const copy = await crashedCopy(t, path);
  const env = open({ path: join(copy, "lmdb"), maxDbs: 48 });
  for (const name of ["dedupe0", "dedupe1"])
    t.equal(env.openDB({ name, keyEncoding: "binary" }).getKeysCount({}), 0);
  await env.close();
});

t.test(
  "the id of a command is not used again after a crash, even if the clock was set back",
  async (t) => {
    const { path, time, store } = await setUp(t);
    const { messageId } = await store.appendCommand(commandOf());
    const crashed = await openStore(t, await crashedCopy(t, path), {
      clock: () => time.nowMs - 3_600_000,
    });
    const later = await crashed.appendCommand(commandOf());
    t.ok(later.messageId > messageId);
    t.ok((await crashed.append(draftOf())).messageId > later.messageId);
  },
);

t.test(
  "commands beyond the limit of queued bytes are refused as overloaded, and later commands are accepted",
  async (t) => {
    const { store } = await setUp(t);
    const payload = new Uint8Array(1_000_000);
    const calls = Array.from({ length: 80 }, () =>
      codeOf(store.appendCommand(commandOf({ payload }))),
    );
    const codes = await Promise.all(calls);
    t.same(new Set(codes), new Set([undefined, "overloaded"]));
    const stored = codes.filter((code) => code === undefined).length;
    t.equal(await codeOf(store.appendCommand(commandOf({ payload }))), undefined);
    t.equal((await seqsOf(store, "bob")).length, stored + 1);
  },
);

t.test(
  "a command or acknowledgement that is rejected does not affect the other calls of its batch",
  async (t) => {
    const { path, store, reopen } = await setUp(t);
    await store.appendCommand(commandOf({ recipients: ["bad", "bob"] }));
    await store.close();
    await damageInbox(path, "bad");
    const reopened = await reopen();
    const calls: Promise<unknown>[] = [
      reopened.appendCommand(commandOf()),
      reopened.appendCommand(commandOf({ recipients: ["bob", "bad"] })),
      reopened.acknowledgeCommands("bob", [1]),
      reopened.acknowledgeCommands("x".repeat(5000), [1]),
      reopened.appendCommand(commandOf()),
    ];
    t.same(await Promise.all(calls.map(codeOf)), [
      ...[undefined, "internal", undefined, "too_large", undefined],
    ]);
    t.same(await seqsOf(reopened, "bob"), [2, 3]);
  },
);

t.test("commands keep their order if one of them fails", async (t) => {
  const { path, store, reopen } = await setUp(t);
  await store.appendCommand(commandOf({ recipients: ["bad"] }));
  await store.close();
  await damageInbox(path, "bad");
  const reopened = await reopen();
  // The first three commands fill a batch, and the last one waits for the next batch.
  const others = Array.from({ length: 497 }, (_, i) => `user-${i}`);
  const calls = [
    reopened.appendCommand(commandOf()),
    reopened.appendCommand(commandOf({ recipients: ["bad", ...others] })),
    reopened.appendCommand(commandOf()),
    reopened.appendCommand(commandOf()),
  ];
  const results = await Promise.allSettled(calls);
  const ids = results.map((result) => result.status === "fulfilled" && result.value.messageId);
  t.equal(ids[1], false, "the second command fails");
  const commands = await reopened.readInbox("bob", 0, ALL);
  t.same(
    commands.map(({ message }) => message.messageId),
    [ids[0], ids[2], ids[3]],
  );
});

t.test(
  "a command or a message that cannot be read does not keep a user from joining",
  async (t) => {
    const problems: string[] = [];
    const onError = (_: Error, what: string) => void problems.push(what);
    const { path, store, reopen } = await setUp(t, { onError });
    await store.appendCommand(commandOf({ recipients: ["bob", "carol"] }));
    await store.appendCommand(commandOf());
    for (let i = 0; i < 2; i++) await store.append(draftOf());
    await store.close();
    await damageRow(path, "commands");
    await damageRow(path, "log");
    const reopened = await reopen();
    const positions = [{ key: "2:g", lastSeq: 2, lastId: 1 }] as const;
    const { commands, resumeSeqs } = await joinStateOf(reopened, "bob", { positions });
    t.same(
      commands.map(({ inboxSeq }) => inboxSeq),
      [2],
    );
    t.same(resumeSeqs, [{ headSeq: 2, lastCommonSeq: 2 }], "the ids are not compared");
    t.same(await seqsOf(reopened, "carol"), []);
    t.match(problems, [/^Could not read a stored message/, /^Could not read a stored command/]);
    t.equal(problems.length, 2, "each problem is reported once a minute");
    await reopened.close();
    await damageRow(path, "inboxes");
    await damageRow(path, "heads");
    const again = await joinStateOf(await reopen(), "bob", { positions });
    t.equal(again.commands.length, 1);
    t.same(again.resumeSeqs, [{ headSeq: 2, lastCommonSeq: 2 }]);
  },
);

t.test(
  "with durability `disk`, a command whose flush failed is published, and its sender receives an error",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const events: ClusterEvent[] = [];
    const { store } = await setUp(t, {
      durability: "disk",
      databaseWrites,
      publisher: { publish: (event) => void events.push(event) },
    });
    fail.flush = true;
    const codes = [retry("a"), retry("b")].map((draft) => codeOf(store.appendCommand(draft)));
    t.same(await Promise.all(codes), ["unavailable", "unavailable"]);
    const publishedCopies = events.map((e) => e.kind === "command" && e.copies);
    const copy = (inboxSeq: number) => [{ uid: "bob", inboxSeq }];
    t.same(publishedCopies, [copy(1), copy(2)]);
    t.same(await seqsOf(store, "bob"), [1, 2]);
    fail.flush = false;
    t.match(await store.appendCommand(retry("a")), { duplicate: true });
    fail.commit = 1;
    t.equal(await codeOf(store.appendCommand(commandOf())), "unavailable");
    t.same(await seqsOf(store, "bob"), [1, 2]);
    t.equal(events.length, 2);
  },
);

t.test("commands are stored even if the publisher throws", async (t) => {
  const problems: string[] = [];
  const { store } = await setUp(t, {
    onError: (_, what) => problems.push(what),
    publisher: {
      publish(event: ClusterEvent) {
        if (event.kind === "command") throw new Error("a bug");
      },
    },
  });
  await Promise.all([1, 2, 3].map(() => store.appendCommand(commandOf())));
  t.same(await seqsOf(store, "bob"), [1, 2, 3]);
  t.same(problems, [
    "Could not publish a stored event",
    "Could not publish a stored event",
    "Could not publish a stored event",
  ]);
});

t.test(
  "after a kill -9 under load, every accepted command is in each recipient's inbox once until it is acknowledged, and its retry is recognised",
  async (t) => {
    const path = testFolder(t);
    const answered = new Map<string, number>();
    const acknowledged = new Set<number>();
    for (const count of [1, 200, 1500]) {
      const child = startChild(t, [path, "command"]);
      await child.line(() => child.lines.length >= count);
      await child.kill();
      for (const line of child.lines) {
        if (line.acknowledged !== undefined) acknowledged.add(line.acknowledged);
        if (line.clientMsgNo !== undefined) answered.set(line.clientMsgNo, line.messageId ?? 0);
      }
    }
    const store = await openStore(t, path);
    const kept = await store.readInbox("keeps", 0, ALL);
    const remaining = await store.readInbox("acks", 0, ALL);
    t.same(
      kept.map((c) => c.inboxSeq),
      kept.map((_, i) => i + 1),
      "all commands are stored in order and without gaps",
    );
    const ids = new Map(kept.map(({ message }) => [message.clientMsgNo, message.messageId]));
    t.equal(ids.size, kept.length, "no command is stored twice");
    t.equal(new Set(ids.values()).size, kept.length, "no id is used twice");
    const lost = [...answered].filter(([no, id]) => ids.get(no) !== id);
    t.same(lost, [], `all ${answered.size} answered commands are stored`);
    const returned = remaining.filter((c) => acknowledged.has(c.inboxSeq));
    t.same(returned, [], `all ${acknowledged.size} acknowledged copies stay removed`);
    const odd = kept.filter((c) => c.inboxSeq % 2 === 1).length;
    t.equal(remaining.filter((c) => c.inboxSeq % 2 === 1).length, odd);
    for (const [no, messageId] of [...answered].slice(-50)) {
      const answer = await store.appendCommand(retry(no));
      t.same(answer, { messageId, messageSeq: 0, duplicate: true });
    }
    const { messageId } = await store.append(draftOf());
    t.ok(messageId > Math.max(...ids.values()));
  },
);
