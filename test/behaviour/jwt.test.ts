// Clients that log in with a JWT, over every interface: all wire formats and /stream.

import { HMAC_KEY, keyFile, mint, SECRET, type TokenOptions } from "../support/mint.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { openFeed } from "./feed.ts";
import { closeCode } from "./formats/format.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import { codeOf, endingOf, person, receivedTexts, startWorld, textsOf, wire } from "./world.ts";

const AUTH_FAILED = 2;
const NOT_ALLOWED = 11;
const MAX_TOKEN_LENGTH = 4096;
const EXPIRED = 4103;
const ISSUER = { iss: "https://id.example/", aud: "chat" };

const SETTINGS = {
  ...TCP_LISTENER,
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  JINDOU_AUTH_JWT_ISSUER: ISSUER.iss,
  JINDOU_AUTH_JWT_AUDIENCE: ISSUER.aud,
  JINDOU_AUTH_JWT_CLOCK_TOLERANCE_S: "0",
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
};
const world = await startWorld(t, { ...SETTINGS, JINDOU_AUTH_CLIENTS: "token+jwt" });

const tokenOf = (uid: string, claims: object = {}, options: TokenOptions = {}) =>
  mint(HMAC_KEY, { ...ISSUER, sub: uid, ...claims }, options);

for (const format of FORMATS) {
  // Covers [feature: JWT]
  t.test(
    `a client that uses ${format.name} logs in with a JWT, and a wrong JWT is refused`,
    async (t) => {
      const uid = world.name("alice");
      const client = await joinFormat(t, world, format, uid, { token: await tokenOf(uid) });
      t.ok((await client.send(person(uid), "to myself")) > 0);
      const other = world.name("bob");
      const refusals = [
        await tokenOf(other),
        await tokenOf(uid, { aud: "mail" }),
        await tokenOf(uid, { device_flag: 2 }),
        await tokenOf(uid, {}, { expiresInS: -60, ageS: 120 }),
        `${await tokenOf(uid)}x`,
        `token-${uid}`,
        "",
      ];
      for (const token of refusals) {
        const refusal = await refusalOf(joinFormat(t, world, format, uid, { token }));
        t.equal(refusal.reason, AUTH_FAILED);
      }
      await client.ping();
      t.equal((await world.status(uid)).online, 1, "the first session is not affected");
    },
  );

  // Covers [feature: JWT]
  t.test(
    `a session over ${format.name} is closed with ${EXPIRED} when its JWT has expired`,
    async (t) => {
      const uid = world.name("alice");
      const token = await tokenOf(uid, {}, { expiresInS: 2 });
      const client = await joinFormat(t, world, format, uid, { token });
      await client.ping();
      t.equal((await client.closed).code, closeCode(format, EXPIRED));
      t.notOk(client.isKicked(), "the client may reconnect");
      await world.offline(uid);
      const next = await joinFormat(t, world, format, uid, { token: await tokenOf(uid) });
      await next.ping();
    },
  );

  // Covers [feature: JWT]
  t.test(
    `the claim jd limits the channels in which a session over ${format.name} sends and receives`,
    async (t) => {
      const [ann, ben, eve] = [world.name("ann"), world.name("ben"), world.name("eve")];
      const [open, hidden] = [await world.newGroup([ann, ben]), await world.newGroup([ann, ben])];
      const jd = { read: [`2:${open.id}`, `1:${ben}`], send: [`2:${open.id}`] };
      const client = await joinFormat(t, world, format, ann, { token: await tokenOf(ann, { jd }) });
      t.ok((await client.send(open, "allowed")) > 0);
      for (const channel of [hidden, person(ben)])
        t.equal((await refusalOf(client.send(channel, "refused"))).reason, NOT_ALLOWED);
      await world.send(ben, hidden, "hidden");
      await world.send(eve, person(ann), "hidden");
      for (let round = 0; round < 2; round++) {
        await world.send(ben, open, "in the group");
        await world.send(ben, person(ann), "in person");
        const messages = [await client.nextMessage(), await client.nextMessage()];
        t.same(messages.map(({ text }) => text).sort(), ["in person", "in the group"]);
      }
    },
  );

  // Covers [feature: JWT]
  t.test(`${format.name} accepts a JWT of ${MAX_TOKEN_LENGTH} characters`, async (t) => {
    const uid = world.name("alice");
    const token = await longToken(uid, MAX_TOKEN_LENGTH);
    const client = await joinFormat(t, world, format, uid, { token });
    await client.ping();
    const tooLong = `${token}x`;
    await t.rejects(
      joinFormat(t, world, format, uid, { token: tooLong }),
      "a token with one more character is refused",
    );
  });
}

