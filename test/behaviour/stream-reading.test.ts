// GET /stream: reading the state of a stream, and following it with server-sent events, for
// backends and for viewers with their own token.

import { matchObject } from "../support/match-object.ts";
import { t } from "../support/suite.ts";
import { openFeed } from "./feed.ts";
import { createFixture, KINDS, type StreamFixture } from "./stream-fixture.ts";
import { eventually, range, startWorld, wire } from "./world.ts";

const world = await startWorld(t);

/** Returns the path of a stream. For a personal channel it contains the uid of a member. */
function pathOf({ channel, kind, alice }: StreamFixture, no: string, parameter = ""): string {
  const uid = kind === "personal" ? `uid=${alice.uid}` : "";
  const query = [uid, parameter].filter((part) => part !== "").join("&");
  return `/stream/${channel.type}/${channel.id}/${no}${query && `?${query}`}`;
}

const urlOf = (...args: Parameters<typeof pathOf>) =>
  `http://127.0.0.1:${world.apiPort}${pathOf(...args)}`;

for (const kind of KINDS) {
  // Covers [feature: GET /stream]
  t.test(
    `GET /stream returns the state, text and events of a stream in a ${kind} channel`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1", { event: { data: "meta" } });
      await fixture.addText("s1", "text ");
      await fixture.post("s1", "___ToolCallStart", "search", {
        event: { id: "c1", timestamp: 5 },
      });
      const { status, body } = await world.call(pathOf(fixture, "s1"));
      t.equal(status, 200);
      const { channel, alice } = fixture;
      const id = kind === "group" ? channel.id : [alice.uid, channel.id].sort().join("@");
      const { message_id, ...fields } = body;
      t.ok(Number.isSafeInteger(message_id));
      t.same(fields, {
        ...{ state: "active", text: "text ", next_index: 3 },
        ...{ start_data: "meta", end_data: null },
        ...{ client_msg_no: "s1", from_uid: alice.uid, message_seq: 1 },
        log: `/v1/stream/channel/${channel.type}/${id}/s1`,
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
      await fixture.post("s1", "___TextMessageEnd", "bye");
      matchObject(t, (await world.call(pathOf(fixture, "s1"))).body, {
        state: "closed",
        next_index: 4,
        end_data: "bye",
      });
    },
  );

  // Covers [feature: server-sent events]
  t.test(
    `a reader of server-sent events of a stream in a ${kind} channel gets the earlier events, the live events and the end`,
    async (t) => {
      const fixture = await createFixture(t, world, kind);
      await fixture.start("s1", { event: { data: "meta" } });
      await fixture.addText("s1", "one ");
      await fixture.addText("s1", "two ");
      const feed = await openFeed(t, urlOf(fixture, "s1"));
      t.equal(feed.status, 200);
      t.match(feed.headers.get("content-type"), /^text\/event-stream/);
      await feed.untilEvents(2);
      await fixture.post("s1", "___ToolCallStart", "search");
      await fixture.addText("s1", "three");
      await fixture.end("s1");
      await feed.ended;
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

// Covers [feature: GET /stream]
t.test(
  "GET /stream responds with 404 for an unknown stream and with 400 for a personal channel without a uid",
  async (t) => {
    const fixture = await createFixture(t, world);
    const codeOf = async (path: string) => {
      const { status, body } = await world.call(path);
      return `${status} ${body.code}`;
    };
    t.equal(await codeOf(pathOf(fixture, "none")), "404 stream_unknown");
    t.equal(await codeOf("/stream/1/bob/s1"), "400 bad_request");
    t.equal(await codeOf("/stream/3/bob/s1"), "400 bad_request");
    await world.send(fixture.alice.uid, fixture.channel, "text", {
      client_msg_no: "m1",
    });
    t.equal(await codeOf(pathOf(fixture, "m1")), "404 stream_unknown", "a message is not a stream");
    const feed = await openFeed(t, urlOf(fixture, "none"));
    t.equal(feed.status, 404);
  },
);

// Covers [feature: Last-Event-ID]
t.test("a reader continues at `from` or Last-Event-ID without a gap or repeat", async (t) => {
  const fixture = await createFixture(t, world);
  await fixture.start("s1");
  for (const n of range(1, 5)) await fixture.addText("s1", `${n} `);
  const first = await openFeed(t, urlOf(fixture, "s1", "from=3"));
  await first.untilEvents(1);
  matchObject(t, first.events, [{ id: "6", data: { index: 3, text_offset: 4, data: "3 4 5 " } }]);
  await fixture.addText("s1", "6 ");
  await first.untilEvents(2);
  first.leave();
  await fixture.addText("s1", "7 ");
  const continued = await openFeed(t, urlOf(fixture, "s1", "from=3"), {
    "last-event-id": first.events.at(-1)?.id ?? "",
  });
  await continued.untilEvents(1);
  await fixture.addText("s1", "8");
  await fixture.end("s1");
  await continued.ended;
  t.equal(first.text() + continued.text(), "3 4 5 6 7 8");
  const complete = await openFeed(t, urlOf(fixture, "s1"), {
    "last-event-id": continued.events.at(-1)?.id ?? "",
  });
  t.equal(
    complete.status,
    204,
    "a complete reader gets 204, so that an EventSource does not reconnect",
  );
  const beyond = await openFeed(t, urlOf(fixture, "s1", "from=11"));
  t.equal(beyond.status, 400);
});

// Covers [feature: server-sent events]
t.test(
  "a reader of a cancelled, replaced or ended stream gets an `end` event with the stream's state",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const [first, second] = [
      await openFeed(t, urlOf(fixture, "s1")),
      await openFeed(t, urlOf(fixture, "s1")),
    ];
    await fixture.bob.cancel(fixture.channel, "s1");
    for (const feed of [first, second]) {
      await feed.ended;
      matchObject(t, feed.events.at(-1), {
        name: "end",
        data: { state: "cancelled" },
      });
    }
    await fixture.start("s2");
    const replaced = await openFeed(t, urlOf(fixture, "s2"));
    await fixture.start("s3", { query: "?force=1" });
    await replaced.ended;
    matchObject(t, replaced.events.at(-1), {
      name: "end",
      data: { state: "cancelled" },
    });
    const late = await openFeed(t, urlOf(fixture, "s1"));
    await late.ended;
    t.same(
      late.events.map(({ name }) => name),
      ["start", "end"],
    );
  },
);

// Covers [feature: server-sent events]
t.test(
  "readers that begin at different times each get the complete text of the stream",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    const opening: ReturnType<typeof openFeed>[] = [];
    let text = "";
    for (const n of range(1, 100)) {
      const word = `${n} grün 👋 `;
      text += word;
      await fixture.addText("s1", word);
      if (n % 10 === 0) opening.push(openFeed(t, urlOf(fixture, "s1")));
    }
    await fixture.end("s1");
    for (const feed of await Promise.all(opening)) {
      await feed.ended;
      t.equal(feed.text(), text);
      const gaps = feed.events.filter(
        ({ data }, at) => data.index !== (feed.events[at - 1]?.data.next_index ?? 0),
      );
      t.same(gaps, []);
    }
  },
);

// Covers [feature: GET /stream]
t.test("a viewer with a device token can read only the streams of its own channels", async (t) => {
  const fixture = await createFixture(t, world);
  const { bob, eve } = fixture;
  await fixture.start("s1");
  await fixture.addText("s1", "text");
  const readAs = (uid: string, token: string, flag = 0) =>
    world.call(pathOf(fixture, "s1", `uid=${uid}&token=${token}&device_flag=${flag}`));
  matchObject(t, await readAs(bob.uid, `token-${bob.uid}`), {
    status: 200,
    body: { text: "text" },
  });
  matchObject(t, await readAs(bob.uid, "wrong"), {
    status: 401,
    body: { code: "unauthorized" },
  });
  matchObject(t, await readAs(bob.uid, `token-${bob.uid}`, 2), { status: 401 });
  matchObject(t, await readAs(eve.uid, `token-${eve.uid}`), {
    body: { code: "not_in_channel" },
  });
  const headers = {
    "x-uid": bob.uid,
    "x-token": `token-${bob.uid}`,
    "x-device-flag": "0",
  };
  matchObject(t, await world.call(pathOf(fixture, "s1"), undefined, headers), {
    status: 200,
  });
  const feed = await openFeed(t, urlOf(fixture, "s1"), {
    ...headers,
    origin: "https://app.example",
  });
  t.equal(feed.status, 200);
  t.equal(feed.headers.get("access-control-allow-origin"), "*");
  await fixture.end("s1");
  await feed.ended;
  t.equal(feed.text(), "text");
});

// Covers [feature: GET /stream]
t.test(
  "a viewer can send a non-ASCII uid and token in RFC 8187 headers, and the reply to the token's registration names the header to use",
  async (t) => {
    const uid = `${world.name("jos")}é`;
    const token = "gehéim ";
    const registration = { uid, token, device_flag: 0 };
    const registered = await world.call("/user/token", registration);
    t.match(registered.headers.get("jindou-warning"), /x-token\*/);
    const plain = await world.call("/user/token", {
      ...registration,
      token: "a b",
      device_flag: 1,
    });
    t.equal(plain.headers.get("jindou-warning"), null);
    const channel = await world.newGroup([uid]);
    const event = { client_msg_no: "s1", from_uid: uid, ...wire(channel) };
    await world.ok("/event", { ...event, event: { type: "___TextMessageStart" } });
    const headers = {
      "x-uid*": `UTF-8''${encodeURIComponent(uid)}`,
      "x-token*": `UTF-8''${encodeURIComponent(token)}`,
      "x-device-flag": "0",
    };
    const path = `/stream/2/${channel.id}/s1`;
    t.equal((await world.call(path, undefined, headers)).status, 200);
  },
);

// Covers [feature: server-sent events]
t.test(
  "a response with server-sent events ends without an end event when the node shuts down",
  async (t) => {
    const short = await startWorld(t);
    const fixture = await createFixture(t, short);
    await fixture.start("s1");
    const url = `http://127.0.0.1:${short.apiPort}${pathOf(fixture, "s1")}`;
    const feed = await openFeed(t, url);
    await feed.untilEvents(1);
    await short.close();
    await feed.ended;
    t.same(
      feed.events.map(({ name }) => name),
      ["start"],
      "the reader does not get an end event",
    );
  },
);

// Covers [feature: server-sent events]
t.test(
  "a reader over api.maxFollowers is refused with 503 until another reader leaves",
  async (t) => {
    const narrow = await startWorld(t, { JINDOU_API_MAX_FOLLOWERS: "1" });
    const fixture = await createFixture(t, narrow);
    await fixture.start("s1");
    const url = `http://127.0.0.1:${narrow.apiPort}${pathOf(fixture, "s1")}`;
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
      await narrow.call(pathOf(fixture, "s1")),
      { status: 200 },
      "reading without following is not limited",
    );
  },
);

// Covers [feature: GET /stream]
t.test(
  "a backend can still read a group's stream after a member was removed, and the removed member cannot",
  async (t) => {
    const fixture = await createFixture(t, world);
    await fixture.start("s1");
    await world.ok("/channel/subscriber_remove", {
      ...wire(fixture.channel),
      subscribers: [fixture.bob.uid],
    });
    const token = `uid=${fixture.bob.uid}&token=token-${fixture.bob.uid}&device_flag=0`;
    matchObject(t, await world.call(pathOf(fixture, "s1", token)), {
      body: { code: "not_in_channel" },
    });
    matchObject(t, await world.call(pathOf(fixture, "s1")), { status: 200 });
  },
);

// Covers [decisions: After removal; decisions: /user/token again]
t.test(
  "a reader whose user is removed from the group or gets a new token receives no further events",
  async (t) => {
    const fixture = await createFixture(t, world);
    const { alice, bob, channel } = fixture;
    await fixture.start("s1");
    const feedOf = async (uid: string) => {
      const query = `uid=${uid}&token=token-${uid}&device_flag=0`;
      const feed = await openFeed(t, urlOf(fixture, "s1", query));
      await feed.untilEvents(1);
      return feed;
    };
    const feeds = await Promise.all([alice, bob].map(({ uid }) => feedOf(uid)));
    await fixture.addText("s1", "for members ");
    await world.ok("/channel/subscriber_remove", {
      ...wire(channel),
      subscribers: [bob.uid],
    });
    const token = { token: "another", device_flag: 0, device_level: 0 };
    await world.ok("/user/token", { uid: alice.uid, ...token });
    await fixture.addText("s1", "secret");
    for (const feed of feeds) {
      await feed.ended;
      t.equal(feed.text(), "for members ");
    }
  },
);
