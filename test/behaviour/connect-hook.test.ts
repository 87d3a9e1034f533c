// Logins and refreshes that must pass a hook of the backend, over every wire format.

import { allow, HOOK_SECRET, startHookServer } from "../support/hook-server.ts";
import { HMAC_KEY, keyFile, mint, SECRET, type TokenOptions } from "../support/mint.ts";
import { openNative } from "../support/native-client.ts";
import { NativeClientError } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { closeCode } from "./formats/format.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import { codeOf, endingOf, person, range, startWorld, wire } from "./world.ts";

const NOT_ALLOWED = 11;
const AUTH_FAILED = 4201;
const UNAVAILABLE = 4102;
const EXPIRED = 4103;

const hook = await startHookServer(t);
const SETTINGS = {
  ...TCP_LISTENER,
  JINDOU_HOOKS_CONNECT_URL: hook.url,
  JINDOU_HOOKS_CONNECT_SECRET: HOOK_SECRET,
  JINDOU_HOOKS_CONNECT_FORWARD_HEADERS: "Cookie,x-service",
  JINDOU_HOOKS_CONNECT_STATIC_HEADERS: '[{"name":"x-service","value":"jindou"}]',
  JINDOU_HOOKS_CONNECT_TIMEOUT_MS: "30000",
  JINDOU_AUTH_CLIENTS: "token+jwt",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  JINDOU_AUTH_JWT_CLOCK_TOLERANCE_S: "0",
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
  JINDOU_LOG_LEVEL: "fatal",
};
const world = await startWorld(t, SETTINGS);
const nowS = () => Math.floor(Date.now() / 1000);
const tokenOf = (uid: string, claims: object = {}, options: TokenOptions = {}) =>
  mint(HMAC_KEY, { sub: uid, ...claims }, options);

const isWithin = (actual: number | undefined, atMost: number) =>
  actual !== undefined && actual <= atMost && actual > atMost - 30;

/** Clears the list of received questions, and makes the hook allow everything. */
function reset() {
  hook.decide = allow;
  hook.questions.length = 0;
}

/**
 * Returns `ok` if the request is accepted, `try again` if it is refused with a time to wait, or the
 * code of any other refusal.
 */
async function outcomeOf(request: Promise<unknown>): Promise<string> {
  try {
    await request;
    return "ok";
  } catch (error) {
    if (!(error instanceof NativeClientError)) throw error;
    return error.retryAfterMs > 0 ? "try again" : error.code;
  }
}

// Covers [feature: Hooks]
for (const format of FORMATS)
  t.test(
    `the connect hook accepts or refuses a login over ${format.name}, and a refusal ends the connection`,
    async (t) => {
      reset();
      const uid = world.name("ann");
      const client = await joinFormat(t, world, format, uid, { flag: 0, deviceId: "phone" });
      await client.ping();
      t.match(hook.questions, [
        {
          type: "connect",
          data: {
            ...{ uid, token: `token-${uid}`, device_flag: 0 },
            ...{ address: /127\.0\.0\.1|::1/, origin: "", format: String, headers: {} },
          },
          headers: { "x-service": "jindou" },
        },
      ]);
      const wrong = joinFormat(t, world, format, uid, { token: "wrong" });
      await refusalOf(wrong);
      t.equal(hook.questions.length, 1, "a wrong token does not reach the hook");
      hook.decide = () => ({ allow: false, message: "Your account is closed" });
      const refusal = await refusalOf(joinFormat(t, world, format, world.name("bob")));
      t.equal(refusal.reason, NOT_ALLOWED);
      if (refusal.closed !== undefined)
        t.equal(refusal.closed, closeCode(format, AUTH_FAILED), "the client must not reconnect");
      hook.decide = () => ({ allow: false, retry: true });
      await t.rejects(joinFormat(t, world, format, world.name("bob")), "for now");
    },
  );