/** Returns a JWT with exactly this number of characters. */
async function longToken(uid: string, length: number): Promise<string> {
  const { length: base } = await tokenOf(uid, { padding: "" });
  for (let size = Math.floor(((length - base) * 3) / 4) - 3; ; size++) {
    const token = await tokenOf(uid, { padding: "x".repeat(size) });
    if (token.length >= length) return token.slice(0, length);
  }
}

// Covers [feature: JWT]
t.test(
  "a session can read, watch and resume only channels that the claim jd of its JWT permits",
  async (t) => {
    const [ann, ben, eve] = [world.name("ann"), world.name("ben"), world.name("eve")];
    const [open, hidden] = [await world.newGroup([ann, ben]), await world.newGroup([ann, ben])];
    for (const channel of [open, hidden, person(ann)]) await world.send(ben, channel, "old");
    await world.send(eve, person(ann), "hidden");
    const command = { type: 99, cmd: "unreadClear", param: {} };
    const payload = Buffer.from(JSON.stringify(command)).toString("base64");
    const channels = { read: [`2:${open.id}*`, `1:${ben}`] };
    const token = await tokenOf(ann, { jd: { ...channels, events: false } });
    const resume = [open, hidden].map((channel) => ({ channel, lastSeq: 0 }));
    const client = await world.connect(t, ann, { token, resume });
    t.match(client.connack.resume, [{ status: "ok" }, { status: "denied" }]);
    await client.waitFor(({ messages }) => messages.length > 0, "the messages of the group");

    const start = { type: "___TextMessageStart" };
    for (const channel of [open, hidden])
      await world.ok("/event", {
        ...{ client_msg_no: "s1", ...wire(channel), from_uid: ben, event: start },
      });
    const read = { kind: "read", seq: 1 } as const;
    for (const [channel, code] of [
      [open, "ok"],
      [hidden, "forbidden"],
    ] as const) {
      const requests = [
        client.history(channel),
        client.members(channel),
        client.stream(channel, "s1"),
        client.changeConversation(channel),
        client.changeConversation(channel, read),
      ];
      for (const request of requests) t.equal(await codeOf(request), code);
    }
    t.equal(await codeOf(client.history(person(ben))), "ok");
    t.equal(await codeOf(client.history(person(eve))), "forbidden");
    for (const ask of ["presence", "watch"] as const) {
      t.equal(await codeOf(client[ask]([ben])), "ok");
      t.equal(await codeOf(client[ask]([ben, eve])), "forbidden");
    }
    t.equal(
      await codeOf(client.emit(open, "typing")),
      "forbidden",
      "the session may not send events if `events` is false",
    );
    const { conversations } = await client.conversations();
    t.same(
      conversations.map(({ channel }) => channel.id).sort(),
      [open.id, ben].sort(),
      "the list has no other conversation",
    );

    await world.ok("/message/send", { from_uid: eve, ...wire(person(ann)), payload });
    await world.ok("/message/send", { from_uid: ben, ...wire(person(ann)), payload });
    await client.waitFor(({ commands }) => commands.length > 0, "the command");
    t.same(
      client.commands.map(({ channel }) => channel.id),
      [ben],
    );
    const later = await world.newGroup([ann, ben]);
    await world.untilSubscribed();
    for (const channel of [later, hidden, open]) await world.send(ben, channel, "new");
    await client.waitFor(({ messages }) => textsOf(messages).includes("new"), "the message");
    t.notOk((await receivedTexts(client)).includes("hidden"));
    t.same(
      client.messages.filter(({ channel }) => channel.type === 2 && channel.id !== open.id),
      [],
      "no message of another group",
    );
    t.notOk(
      client.pushes.some((push) => push.kind === "event" && push.channel.id === hidden.id),
      "no event of another group",
    );

    const silent = await world.connect(t, ann, { token: await tokenOf(ann, { jd: { send: [] } }) });
    t.equal(await codeOf(silent.history(hidden)), "ok", "send does not restrict reading");
    for (const request of [
      silent.send(open, "no"),
      silent.emit(open, "typing"),
      silent.cancel(open, "s1"),
    ])
      t.equal(await codeOf(request), "forbidden");
    t.equal(await codeOf(world.connect(t, ann, { token: await tokenOf(ann, { jd: {} }) })), "ok");
  },
);

