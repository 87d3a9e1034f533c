// Tests of how push decisions use the store. No public interface shows how often the broker
// determines which users a message has not reached.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import { PushCursors } from "../../src/broker/push-cursors.ts";
import { Unreached } from "../../src/broker/unreached.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { damageRow, openStore, testFolder } from "../store/embedded/folder.ts";
import { group, rules } from "./node.ts";

t.test(
  "decisions about push notifications for a large group are made once, even if they are written in several batches",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    const uids = Array.from({ length: 9000 }, (_, at) => `user-${at}`);
    const channel = group("team");
    await store.createChannel(rules(channel), uids);
    await store.switchFeed(true);
    let beginReading = () => {};
    const mayRead = new Promise<void>((resolve) => {
      beginReading = resolve;
    });
    let sessionReads = 0;
    let decided = 0;
    let moves = 0;
    const unreached = new Unreached({
      store,
      directory: {
        async liveSessions(users) {
          sessionReads += 1;
          return users.map(() => []);
        },
      },
      ...{ isSystem: () => false, rule: "foreground", maxMembers: 50_000 },
      onError: (error) => t.fail(String(error)),
    });
    const cursors = new PushCursors({
      ...{ unreached, clock: Date.now, afterMs: 0 },
      store: {
        ...store,
        async readEvents(...args) {
          await mayRead;
          return store.readEvents(...args);
        },
      },
      onDecided(messages) {
        decided += messages;
        moves += 1;
      },
      onError: (error) => t.fail(String(error)),
    });
    t.teardown(() => cursors.close());
    await cursors.start();
    await Promise.all(Array.from({ length: 10 }, () => store.append(draftOf({ channel }))));
    beginReading();
    while (decided < 10) await pause(10);
    t.equal(moves, 5, "at most 20,000 users are written in one turn");
    t.equal(sessionReads, 1, "the sessions of the users are read once");
  },
);

t.test(
  "a channel that cannot be read does not stop decisions about push notifications for other channels",
  async (t) => {
    const path = testFolder(t);
    const before = await openStore(t, path);
    await before.switchFeed(true);
    for (const id of ["team", "word"]) {
      const channel = group(id);
      await before.createChannel(rules(channel), ["bob"]);
      await before.append(draftOf({ channel }));
    }
    await before.close();
    await damageRow(path, "channels", { encoding: "msgpack" });
    const store = await openStore(t, path, { onError() {} });
    const problems: string[] = [];
    const unreached = new Unreached({
      store,
      directory: { liveSessions: async (users) => users.map(() => []) },
      ...{ isSystem: () => false, rule: "foreground", maxMembers: 9 },
      onError: (_, what) => problems.push(what),
    });
    const pages = await Promise.all(
      ["2:team", "2:word"].map((key) => store.readEvents(bucketOf(key), EVENTS_START, 99)),
    );
    const rows = pages.flatMap((page) => page.rows).filter(({ type }) => type === "message.stored");
    const decisions = await unreached.decide(rows);
    t.same(
      decisions.map(({ events }) => events.length),
      [0, 1],
    );
    t.equal(problems.length, 1, "the error is reported");
  },
);

t.test(
  "a message that is stored during a read of the feed is checked for push notifications within 4 seconds",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    await store.switchFeed(true);
    let hasAppended = false;
    let decided = 0;
    const cursors = new PushCursors({
      unreached: { decide: async (rows) => rows.map((row) => ({ row, events: [] })) },
      ...{ clock: Date.now, afterMs: 0 },
      store: {
        ...store,
        async readEvents(partition, after, limit) {
          const page = await store.readEvents(partition, after, limit);
          if (after.number > 0 && page.rows.length === 0 && !hasAppended) {
            hasAppended = true;
            await store.append(draftOf());
            await pause(100); // the listener is called before the read ends
          }
          return page;
        },
      },
      onDecided(messages) {
        decided += messages;
      },
      onError: (error) => t.fail(String(error)),
    });
    t.teardown(() => cursors.close());
    await cursors.start();
    const startedMs = performance.now();
    await store.append(draftOf());
    while (decided < 2) await pause(10);
    t.ok(performance.now() - startedMs < 4000, "the partition is not left idle for 5 seconds");
  },
);
