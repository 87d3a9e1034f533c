// Tests which messages a read of the event feed loads, the time of a gap, and what the timers of a
// node read and write for the feed. No public interface shows this: a defect would only cost memory
// and time, or would appear only if the store fails or the clock is set back.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../../src/broker/errors.ts";
import { EventDemandWatch } from "../../src/broker/event-demand.ts";
import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { Events } from "../../src/broker/events.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { messageTimeMs, userTopic } from "../../src/broker/model.ts";
import { OnlineSweep } from "../../src/broker/online-sweep.ts";
import type { MessageStore } from "../../src/broker/ports.ts";
import { SingleNode } from "../../src/cluster/single.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { t } from "../support/suite.ts";

t.test("reading the feed does not load messages sent while the feed was off", async (t) => {
  const store = await openStore(t, testFolder(t));
  const send = async (isOn: boolean, count: number) => {
    await store.switchFeed(isOn);
    for (let i = 0; i < count; i++) await store.append(draftOf());
  };
  await send(true, 2);
  await send(false, 20);
  await send(true, 1);
  let loaded = 0;
  const readMessages: MessageStore["readMessages"] = async (key, range) => {
    const slice = await store.readMessages(key, range);
    loaded += slice.messages.length;
    return slice;
  };
  const events = new Events({
    store: { ...store, readMessages },
    toJson: ({ messageSeq }) => ({ message_seq: messageSeq }),
  });
  const terms = { selects: () => true, limit: 10 };
  const page = await events.readPartition(bucketOf("2:g"), EVENTS_START, terms);
  t.strictSame(
    page.events.map(({ event }) => event.data.message_seq),
    [1, 2, 23],
  );
  t.equal(loaded, 3);
});

t.test("a feed.gap event at the end of the feed has the time of the newest event", async (t) => {
  const store = await openStore(t, testFolder(t));
  await store.switchFeed(true);
  await store.append(draftOf());
  const events = new Events({ store, toJson: () => ({}) });
  const partition = bucketOf("2:g");
  const newest = (await store.newestEvents())[partition] ?? EVENTS_START;
  await pause(5);
  const after = { number: newest.number + 3, id: newest.id + 100_000 };
  const terms = { selects: () => true, limit: 10 };
  const { events: page } = await events.readPartition(partition, after, terms);
  t.match(page, [{ event: { type: "feed.gap", data: { count: 3 } } }]);
  t.equal(page[0]?.event.timestampMs, messageTimeMs(newest.id));
});

t.test(
  "if a reader's request for event types could not be stored, it is stored when the request is repeated",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    await store.switchFeed(true);
    let isFull = true;
    const demand = new EventDemandWatch({
      store: {
        ...store,
        async noteReader(...args) {
          if (isFull) throw new BrokerError("disk_full");
          return store.noteReader(...args);
        },
      },
      ...{ webhookTypes: async () => [], clock: Date.now, onDemand() {}, onError() {} },
    });
    t.teardown(() => demand.close());
    await t.rejects(demand.note(["session.*"]));
    isFull = false;
    await demand.note(["session.*"]);
    t.ok((await store.readerDemand()).session > Date.now());
  },
);

t.test(
  "after the clock was set back, the search for offline users does not check every user in each run",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    const time = { nowMs: Date.now() };
    const cutoffs: number[] = [];
    const sweep = new OnlineSweep({
      store: {
        ...store,
        async takeOnline(terms) {
          cutoffs.push(terms.checkedMs);
          return [];
        },
      },
      cluster: new SingleNode("n"),
      ...{ clock: () => time.nowMs, delayMs: 1, isOn: () => true, onOffline() {} },
      onError: (error) => t.fail(String(error)),
    });
    sweep.start();
    t.teardown(() => sweep.close());
    const untilTurns = async (count: number) => {
      while (cutoffs.length < count) await pause(5);
    };
    await untilTurns(1);
    time.nowMs -= 3_600_000;
    await untilTurns(3);
    t.ok((cutoffs.at(-1) ?? 0) <= time.nowMs);
  },
);

t.test(
  "a user whose sessions cannot be read does not delay the user.offline events of other users",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    await store.switchFeed(true);
    const uids = ["away", "ann", "ben"];
    for (const uid of uids) {
      const name = { sessionId: uid, nodeId: "n", uid, flag: 0 } as const;
      await store.login({ ...name, level: 0, deviceId: "", tokenTag: "" }, "n:1");
      await store.removeSession(name);
    }
    let isAway = true;
    const cutoffs: number[] = [];
    const sweep = new OnlineSweep({
      store: {
        ...store,
        async takeOnline(terms) {
          cutoffs.push(terms.checkedMs);
          return store.takeOnline(terms);
        },
        async sessionsOf(users) {
          if (isAway && users.includes("away")) throw new BrokerError("unavailable");
          return store.sessionsOf(users);
        },
      },
      cluster: new SingleNode("n"),
      ...{ clock: Date.now, delayMs: 1, isOn: () => true, onOffline() {} },
      onError: (error) => t.fail(String(error)),
    });
    sweep.start();
    t.teardown(() => sweep.close());
    const isOffline = async (uid: string) => {
      const { rows } = await store.readEvents(bucketOf(userTopic(uid)), EVENTS_START, 9);
      return rows.some(({ type, key }) => type === "user.offline" && key === userTopic(uid));
    };
    const untilOffline = async (users: readonly string[]) => {
      for (const uid of users) while (!(await isOffline(uid))) await pause(5);
    };
    await untilOffline(["ann", "ben"]);
    t.notOk(await isOffline("away"));
    const turns = cutoffs.length;
    while (cutoffs.length < turns + 2) await pause(5);
    t.ok((cutoffs.at(-1) ?? 0) > (cutoffs[0] ?? 0), "all users are checked again soon");
    isAway = false;
    await untilOffline(["away"]);
  },
);