// Covers [feature: JWT]
t.test("a JWT with an invalid claim jd is refused", async (t) => {
  const uid = world.name("alice");
  const claims = [
    ...[5, "2:*", [], { read: "2:*" }, { reed: [] }, { events: 0 }, { read: [5] }],
    ...[{ send: ["3:x"] }, { send: ["2:a*b"] }, { send: Array(101).fill("*") }],
  ];
  for (const jd of claims) {
    const token = await tokenOf(uid, { jd });
    t.equal(await codeOf(world.connect(t, uid, { token })), "unauthorized", JSON.stringify(jd));
  }
  const token = await tokenOf(uid, {
    jd: { read: null, send: Array(100).fill("*"), events: true },
  });
  t.equal(await codeOf(world.connect(t, uid, { token })), "ok");
});

t.test(
  "registered tokens and JWTs are both accepted, and changing a registered token does not end sessions opened with JWTs",
  async (t) => {
    const uid = world.name("alice");
    const main = { device_flag: 1, device_level: 1 };
    const byJwt = await world.connect(t, uid, { token: await tokenOf(uid, main), flag: 1 });
    await world.register(uid, { flag: 0, level: 1 });
    const registered = await world.connect(t, uid, { flag: 0 });
    await world.register(uid, { flag: 1, level: 1, token: "first" });
    await world.register(uid, { flag: 1, level: 1, token: "second" });
    t.equal((await byJwt.ping()).kind, "pong", "the session of the JWT stays open");
    t.equal((await registered.ping()).kind, "pong");
  },
);

// Covers [decisions: Which level counts]
t.test(
  "the claims of a JWT set the level, and a CONNECT with a different device flag is refused",
  async (t) => {
    const uid = world.name("alice");
    const claims = { device_flag: 1, device_level: 1 };
    const first = await world.connect(t, uid, { token: await tokenOf(uid, claims), flag: 1 });
    t.same(await world.status(uid), { uid, online: 1, device_flag: 1 });
    const second = await world.connect(t, uid, { token: await tokenOf(uid, claims), flag: 1 });
    t.equal(
      await endingOf(first),
      "kicked 4200",
      "the level in the JWT makes the session a main session",
    );
    const secondary = { token: await tokenOf(uid), flag: 1 } as const;
    const third = await world.connect(t, uid, { ...secondary, level: 1 });
    t.equal((await second.ping()).kind, "pong", "the level in CONNECT does not count");
    t.equal((await third.ping()).kind, "pong");
    t.equal(await codeOf(world.connect(t, uid, { ...secondary, flag: 2 })), "ok");
    const otherFlag = { token: await tokenOf(uid, claims), flag: 0 } as const;
    t.equal(await codeOf(world.connect(t, uid, otherFlag)), "unauthorized");
    const system = await tokenOf("____system");
    t.equal(await codeOf(world.connect(t, "____system", { token: system })), "reserved_uid");
  },
);

t.test(
  "the claim device_id of a JWT decides which session a login replaces, and the device id in CONNECT has no effect",
  async (t) => {
    const uid = world.name("alice");
    const token = await tokenOf(uid, { device_id: "phone" });
    const first = await world.connect(t, uid, { token, deviceId: "anything" });
    await world.connect(t, uid, { token, deviceId: "something" });
    t.equal(await endingOf(first), "silent 4202");
  },
);

t.test("a client learns that its token has expired only if the signature is valid", async (t) => {
  const uid = world.name("alice");
  const expired = await tokenOf(uid, {}, { expiresInS: -60, ageS: 120 });
  t.equal(await codeOf(world.connect(t, uid, { token: expired })), "token_expired");
  t.equal(
    await codeOf(world.connect(t, uid, { token: `${expired.slice(0, -4)}AAAA` })),
    "unauthorized",
  );
});

/** Starts a stream in a new group of the user. Returns its address for viewers, without a token. */
async function newStream(uid: string): Promise<string> {
  const channel = await world.newGroup([uid]);
  await world.ok("/event", {
    ...{ client_msg_no: "s1", ...wire(channel), from_uid: uid },
    event: { type: "___TextMessageStart" },
  });
  return `http://127.0.0.1:${world.clientPort}/stream/2/${channel.id}/s1?uid=${uid}`;
}

