// Tests which messages the readers of the event feed load. No public interface shows this, because
// loading too many messages only costs memory and time.

import { EVENTS_START } from "../../src/broker/event-ports.ts";
import { Events } from "../../src/broker/events.ts";
import { bucketOf } from "../../src/broker/log-frame.ts";
import type { MessageStore } from "../../src/broker/ports.ts";
import { draftOf } from "../contract/store-fixture.ts";
import { openStore, testFolder } from "../store/embedded/folder.ts";
import { t } from "../support/suite.ts";

t.test("a feed read does not load messages that were sent while the feed was off", async (t) => {
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
