// The store after a batch whose write failed. Message ids must grow across the failure and a crash,
// including the ids of messages that are not stored, because clients use ids to recognise repeated
// messages. A change whose event could not be written must still be published.

import type { Test } from "tap";
import { EVENTS_START } from "../../../src/broker/event-ports.ts";
import { bucketOf } from "../../../src/broker/log-frame.ts";
import type { ClusterEvent } from "../../../src/broker/ports.ts";
import { codeOf, draftOf, group } from "../../contract/store-fixture.ts";
import { commandOf } from "../../contract/store-inbox.ts";
import { t } from "../../support/suite.ts";
import { brittleDatabase } from "./brittle-database.ts";
import { brittleFiles } from "./brittle-files.ts";
import { crashedCopy, openStore, testFolder } from "./folder.ts";

const UNSTORED = { header: { noPersist: true, redDot: false } };
/** Constant clock, so that only the store makes ids grow, as after a clock was set back. */
const clock = () => Date.UTC(2026, 0, 1);

async function openBrittle(t: Test) {
  const path = testFolder(t);
  const { fail, files } = brittleFiles();
  const store = await openStore(t, path, { clock, files });
  const send = async (over = {}) => (await store.append(draftOf(over))).messageId;
  const failOne = async (over = {}) => {
    fail.write = 1;
    const code = await codeOf(store.append(draftOf(over)));
    if (code === undefined) throw new Error("the write did not fail");
  };
  /** Returns the id that the next message gets if the store crashes now. */
  const idAfterCrash = async (over = {}) => {
    const next = await openStore(t, await crashedCopy(t, path), { clock });
    return (await next.append(draftOf(over))).messageId;
  };
  return { store, send, failOne, idAfterCrash };
}

t.test(
  "the id of an unstored message is not assigned again after a failed batch and a crash",
  async (t) => {
    const { send, failOne, idAfterCrash } = await openBrittle(t);
    const first = await send();
    await failOne(UNSTORED);
    const second = await send(UNSTORED);
    t.ok(second > first, "ids grow after the failure");
    t.ok((await idAfterCrash(UNSTORED)) > second, "ids grow after the crash");
  },
);

t.test(
  "an id is not assigned again after a crash if a batch failed after an earlier id reservation",
  async (t) => {
    const { store, send, failOne, idAfterCrash } = await openBrittle(t);
    await send(UNSTORED);
    await failOne();
    const last = await send(UNSTORED);
    t.ok((await idAfterCrash()) > last, "ids grow after a crash before the checkpoint");
    await store.checkpoint();
    t.ok((await idAfterCrash()) > last, "ids grow after a crash that follows the checkpoint");
  },
);

t.test(
  "the id of an unstored message that is sent after a checkpoint is not assigned again after a crash",
  async (t) => {
    const { store, send, idAfterCrash } = await openBrittle(t);
    await send(UNSTORED);
    await send();
    await store.checkpoint();
    const last = await send(UNSTORED);
    t.ok((await idAfterCrash()) > last);
  },
);

/** Opens a store with the event feed on and a group of three. `published` grows. */
async function openWithFeed(t: Test, over: Parameters<typeof openStore>[2]) {
  const published: ClusterEvent[] = [];
  const publisher = { publish: (event: ClusterEvent) => void published.push(event) };
  const store = await openStore(t, testFolder(t), { ...over, publisher });
  await store.switchFeed(true);
  await store.setDemand({ feed: true, session: false, command: true });
  await store.createChannel(group("g"), ["ann", "bob", "cat"]);
  return { store, published };
}

t.test(
  "members are removed and commands are published even if their feed events cannot be written yet",
  async (t) => {
    const { fail, files } = brittleFiles();
    const { store, published } = await openWithFeed(t, { files });
    const permanent = { membership: "permanent", reset: true } as const;
    fail.write = 1;
    t.match(await store.removeSubscribers(group("g"), ["ann"], "permanent"), { kind: "removed" });
    fail.write = 1;
    t.ok(await store.addSubscribers(group("g"), ["bob"], permanent));
    fail.write = 1;
    t.match(await store.appendCommand(commandOf()), { duplicate: false });
    t.equal(fail.write, 0, "each write of events failed");
    t.match(published, [
      { kind: "removal", channelId: "g", uids: ["ann"] },
      { kind: "removal", channelId: "g", uids: ["cat"] },
      { kind: "command", copies: [{ uid: "bob" }] },
    ]);
  },
);

t.test(
  "with durability `disk`, a change whose flush failed is published and written to the feed, and its call is rejected",
  async (t) => {
    const { fail, databaseWrites } = brittleDatabase();
    const { store, published } = await openWithFeed(t, { databaseWrites, durability: "disk" });
    fail.flush = true;
    const removal = store.removeSubscribers(group("g"), ["ann"], "permanent");
    t.equal(await codeOf(removal), "unavailable");
    t.equal(await codeOf(store.appendCommand(commandOf())), "unavailable");
    t.match(published, [{ kind: "removal", uids: ["ann"] }, { kind: "command" }]);
    const { rows } = await store.readEvents(bucketOf("2:g"), EVENTS_START, 9);
    t.ok(rows.some(({ type }) => type === "channel.members_removed"));
    fail.flush = false;
    fail.commit = 1;
    const uncommitted = store.removeSubscribers(group("g"), ["bob"], "permanent");
    t.equal(await codeOf(uncommitted), "unavailable");
    t.equal(published.length, 2, "a removal that was not committed is not published");
  },
);