// Covers [feature: JWT]
t.test("/stream accepts the JWT of a viewer", async (t) => {
  const uid = world.name("alice");
  const url = await newStream(uid);
  const read = async (token: string, rest = "") => {
    const response = await fetch(`${url}&token=${token}${rest}`);
    const { code = "ok" } = (await response.json()) as { code?: string };
    return `${response.status} ${code}`;
  };
  t.equal(await read(await tokenOf(uid)), "200 ok");
  t.equal(await read(await tokenOf(world.name("bob"))), "401 unauthorized");
  t.equal(await read(await tokenOf(uid, { device_flag: 2 })), "401 unauthorized");
  t.equal(await read(await tokenOf(uid, { device_flag: 2 }), "&device_flag=2"), "200 ok");
  const expired = await tokenOf(uid, {}, { expiresInS: -60, ageS: 120 });
  t.equal(await read(expired), "401 token_expired");
  const elsewhere = await tokenOf(uid, { jd: { read: ["2:elsewhere"] } });
  t.equal(await read(elsewhere), "403 forbidden");
  t.equal(await read(await tokenOf(uid, { jd: { read: ["2:*"], send: [] } })), "200 ok");
  const inHeader = await fetch(url, { headers: { "x-token": await tokenOf(uid) } });
  t.equal(inHeader.status, 200);
  t.equal(await read(await longToken(uid, 3000)), "200 ok", "a long token in the query");
});

// Covers [feature: device_quit]
t.test(
  "/user/device_quit revokes earlier JWTs of the device flag and ends the sessions and stream reads that they opened",
  async (t) => {
    const uid = world.name("alice");
    const url = await newStream(uid);
    const old = await tokenOf(uid, {}, { ageS: 5 });
    const timeless = await tokenOf(uid, {}, { ageS: undefined });
    const feedOf = (token: string) => openFeed(t, `${url}&token=${token}`);
    const web = await world.connect(t, uid, { token: old, flag: 1 });
    const app = await world.connect(t, uid, { token: old, flag: 0 });
    const feed = await feedOf(old);
    await world.ok("/user/device_quit", { uid, device_flag: 1 });
    const connect = async (token: string, flag: 0 | 1 | 2) =>
      codeOf(world.connect(t, uid, { token, flag }));
    for (let node = 0; node < 3; node++) {
      t.equal(await connect(old, 1), "unauthorized", "the JWT is refused on every node");
      t.equal(await connect(timeless, 1), "unauthorized", "without iat");
    }
    t.equal(await endingOf(web), "logged_out 4204");
    await feed.ended;
    t.equal((await feedOf(old)).status, 401);
    t.equal((await app.ping()).kind, "pong", "a session of another device flag stays open");
    t.equal(await connect(timeless, 2), "ok", "another device flag was not logged out");
    const next = await tokenOf(uid);
    t.equal(await connect(next, 1), "ok", "a later token is accepted");
    t.equal((await feedOf(next)).status, 200);
    await world.ok("/user/device_quit", { uid, device_flag: -1 });
    t.equal(await endingOf(app), "logged_out 4204");
    for (const flag of [0, 1, 2] as const) t.equal(await connect(old, flag), "unauthorized");
  },
);

t.test(
  "expired JWTs do not count as guesses, and a metric counts refused tokens by reason",
  async (t) => {
    const { clientPort } = world;
    const guarded = await startWorld(t, {
      ...SETTINGS,
      JINDOU_AUTH_CLIENTS: "jwt",
      JINDOU_AUTH_TOKEN_ATTEMPTS: "3",
    });
    t.not(guarded.clientPort, clientPort);
    const uid = "alice";
    const expired = await tokenOf(uid, {}, { expiresInS: -60, ageS: 120 });
    for (let attempt = 0; attempt < 10; attempt++)
      t.equal(await codeOf(guarded.connect(t, uid, { token: expired })), "token_expired");
    await guarded.register(uid);
    t.equal(await codeOf(guarded.connect(t, uid)), "unauthorized", "no registered token");
    await guarded.connect(t, uid, { token: await tokenOf(uid) });
    const metrics = (await guarded.call("/metrics")).body as string;
    t.match(metrics, /jindou_tokens_refused_total\{[^}]*reason="expired"[^}]*\} 10/);
    t.match(metrics, /jindou_tokens_refused_total\{[^}]*reason="malformed"[^}]*\} 1/);
  },
);
