// GET /stream: how a stream stands, and following it by server-sent events, for backends and for
// viewers with a token of their own.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { openFeed } from "./feed.ts";
import { KINDS, type Stage, startStage } from "./stages.ts";
import { eventually, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

/** The path of a stream as `uid` may ask for it; a group needs nobody. */
function pathOf({ channel, kind, alice }: Stage, no: string, more = ""): string {
  const uid = kind === "personal" ? `uid=${alice.uid}` : "";
  const query = [uid, more].filter((part) => part !== "").join("&");
  return `/stream/${channel.type}/${channel.id}/${no}${query && `?${query}`}`;
}

const urlOf = (...args: Parameters<typeof pathOf>) =>
  `http://127.0.0.1:${world.apiPort}${pathOf(...args)}`;

for (const kind of KINDS) {
  t.test(
    `GET /stream tells how a stream stands, in a ${kind} channel [issue: GET /stream]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1", { event: { data: "meta" } });
      await stage.say("s1", "text ");
      await stage.post("s1", "___ToolCallStart", "search", {
        event: { id: "c1", timestamp: 5 },
      });
      const { status, body } = await world.call(pathOf(stage, "s1"));
      t.equal(status, 200);
      const { message_id, ...rest } = body;
      t.ok(Number.isSafeInteger(message_id));
      t.same(rest, {
        ...{ state: "active", text: "text ", next_index: 3 },
        ...{ start_data: "meta", end_data: null },
        ...{ client_msg_no: "s1", from_uid: stage.alice.uid, message_seq: 1 },
        events: [
          {
            index: 2,
            text_offset: 5,
            id: "c1",
            type: "___ToolCallStart",
            data: "search",
            timestamp: 5,
          },
        ],
      });
      await stage.post("s1", "___TextMessageEnd", "bye");
      matchObject(t, (await world.call(pathOf(stage, "s1"))).body, {
        state: "closed",
        next_index: 4,
        end_data: "bye",
      });
    },
  );

  t.test(
    `server-sent events: what there is, then live, then the end, in a ${kind} channel [issue: server-sent events]`,
    async (t) => {
      const stage = await startStage(t, world, kind);
      await stage.start("s1", { event: { data: "meta" } });
      await stage.say("s1", "one ");
      await stage.say("s1", "two ");
      const feed = await openFeed(t, urlOf(stage, "s1"));
      t.equal(feed.status, 200);
      t.match(feed.headers.get("content-type"), /^text\/event-stream/);
      await feed.has(2);
      await stage.post("s1", "___ToolCallStart", "search");
      await stage.say("s1", "three");
      await stage.end("s1");
      await feed.over;
      t.same(
        feed.events.map(({ name, id }) => `${name} ${id}`),
        ["start 1", "content 3", "tool 4", "content 5", "end 6"],
      );
      t.equal(feed.text(), "one two three");
      matchObject(t, feed.events[0]?.data, {
        index: 0,
        next_index: 1,
        text_offset: 0,
        data: "meta",
        state: "active",
      });
      matchObject(t, feed.events[1]?.data, {
        index: 1,
        next_index: 3,
        text_offset: 0,
      });
      matchObject(t, feed.events.at(-1)?.data, {
        index: 5,
        state: "closed",
        text_offset: 13,
      });
    },
  );
}

t.test(
  "GET /stream: what is not there is 404, a personal channel without its user 400 [issue: GET /stream]",
  async (t) => {
    const stage = await startStage(t, world);
    const codes = async (path: string) => {
      const { status, body } = await world.call(path);
      return `${status} ${body.code}`;
    };
    t.equal(await codes(pathOf(stage, "none")), "404 stream_unknown");
    t.equal(await codes("/stream/1/bob/s1"), "400 bad_request");
    t.equal(await codes("/stream/3/bob/s1"), "400 bad_request");
    await world.send(stage.alice.uid, stage.channel, "text", {
      client_msg_no: "m1",
    });
    t.equal(await codes(pathOf(stage, "m1")), "404 stream_unknown", "a message is no stream");
    const feed = await openFeed(t, urlOf(stage, "none"));
    t.equal(feed.status, 404);
  },
);

t.test(
  "from and Last-Event-ID: a reader goes on where it was, without a gap or a repeat [issue: Last-Event-ID]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    for (const n of range(1, 5)) await stage.say("s1", `${n} `);
    const first = await openFeed(t, urlOf(stage, "s1", "from=3"));
    await first.has(1);
    matchObject(t, first.events, [{ id: "6", data: { index: 3, text_offset: 4, data: "3 4 5 " } }]);
    await stage.say("s1", "6 ");
    await first.has(2);
    first.leave();
    await stage.say("s1", "7 ");
    const again = await openFeed(t, urlOf(stage, "s1", "from=3"), {
      "last-event-id": first.events.at(-1)?.id ?? "",
    });
    await again.has(1);
    await stage.say("s1", "8");
    await stage.end("s1");
    await again.over;
    t.equal(first.text() + again.text(), "3 4 5 6 7 8");
    const level = await openFeed(t, urlOf(stage, "s1"), {
      "last-event-id": again.events.at(-1)?.id ?? "",
    });
    t.equal(level.status, 204, "there is nothing more: an EventSource stays away");
    const beyond = await openFeed(t, urlOf(stage, "s1", "from=11"));
    t.equal(beyond.status, 400);
  },
);

t.test(
  "a followed stream that is stopped, replaced or read after its end closes with its state [issue: server-sent events]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    const [stopped, personal] = [
      await openFeed(t, urlOf(stage, "s1")),
      await openFeed(t, urlOf(stage, "s1")),
    ];
    await stage.bob.cancel(stage.channel, "s1");
    for (const feed of [stopped, personal]) {
      await feed.over;
      matchObject(t, feed.events.at(-1), {
        name: "end",
        data: { state: "cancelled" },
      });
    }
    await stage.start("s2");
    const replaced = await openFeed(t, urlOf(stage, "s2"));
    await stage.start("s3", { query: "?force=1" });
    await replaced.over;
    matchObject(t, replaced.events.at(-1), {
      name: "end",
      data: { state: "cancelled" },
    });
    const late = await openFeed(t, urlOf(stage, "s1"));
    await late.over;
    t.same(
      late.events.map(({ name }) => name),
      ["start", "end"],
    );
  },
);

t.test(
  "many readers of one stream, coming at any time, each have its whole text [issue: server-sent events]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    const opening: ReturnType<typeof openFeed>[] = [];
    let text = "";
    for (const n of range(1, 100)) {
      const word = `${n} grün 👋 `;
      text += word;
      await stage.say("s1", word);
      if (n % 10 === 0) opening.push(openFeed(t, urlOf(stage, "s1")));
    }
    await stage.end("s1");
    for (const feed of await Promise.all(opening)) {
      await feed.over;
      t.equal(feed.text(), text);
      const gaps = feed.events.filter(
        ({ data }, at) => data.index !== (feed.events[at - 1]?.data.next_index ?? 0),
      );
      t.same(gaps, []);
    }
  },
);

t.test(
  "a viewer with the token of a device reads the streams of its own channels and no others [issue: GET /stream]",
  async (t) => {
    const stage = await startStage(t, world);
    const { bob, eve } = stage;
    await stage.start("s1");
    await stage.say("s1", "text");
    const asks = (uid: string, token: string, flag = 0) =>
      world.call(pathOf(stage, "s1", `uid=${uid}&token=${token}&device_flag=${flag}`));
    matchObject(t, await asks(bob.uid, `token-${bob.uid}`), {
      status: 200,
      body: { text: "text" },
    });
    matchObject(t, await asks(bob.uid, "wrong"), {
      status: 401,
      body: { code: "unauthorized" },
    });
    matchObject(t, await asks(bob.uid, `token-${bob.uid}`, 2), { status: 401 });
    matchObject(t, await asks(eve.uid, `token-${eve.uid}`), {
      body: { code: "not_in_channel" },
    });
    const headers = {
      "x-uid": bob.uid,
      "x-token": `token-${bob.uid}`,
      "x-device-flag": "0",
    };
    matchObject(t, await world.call(pathOf(stage, "s1"), undefined, headers), {
      status: 200,
    });
    const feed = await openFeed(t, urlOf(stage, "s1"), {
      ...headers,
      origin: "https://app.example",
    });
    t.equal(feed.status, 200);
    t.equal(feed.headers.get("access-control-allow-origin"), "*");
    await stage.end("s1");
    await feed.over;
    t.equal(feed.text(), "text");
  },
);

t.test("readers that follow end with the node, in order [issue: server-sent events]", async (t) => {
  const short = await startWorld(t);
  const stage = await startStage(t, short);
  await stage.start("s1");
  const url = `http://127.0.0.1:${short.apiPort}${pathOf(stage, "s1")}`;
  const feed = await openFeed(t, url);
  await feed.has(1);
  await short.close();
  await feed.over;
  t.same(
    feed.events.map(({ name }) => name),
    ["start"],
    "not the end of the stream",
  );
});

t.test(
  "more followers than allowed are refused 503, and places come free [issue: server-sent events]",
  async (t) => {
    const narrow = await startWorld(t, { JINDOU_API_MAX_FOLLOWERS: "1" });
    const stage = await startStage(t, narrow);
    await stage.start("s1");
    const url = `http://127.0.0.1:${narrow.apiPort}${pathOf(stage, "s1")}`;
    const first = await openFeed(t, url);
    t.equal(first.status, 200);
    t.equal((await openFeed(t, url)).status, 503);
    first.leave();
    await eventually(async () => {
      const next = await openFeed(t, url);
      next.leave();
      return next.status === 200;
    });
    matchObject(
      t,
      await narrow.call(pathOf(stage, "s1")),
      { status: 200 },
      "reading is not following",
    );
  },
);

t.test(
  "following a stream of a group whose member was removed needs the management right, not membership [issue: GET /stream]",
  async (t) => {
    const stage = await startStage(t, world);
    await stage.start("s1");
    await world.ok("/channel/subscriber_remove", {
      ...wire(stage.channel),
      subscribers: [stage.bob.uid],
    });
    const token = `uid=${stage.bob.uid}&token=token-${stage.bob.uid}&device_flag=0`;
    matchObject(t, await world.call(pathOf(stage, "s1", token)), {
      body: { code: "not_in_channel" },
    });
    matchObject(t, await world.call(pathOf(stage, "s1")), { status: 200 });
  },
);

t.test(
  "a viewer who is removed, or whose token is another one, gets nothing more [decisions: After removal; decisions: /user/token again]",
  async (t) => {
    const stage = await startStage(t, world);
    const { alice, bob, channel } = stage;
    await stage.start("s1");
    const feedOf = async (uid: string) => {
      const known = `uid=${uid}&token=token-${uid}&device_flag=0`;
      const feed = await openFeed(t, urlOf(stage, "s1", known));
      await feed.has(1);
      return feed;
    };
    const feeds = await Promise.all([alice, bob].map(({ uid }) => feedOf(uid)));
    await stage.say("s1", "for members ");
    await world.ok("/channel/subscriber_remove", {
      ...wire(channel),
      subscribers: [bob.uid],
    });
    const token = { token: "another", device_flag: 0, device_level: 0 };
    await world.ok("/user/token", { uid: alice.uid, ...token });
    await stage.say("s1", "secret");
    for (const feed of feeds) {
      await feed.over;
      t.equal(feed.text(), "for members ");
    }
  },
);
