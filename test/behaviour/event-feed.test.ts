// The event feed as a backend reads it: filters, cursors and refusals.

import { tempFolder } from "../support/broker.ts";
import { t } from "../support/suite.ts";
import { type Feed, openFeed } from "./feed.ts";
import { eventually, startWorld } from "./world.ts";

const world = await startWorld(t);

interface FeedEvent {
  readonly id: string;
  readonly type: string;
  readonly data: Readonly<Record<string, unknown>>;
}

// Covers [feature: The event feed]
t.test("a backend reads a page of a channel's events and continues at its cursor", async (t) => {
  t.match(await world.call("/events"), { status: 409, body: { code: "events_off" } });
  const { body: feed } = await world.call("/events/feed", { feed: "on" });
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const to = { channel_id: ben, channel_type: 1 };
  await world.ok("/channel", { ...to, allow_stranger: 1 });
  const payload = Buffer.from('{"type":1}').toString("base64");
  for (let i = 0; i < 3; i++) await world.ok("/message/send", { ...to, from_uid: ann, payload });
  const channel = encodeURIComponent(`1:${ben}@${ann}`);
  const first = await world.call(`/events?after=${feed.cursor}&channel=${channel}&limit=2`);
  const rest = await world.call(`/events?after=${first.body.cursor}&types=message.*`);
  const events: FeedEvent[] = [...first.body.events, ...rest.body.events];
  t.strictSame(
    events.map(({ data }) => [data.message_seq, data.channel_id, data.channel_key]),
    [1, 2, 3].map((seq) => [seq, ben, `1:${[ann, ben].sort().join("@")}`]),
  );
  t.equal(new Set(events.map(({ id }) => id)).size, 3);
  t.strictSame((await world.call(`/events?after=${rest.body.cursor}`)).body.events, []);
  t.strictSame((await world.call("/events?types=user.*")).body.events, []);
});

t.test("an invalid cursor or channel is refused with 400", async (t) => {
  await world.ok("/events/feed", { feed: "on" });
  for (const after of ["x", "e!", "eAAAA", "2026-13-01T00:00:00Z"])
    t.match(await world.call(`/events?after=${after}`), { body: { code: "bad_cursor" } }, after);
  for (const channel of ["1:", "1:a@b@c", "3:g", "2:"])
    t.equal((await world.call(`/events?channel=${channel}`)).status, 400, channel);
  t.equal((await world.call("/events?after=2026-11-26T00:00:00Z")).status, 200);
});

t.test(
  "a follower of the event feed receives new events and continues after the last event that it received",
  async (t) => {
    await world.ok("/events/feed", { feed: "on" });
    const group = await world.newGroup(["ann"]);
    await world.send("ann", group, "1");
    await world.send("ann", group, "2");
    const path = `/events?limit=1&types=message.*&channel=2:${group.id}`;
    const url = `http://127.0.0.1:${world.apiPort}${path}`;
    const first = await openFeed(t, url);
    await first.untilEvents(2);
    await world.send("ann", group, "3");
    await first.untilEvents(3);
    first.leave();
    const seqsOf = (feed: Feed) => feed.events.map(({ data }) => data.data.message_seq);
    t.strictSame(seqsOf(first), [1, 2, 3]);
    const next = await openFeed(t, url, { "last-event-id": first.events[0]?.id ?? "" });
    await next.untilEvents(2);
    t.strictSame(seqsOf(next), [2, 3]);
  },
);

t.test("a cursor is refused with 410 if the event that follows it has been removed", async (t) => {
  const path = await tempFolder(t);
  const first = await startWorld(t, { JINDOU_EVENTS_FEED: "on" }, path);
  const { body } = await first.call("/events?after=now");
  await first.send("ann", await first.newGroup(["ann"]), "1");
  await first.close();
  const world = await startWorld(t, { JINDOU_EVENTS_MAX_BYTES: "1" }, path);
  const isExpired = async () => (await world.call(`/events?after=${body.cursor}`)).status === 410;
  await eventually(isExpired);
  const expired = await world.call(`/events?after=${body.cursor}`);
  t.equal(expired.body.code, "cursor_expired");
  const rest = await world.call(`/events?after=${expired.body.oldest}`);
  t.match(rest, { status: 200, body: { events: [] } }, "the reader continues at the oldest event");
});

t.test("readers that wait for events get a reply at once when the node stops", async (t) => {
  const { call, apiPort, close } = await startWorld(t, { JINDOU_EVENTS_FEED: "on" });
  const page = call("/events?after=now&wait=60");
  const feed = await openFeed(t, `http://127.0.0.1:${apiPort}/events?after=now`);
  const startMs = performance.now();
  await close();
  t.match(
    await page,
    { status: 200, body: { events: [], more: 0 } },
    "the waiting readers get a page without events",
  );
  await feed.ended;
  t.ok(performance.now() - startMs < 30_000);
});

t.test("a node with events.feed off does not start if the feed is on in the store", async (t) => {
  const path = await tempFolder(t);
  const { call, close } = await startWorld(t, { JINDOU_EVENTS_FEED: "on" }, path);
  t.equal((await call("/events")).status, 200);
  await close();
  await t.rejects(startWorld(t, { JINDOU_EVENTS_FEED: "off" }, path), { name: "StartError" });
});