t.test(
  "a refused client receives the hook's text and learns whether it may reconnect",
  async (t) => {
    reset();
    const uid = world.name("ann");
    await world.register(uid);
    for (const [answer, code, close] of [
      [{ allow: false, message: "Your account is closed" }, "refused_by_hook", AUTH_FAILED],
      [{ allow: true, uid: "somebody else" }, "refused_by_hook", AUTH_FAILED],
      [{ allow: false, retry: true }, "try again", UNAVAILABLE],
      [{ allow: true, device_level: 2 }, "try again", UNAVAILABLE],
      [{ allow: true, expires_at: "tomorrow" }, "try again", UNAVAILABLE],
      [{ allow: true, expires_at: 1.5 }, "try again", UNAVAILABLE],
      [{ allow: true, jd: { read: "all" } }, "try again", UNAVAILABLE],
      [{ allow: true, jd: { admin: true } }, "try again", UNAVAILABLE],
      [{ allow: 1 }, "try again", UNAVAILABLE],
    ] as const) {
      hook.decide = () => answer;
      const client = await openNative(t, { uid, token: `token-${uid}`, port: world.clientPort });
      t.equal(await outcomeOf(client.connect()), code, JSON.stringify(answer));
      t.equal((await client.closed).code, close);
      if ("message" in answer) t.equal(client.errors[0]?.message, answer.message);
    }
    hook.decide = () => ({ allow: true, uid, device_level: null, expires_at: null });
    t.equal(await outcomeOf(world.connect(t, uid)), "ok");
  },
);

t.test("the connect hook gets the handshake headers that `forwardHeaders` names", async (t) => {
  reset();
  const uid = world.name("ann");
  const headers = {
    ...{ cookie: "session=1", "x-service": "forged", authorization: "Basic x" },
    origin: "https://app.example",
  };
  await world.join(t, uid, { headers });
  t.match(hook.questions, [
    {
      data: {
        headers: { cookie: "session=1", "x-service": "forged" },
        origin: "https://app.example",
      },
    },
  ]);
  const [question] = hook.questions;
  t.equal(question?.headers["x-service"], "jindou", "the hook gets the static header");
  t.same(Object.keys(question?.data.headers), ["cookie", "x-service"]);
});

// Covers [feature: Hooks]
t.test(
  "a connect hook can make a main device secondary, but cannot make a secondary device main",
  async (t) => {
    reset();
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    hook.decide = () => ({ allow: true, device_level: 0 });
    const main = { device_flag: 1, device_level: 1 };
    const sessions = [
      await world.join(t, ann, { level: 1 }),
      await world.connect(t, ann),
      await world.connect(t, ann, { flag: 1, token: await tokenOf(ann, main) }),
      await world.connect(t, ann, { flag: 1, token: await tokenOf(ann, main) }),
    ];
    for (const session of sessions)
      t.equal((await session.ping()).kind, "pong", "no session is kicked");
    const next = await tokenOf(ann, main, { expiresInS: 1200 });
    t.ok(isWithin((await sessions[2]?.refresh(next))?.expiresInS, 1200), "its JWT is refreshed");
    await world.connect(t, ann, { flag: 1, token: next });
    t.equal((await sessions[2]?.ping())?.kind, "pong", "the refreshed session stays secondary");
    hook.decide = () => ({ allow: true, device_level: 1 });
    const secondary = [await world.join(t, ben, { level: 0 }), await world.connect(t, ben)];
    for (const session of secondary) t.equal((await session.ping()).kind, "pong");
    const first = await world.connect(t, ann);
    await world.connect(t, ann);
    t.equal(await endingOf(first), "kicked 4200", "a main device stays a main device");
  },
);

