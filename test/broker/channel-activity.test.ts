// Tests of the counters of `GET /channels/busiest`: their number, their time window, and which
// counter is replaced. No interface lets a test set the time or send to thousands of channels
// quickly.

import { ChannelActivity } from "../../src/broker/channel-activity.ts";
import { t } from "../support/suite.ts";

const MINUTE_MS = 60_000;

t.test("a message or event counts towards the busiest channels for 15 minutes", async (t) => {
  let nowMs = 5 * MINUTE_MS;
  const activity = new ChannelActivity(() => nowMs);
  activity.message("2:a");
  nowMs += 10 * MINUTE_MS;
  activity.message("2:a");
  activity.event("2:a");
  t.same(activity.busiest(5), [{ key: "2:a", messages: 2, events: 1 }]);
  nowMs += 5 * MINUTE_MS;
  t.same(activity.busiest(5), [{ key: "2:a", messages: 1, events: 1 }]);
  nowMs += 60 * MINUTE_MS;
  t.same(activity.busiest(5), []);
});

t.test(
  "a channel with more than a thousandth of the messages keeps its counter, however many other channels are used",
  async (t) => {
    const activity = new ChannelActivity(() => 0);
    for (let at = 0; at < 1000; at += 1) activity.message(`2:first-${at}`);
    for (let at = 0; at < 200_000; at += 1) {
      activity.message(`2:other-${at}`);
      if (at % 100 === 0) activity.message("2:busy");
    }
    const [busiest] = activity.busiest(1);
    t.equal(busiest?.key, "2:busy");
    t.ok((busiest?.messages ?? 0) > 1900, "almost all of its messages are counted");
    t.equal(activity.busiest(5000).length, 1000);
  },
);

t.test(
  "channels that were idle for 15 minutes leave the list and free their counters for other channels",
  async (t) => {
    let nowMs = 0;
    const activity = new ChannelActivity(() => nowMs);
    for (let at = 0; at < 1000; at += 1)
      for (let n = 0; n < 10; n += 1) {
        activity.message(`2:first-${at}`);
        activity.event(`2:first-${at}`);
      }
    for (; nowMs < 15 * MINUTE_MS; nowMs += MINUTE_MS) activity.busiest(5);
    t.same(activity.busiest(5), []);
    activity.message("2:new");
    t.same(activity.busiest(5), [{ key: "2:new", messages: 1, events: 0 }]);
  },
);

t.test("a channel that takes over a counter within the same minute starts from 0", async (t) => {
  const activity = new ChannelActivity(() => 0);
  for (let at = 0; at < 1000; at += 1) activity.event(`2:first-${at}`);
  // Each of these messages takes a credit from one counter. The counters then have no credit.
  for (let at = 0; at < 1000; at += 1) activity.message("2:new");
  activity.message("2:new");
  const counts = activity.busiest(5000).find(({ key }) => key === "2:new");
  t.same(counts, { key: "2:new", messages: 1, events: 0 });
});
