// Tests of how push decisions use the store. No public interface shows how often the broker
// determines which users a message has not reached.

import { setTimeout as pause } from "node:timers/promises";
import t from "tap";
import { type ChannelRef, GROUP_CHANNEL } from "../../src/broker/model.ts";
import { PushCursors } from "../../src/broker/push-cursors.ts";
import { Unreached } from "../../src/broker/unreached.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";

t.test(
  "the decisions for a large group are made once, even if they are written in turns",
  async (t) => {
    const store = await openStore(t, testFolder(t));
    const uids = Array.from({ length: 9000 }, (_, at) => `user-${at}`);
    const channel: ChannelRef = { id: "team", type: GROUP_CHANNEL };
    const flags = {
      ban: false,
      disband: false,
      sendBan: false,
      allowStranger: false,
      large: false,
    };
    await store.createChannel({ ...channel, ...flags, clientEvents: false }, uids);
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