// Covers [feature: Hooks]
t.test(
  "a connect hook can end a session before its token expires, and is called again at a refresh",
  async (t) => {
    reset();
    const uid = world.name("ann");
    const expiresAtS = nowS() + 60;
    hook.decide = () => ({ allow: true, expires_at: expiresAtS });
    const byJwt = await world.connect(t, uid, { token: await tokenOf(uid) });
    t.ok(isWithin(byJwt.connack.expiresInS, 60), "the session ends before the JWT expires");
    const registered = await world.join(t, uid);
    t.ok(
      isWithin(registered.connack.expiresInS, 60),
      "the session ends although a registered token does not expire",
    );
    hook.decide = () => ({ allow: true, expires_at: nowS() + 6000 });
    const longJwt = await world.connect(t, uid, { token: await tokenOf(uid) });
    t.ok(isWithin(longJwt.connack.expiresInS, 600), "the session does not outlive the JWT");

    hook.questions.length = 0;
    const next = await tokenOf(uid, {}, { expiresInS: 1200 });
    t.ok(isWithin((await byJwt.refresh(next)).expiresInS, 1200));
    t.match(hook.questions, [{ type: "refresh", data: { uid, token: next } }]);
    hook.decide = () => ({ allow: false, message: "No longer" });
    t.equal(await outcomeOf(byJwt.refresh(next)), "refused_by_hook");
    t.equal(await outcomeOf(registered.refresh("wrong")), "unauthorized");
    t.equal(
      await outcomeOf(registered.refresh(next)),
      "unauthorized",
      "a registered token cannot be replaced by a JWT",
    );
    hook.decide = allow;
    const unlimited = await registered.refresh(`token-${uid}`);
    t.equal(unlimited.expiresInS, undefined, "the session no longer has a limit");

    hook.decide = () => ({ allow: true, expires_at: nowS() + 1 });
    const short = await world.connect(t, uid);
    t.equal(await endingOf(short), `token_expired ${EXPIRED}`);
  },
);

// Covers [feature: Hooks]
t.test(
  "a connect hook can restrict the channels of a session, but cannot add channels that the token excludes",
  async (t) => {
    reset();
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const [first, second] = [await world.newGroup([ann]), await world.newGroup([ann])];
    hook.decide = () => ({ allow: true, jd: { send: [`2:${first.id}`, `1:${ben}`] } });
    const jd = { send: ["2:*"] };
    const byJwt = await world.connect(t, ann, { token: await tokenOf(ann, { jd }) });
    const registered = await world.join(t, ann);
    for (const [channel, jwt, token] of [
      [first, "ok", "ok"],
      [second, "forbidden", "forbidden"],
      [person(ben), "forbidden", "ok"],
    ] as const) {
      t.equal(await codeOf(byJwt.send(channel, "hello")), jwt);
      t.equal(await codeOf(registered.send(channel, "hello")), token);
    }
    hook.decide = () => ({ allow: true, jd: { send: [], events: false }, expires_at: nowS() + 60 });
    await byJwt.refresh(await tokenOf(ann, { jd }, { expiresInS: 1200 }));
    t.equal(
      await codeOf(byJwt.send(first, "hello")),
      "forbidden",
      "the refreshed session has the rights of the hook",
    );
    t.equal(await codeOf(registered.send(first, "hello")), "ok", "another session is not affected");
  },
);

// Covers [feature: Hooks]
t.test(
  "the newer of two concurrent refreshes decides the session's rights, even if the hook answers the older refresh last",
  async (t) => {
    reset();
    const ann = world.name("ann");
    const group = await world.newGroup([ann]);
    const client = await world.connect(t, ann, { token: await tokenOf(ann) });
    let answerOlder = (_answer: object): void => {};
    const answered = new Promise<object>((resolve) => {
      answerOlder = resolve;
    });
    const [older, newer] = [
      await tokenOf(ann, {}, { expiresInS: 1200 }),
      await tokenOf(ann, {}, { expiresInS: 1800 }),
    ];
    hook.decide = ({ data }) =>
      data.token === older ? answered : { allow: true, jd: { send: [] }, expires_at: nowS() + 700 };
    const slow = client.refresh(older);
    t.ok(isWithin((await client.refresh(newer)).expiresInS, 700));
    answerOlder({ allow: true, jd: { send: ["*"] } });
    t.ok(isWithin((await slow).expiresInS, 700), "the session has the rights of the newer refresh");
    t.equal(await codeOf(client.send(group, "hello")), "forbidden");
  },
);

