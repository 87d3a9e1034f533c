// Push notifications: the event feed reports to a backend which recipients of a message the broker
// did not reach.

import type { ChannelRef } from "../../src/broker/model.ts";
import { openJsonRpc } from "../support/jsonrpc-client.ts";
import { t } from "../support/suite.ts";
import { eventually, group, person, startWorld, type World, wire } from "./world.ts";

const AFTER_MS = 700;
const ON = {
  JINDOU_EVENTS_FEED: "on",
  JINDOU_PUSH_ENABLED: "true",
  JINDOU_PUSH_AFTER_MS: `${AFTER_MS}`,
};
const MAX_MEMBERS = 1100;
const world = await startWorld(t, { ...ON, JINDOU_PUSH_MAX_MEMBERS: `${MAX_MEMBERS}` });

interface Unreached {
  readonly id: string;
  readonly data: {
    readonly message_seq: number;
    readonly from_uid: string;
    readonly uids: readonly string[];
    readonly page: number;
    readonly pages: number;
    readonly channel_id: string;
    readonly payload: string;
  };
}

const keyOf = ({ id, type }: ChannelRef, from: string) =>
  type === 2 ? `2:${id}` : `1:${[id, from].sort().join("@")}`;

/** Returns the events of a channel. */
async function eventsOf(
  { call }: Pick<World, "call">,
  key: string,
  type = "message.unreached",
): Promise<readonly Unreached[]> {
  const path = `/events?limit=1000&types=${type}&channel=${encodeURIComponent(key)}`;
  return (await call(path)).body.events;
}

/** Waits for all pages of the message and returns them. */
async function pagesOf(key: string, seq: number): Promise<readonly Unreached[]> {
  let pages: readonly Unreached[] = [];
  await eventually(async () => {
    pages = (await eventsOf(world, key)).filter(({ data }) => data.message_seq === seq);
    return pages.length > 0 && pages.length === pages[0]?.data.pages;
  });
  return pages;
}

const uidsOf = async (key: string, seq: number) =>
  (await pagesOf(key, seq)).flatMap(({ data }) => data.uids).sort();

/** Sends a message and returns its seq. */
async function send(from: string, channel: ChannelRef, fields: object = {}): Promise<number> {
  const { status, body } = await world.send(from, channel, "hello", fields);
  if (status !== 200) throw new Error(JSON.stringify(body));
  return body.message_seq;
}

const names = (...prefixes: readonly string[]) => prefixes.map((prefix) => world.name(prefix));

t.test("members without a session need a push notification, but the sender does not", async (t) => {
  const [ann = "", ben = "", cat = ""] = names("ann", "ben", "cat");
  const team = await world.newGroup([ann, ben, cat]);
  await world.join(t, cat);
  const seq = await send(ann, team);
  const key = keyOf(team, ann);
  const [event] = await pagesOf(key, seq);
  t.strictSame(event?.data.uids, [ben], "the session of cat is in the foreground");
  const [stored] = await eventsOf(world, key, "message.stored");
  t.equal(event?.id, `${stored?.id}-u1`);
  const { uids, page, pages, ...message } = event?.data ?? {};
  t.strictSame([page, pages], [1, 1]);
  t.strictSame(message, stored?.data, "the event has the fields of the message");
  const personal = await send(ann, person(ben));
  const [direct] = await pagesOf(keyOf(person(ben), ann), personal);
  t.match(direct?.data, { uids: [ben], channel_id: ben }, "a personal message");
});

t.test("a user whose client is in the background needs a push notification", async (t) => {
  const [ann = "", ben = "", cat = "", dan = ""] = names("ann", "ben", "cat", "dan");
  const team = await world.newGroup([ann, ben, cat, dan]);
  const [benApp, catApp] = [await world.join(t, ben), await world.join(t, cat)];
  await world.register(cat, { flag: 1 });
  await world.connect(t, cat, { flag: 1 });
  await Promise.all([benApp.state(false), catApp.state(false)]);
  t.strictSame(await uidsOf(keyOf(team, ann), await send(ann, team)), [ben, dan]);
  await benApp.state(true);
  t.strictSame(await uidsOf(keyOf(team, ann), await send(ann, team)), [dan]);
});

t.test("a user who has read a message needs no push notification for it", async (t) => {
  const [ann = "", ben = "", cat = ""] = names("ann", "ben", "cat");
  const team = await world.newGroup([ann, ben, cat]);
  const app = await world.join(t, ben);
  await app.state(false);
  const [first, second] = [await send(ann, team), await send(ann, team)];
  await app.changeConversation(team, { kind: "read", seq: first });
  t.strictSame(await uidsOf(keyOf(team, ann), first), [cat]);
  t.strictSame(await uidsOf(keyOf(team, ann), second), [ben, cat], "a later message");
});

t.test(
  "a user whose client acknowledged a message needs no push notification for it",
  async (t) => {
    const [ann = "", ben = "", cat = "", dan = ""] = names("ann", "ben", "cat", "dan");
    const team = await world.newGroup([ann, ben, cat, dan]);
    await world.register(ben);
    await world.register(cat);
    const client = async (uid: string) => {
      const legacy = await openJsonRpc(t, { port: world.clientPort });
      const connect = { uid, token: `token-${uid}`, deviceFlag: 0, deviceId: `device-${uid}` };
      await legacy.request("connect", connect);
      return legacy;
    };
    const [acknowledging, silent] = [await client(ben), await client(cat)];
    silent.pause();
    await world.untilSubscribed();
    const seq = await send(ann, team);
    await acknowledging.next("recv");
    await acknowledging.request("ping");
    acknowledging.kill();
    silent.kill();
    await Promise.all([world.offline(ben), world.offline(cat)]);
    t.strictSame(await uidsOf(keyOf(team, ann), seq), [cat, dan]);
  },
);