// Covers [feature: Hooks]
t.test("a JWT is verified before the connect hook is called", async (t) => {
  reset();
  const uid = world.name("ann");
  const revoked = await tokenOf(uid, {}, { ageS: 60 });
  await world.ok("/user/device_quit", { uid, device_flag: 0 });
  for (const token of [
    await tokenOf(world.name("bob")),
    await tokenOf(uid, { device_flag: 2 }),
    await tokenOf(uid, {}, { expiresInS: -60, ageS: 120 }),
    revoked,
  ])
    t.match(await outcomeOf(world.connect(t, uid, { token })), /unauthorized|token_expired/);
  t.equal(hook.questions.length, 0);
});

t.test("a connect hook that hangs delays only the logins that wait for it", async (t) => {
  reset();
  const [ann, ben, eve] = [world.name("ann"), world.name("ben"), world.name("eve")];
  const session = await world.join(t, ann);
  await world.register(eve);
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  hook.decide = async ({ data }) => {
    if (data.uid === eve) await released;
    return { allow: true };
  };
  // 40 is more than the number of logins that are checked for one network at a time.
  const hanging = range(1, 40).map(() => world.connect(t, eve));
  const other = await world.join(t, ben);
  await other.send(person(ann), "hello");
  t.equal((await session.ping()).kind, "pong");
  t.equal((await world.status(eve)).online, 0);
  release();
  await Promise.all(hanging);
  t.equal((await world.status(eve)).online, 1);
});

// Covers [feature: Hooks]
t.test("the connect hook can refuse a reader of /stream", async (t) => {
  reset();
  const uid = world.name("ann");
  const channel = await world.newGroup([uid]);
  await world.register(uid);
  await world.ok("/event", {
    ...{ client_msg_no: "s1", ...wire(channel), from_uid: uid },
    event: { type: "___TextMessageStart" },
  });
  const path = `/stream/2/${channel.id}/s1?uid=${uid}&device_flag=0&token=`;
  const read = async (token: string) => {
    const response = await fetch(`http://127.0.0.1:${world.clientPort}${path}${token}`);
    const { code = "ok", error } = (await response.json()) as { code?: string; error?: string };
    return `${response.status} ${code}${error === undefined ? "" : ` ${error}`}`;
  };
  t.equal(await read(`token-${uid}`), "200 ok");
  t.match(hook.questions, [
    { type: "connect", data: { uid, token: `token-${uid}`, format: "http", headers: {} } },
  ]);
  t.match(await read("wrong"), /^401/);
  t.equal(hook.questions.length, 1);
  hook.decide = () => ({ allow: false, message: "Your account is closed" });
  t.equal(await read(`token-${uid}`), "403 refused_by_hook Your account is closed");
  hook.decide = () => ({ allow: true, jd: { read: ["2:other"] } });
  t.match(await read(`token-${uid}`), /^403 forbidden/);
  hook.decide = () => ({ allow: true, expires_at: nowS() - 1 });
  t.match(await read(`token-${uid}`), /^401 token_expired/);
});

// Covers [feature: Hooks]
t.test(
  "with auth.clients none, only the connect hook decides which clients may connect",
  async (t) => {
    reset();
    const open = await startWorld(t, {
      ...SETTINGS,
      JINDOU_AUTH_CLIENTS: "none",
      JINDOU_AUTH_JWT_SECRET_FILE: "",
      JINDOU_AUTH_JWT_ALGORITHMS: "",
    });
    hook.decide = ({ data }) =>
      data.token === `secret of ${data.uid}` ? { allow: true } : { allow: false };
    t.equal(await outcomeOf(open.connect(t, "ann", { token: "secret of ann" })), "ok");
    t.equal(await outcomeOf(open.connect(t, "bob", { token: "secret of ann" })), "refused_by_hook");
    const stream = `http://127.0.0.1:${open.clientPort}/stream/1/ann/s1?uid=bob&token=x`;
    t.equal((await fetch(stream)).status, 403);
  },
);