t.test("only mentioned members of a large group need a push notification", async (t) => {
  const [ann = "", ben = "", cat = "", eve = ""] = names("ann", "ben", "cat", "eve");
  const many = Array.from({ length: MAX_MEMBERS }, (_, at) => `${ben}-${at}`);
  const mention = (...uids: readonly string[]) => ({
    payload: Buffer.from(JSON.stringify({ type: 1, content: "hi", mention: { uids } })).toString(
      "base64",
    ),
  });
  for (const team of [
    await world.newGroup([ann, ben, cat], { large: 1 }),
    await world.newGroup([ann, ben, cat, ...many]),
  ]) {
    const key = keyOf(team, ann);
    const unmentioned = await send(ann, team);
    const seq = await send(ann, team, mention(ben, ann, eve));
    t.strictSame(
      await uidsOf(key, seq),
      [ben],
      "neither the sender nor a stranger needs a push notification",
    );
    const seqs = (await eventsOf(world, key)).map(({ data }) => data.message_seq);
    t.notOk(seqs.includes(unmentioned), "a message without a mention has no event");
    const strangers = Array.from({ length: 999 }, (_, at) => `${eve}-${at}`);
    const malformed = await send(ann, team, mention("\ud800", ben));
    t.strictSame(await uidsOf(key, malformed), [ben], "a text that is not an id is ignored");
    const crowded = await send(ann, team, mention(...strangers, ben, cat));
    t.strictSame(await uidsOf(key, crowded), [ben], "the first 1,000 mentioned users are checked");
  }
});

t.test("users who need a push notification are reported in pages of 500", async (t) => {
  const [ann = ""] = names("ann");
  const members = Array.from({ length: 1001 }, (_, at) => `${ann}-${String(at).padStart(4, "0")}`);
  const team = await world.newGroup([ann, ...members]);
  const seq = await send(ann, team);
  const pages = await pagesOf(keyOf(team, ann), seq);
  t.strictSame(
    pages.map(({ data: { uids, page, pages: count } }) => [uids.length, page, count]),
    [
      [500, 1, 3],
      [500, 2, 3],
      [1, 3, 3],
    ],
  );
  t.strictSame(
    pages.map(({ id }) => id.slice(id.lastIndexOf("-"))),
    ["-u1", "-u2", "-u3"],
  );
  t.strictSame(pages.flatMap(({ data }) => data.uids).sort(), members, "each user is in one page");
});

t.test(
  "the events for push notifications report each message that has not expired once, and in the order of the messages",
  async (t) => {
    const [ann = "", ben = ""] = names("ann", "ben");
    const slow = await startWorld(t, { ...ON, JINDOU_PUSH_AFTER_MS: "1200" });
    const team = group(slow.name("group"));
    await slow.ok("/channel", { ...wire(team), subscribers: [ann, ben] });
    const sends = Array.from({ length: 30 }, (_, at) =>
      slow.send(ann, team, "x", at === 0 ? { expire: 1 } : {}),
    );
    await Promise.all(sends);
    const key = keyOf(team, ann);
    const stored = await eventsOf(slow, key, "message.stored");
    const expiring = stored.find(({ data }) => (data as { expire?: number }).expire === 1);
    await eventually(async () => (await eventsOf(slow, key)).length >= 29);
    const seqs = (await eventsOf(slow, key)).map(({ data }) => data.message_seq);
    const expected = Array.from({ length: 30 }, (_, at) => at + 1);
    const lasting = expected.filter((seq) => seq !== expiring?.data.message_seq);
    t.strictSame(seqs, lasting, "the events are in the order of the messages");
  },
);

t.test(
  "in the wukongim dialect, an offline user needs a push notification even after sending a later message, and a user with a main device online does not",
  async (t) => {
    const dialect = await startWorld(t, { ...ON, JINDOU_API_DIALECT: "wukongim" });
    const [ann, ben, cat] = ["ann", "ben", "cat"];
    const team = await dialect.newGroup([ann, ben, cat]);
    await dialect.join(t, cat, { level: 1 });
    const senders = Array.from({ length: 20 }, (_, at) => (at % 2 === 0 ? ann : ben));
    await Promise.all(senders.map((uid) => dialect.send(uid, team, "hello")));
    const key = keyOf(team, ann);
    await eventually(async () => (await eventsOf(dialect, key)).length === senders.length);
    const events = await eventsOf(dialect, key);
    for (const { data } of events)
      t.strictSame(
        data.uids,
        [data.from_uid === ann ? ben : ann],
        "the sender of a later message still needs a push notification",
      );
  },
);

t.test("no push notifications are requested while push.enabled is false", async (t) => {
  const [ann = "", ben = ""] = names("ann", "ben");
  const plain = await startWorld(t, { JINDOU_EVENTS_FEED: "on", JINDOU_PUSH_AFTER_MS: "0" });
  const app = await plain.join(t, ben);
  await app.state(false);
  await plain.send(ann, person(ben), "hello");
  const metrics = String((await plain.call("/metrics")).body);
  t.notMatch(metrics, /^jindou_push_decided_total/m, "the metric has no sample");
  t.strictSame(await eventsOf(plain, keyOf(person(ben), ann)), []);
});
