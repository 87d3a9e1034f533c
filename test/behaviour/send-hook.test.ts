// Messages of clients that must pass a hook of the backend, over every wire format, and hooks that
// fail.

import type { Test } from "tap";
import { deferred } from "../../src/lib/deferred.ts";
import { allow, HOOK_SECRET, type HookQuestion, startHookServer } from "../support/hook-server.ts";
import { HMAC_KEY, keyFile, mint, SECRET } from "../support/mint.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import { eventually, group, person, range, startWorld, textsOf, untilReceived } from "./world.ts";

const NOT_ALLOWED = 11;
const hook = await startHookServer(t);
const target = await startHookServer(t);
const HOOK_SETTINGS = {
  JINDOU_HOOKS_SEND_URL: hook.url,
  JINDOU_HOOKS_SEND_SECRET: HOOK_SECRET,
  JINDOU_HOOKS_SEND_CHANNELS: "2:group-*,1:*",
  JINDOU_HOOKS_SEND_TIMEOUT_MS: "30000",
  JINDOU_LOG_LEVEL: "fatal",
};
const world = await startWorld(t, {
  ...{ ...TCP_LISTENER, ...HOOK_SETTINGS },
  JINDOU_AUTH_CLIENTS: "token+jwt",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  JINDOU_HOOKS_SEND_STATIC_HEADERS: '[{"name":"X-Service","value":"jindou"}]',
});

const encoded = (payload: unknown) => Buffer.from(JSON.stringify(payload)).toString("base64");
const textIn = (question: HookQuestion) =>
  JSON.parse(Buffer.from(question.data.payload, "base64").toString()).content;
const replaced = (content: string) => ({ allow: true, payload: encoded({ type: 1, content }) });

/** Clears the list of received questions, and makes the hook allow everything. */
function reset() {
  hook.decide = allow;
  hook.questions.length = 0;
}

/**
 * Makes the hook withhold its answer to a question that `holds` selects (by default, any question)
 * until `release` is called. `questioned` resolves when the first such question arrives.
 */
function holdAnswer(holds: (question: HookQuestion) => boolean = () => true) {
  const questioned = deferred<void>();
  const held = { questioned: questioned.promise, release: () => {} };
  hook.decide = (question) =>
    holds(question)
      ? new Promise((answer) => {
          held.release = () => answer({ allow: true });
          questioned.resolve();
        })
      : { allow: true };
  return held;
}

async function pair(t: Test) {
  reset();
  const [ann, ben] = [world.name("ann"), world.name("ben")];
  const channel = await world.newGroup([ann, ben]);
  const sender = await world.join(t, ann);
  const member = await world.join(t, ben);
  await world.untilSubscribed();
  return { ann, ben, channel, sender, member };
}

/**
 * Returns `ok` if the send is accepted, `try again` if it is refused with a time to wait, or the
 * code of any other refusal.
 */
async function outcomeOf(send: Promise<unknown>): Promise<string> {
  try {
    await send;
    return "ok";
  } catch (error) {
    if (!(error instanceof NativeClientError)) throw error;
    return error.retryAfterMs > 0 ? "try again" : error.code;
  }
}

const seqOf = async (client: NativeClient, channel: ReturnType<typeof group>) =>
  (await client.history(channel)).headSeq;

// Covers [feature: Hooks]
for (const format of FORMATS)
  t.test(
    `a message over ${format.name} is stored if the send hook accepts or replaces it, and not if the hook refuses it`,
    async (t) => {
      reset();
      const uid = world.name("ann");
      const channel = await world.newGroup([uid]);
      const client = await joinFormat(t, world, format, uid);
      t.equal(await client.send(channel, "fine", { clientMsgNo: "n-1" }), 1);
      t.match(hook.questions, [
        {
          type: "send",
          data: {
            ...{ from_uid: uid, channel_id: channel.id, channel_type: 2, client_msg_no: "n-1" },
            payload: encoded({ type: 1, content: "fine" }),
          },
          headers: { "x-service": "jindou", "content-type": "application/json" },
        },
      ]);
      hook.decide = () => ({ allow: false, message: "Mind your language" });
      const refusal = await refusalOf(client.send(person(world.name("ben")), "rude"));
      t.equal(refusal.reason, NOT_ALLOWED);
      hook.decide = () => replaced("cleaned");
      t.equal(await client.send(channel, "dirty"), 2, "the refused message has no seq");
    },
  );

t.test("the sender of a message that the send hook refuses gets the hook's text", async (t) => {
  const { sender, channel, member } = await pair(t);
  const long = `no\u0000 \ud83d\ude00 ${"x".repeat(300)}`;
  const texts = [
    ["Mind your language", "Mind your language"],
    ["", "Refused by the backend"],
    [undefined, "Refused by the backend"],
    [5, "Refused by the backend"],
    [long, Array.from(long.replace("\u0000", " ")).slice(0, 200).join("").trim()],
  ] as const;
  for (const [message, shown] of texts) {
    hook.decide = () => ({ allow: false, message });
    const error = await sender.send(channel, "rude").catch((cause: unknown) => cause);
    t.match(error, { code: "refused_by_hook", message: `refused_by_hook: ${shown}` });
  }
  hook.decide = () => ({ allow: false, retry: true });
  t.equal(await outcomeOf(sender.send(channel, "later")), "try again");
  hook.decide = allow;
  await sender.send(channel, "fine");
  t.same(await untilReceived(member, 1), ["fine"]);
});

// Covers [feature: Hooks]
t.test(
  "receivers get the payload that the send hook returns, and a retry is recognised by the payload that the client sent",
  async (t) => {
    const { sender, channel, member } = await pair(t);
    hook.decide = (question) => replaced(`${textIn(question)} (checked)`);
    const options = { clientMsgNo: "n-1" };
    const first = await sender.send(channel, "one", options);
    const retry = await sender.send(channel, "one", options);
    t.match(retry, { messageId: first.messageId, messageSeq: 1, repeated: true });
    t.equal(hook.questions.length, 1, "the hook is not called for the retry");
    for (const other of ["two", "one (checked)"])
      t.equal(
        await outcomeOf(sender.send(channel, other, options)),
        "client_msg_no_reused",
        "a different payload is refused without calling the hook",
      );
    t.equal(hook.questions.length, 1);
    const unstored = { clientMsgNo: "n-2", noPersist: true };
    const pushed = await sender.send(channel, "gone", unstored);
    t.match(await sender.send(channel, "gone", unstored), {
      ...{ messageId: pushed.messageId, repeated: true },
    });
    t.equal(await outcomeOf(sender.send(channel, "other", unstored)), "client_msg_no_reused");
    t.equal(hook.questions.length, 2);
    t.same(await untilReceived(member, 2), ["one (checked)", "gone (checked)"]);
    t.same(textsOf((await member.history(channel)).messages), ["one (checked)"]);
    const { body } = await world.send(sender.uid, channel, "one", { client_msg_no: "n-1" });
    t.match(
      body,
      { message_id: first.messageId, repeated: 1 },
      "a retry over HTTP is recognised as well",
    );
    const reused = await world.send(sender.uid, channel, "one (checked)", {
      client_msg_no: "n-1",
    });
    t.equal(reused.status, 409);
  },
);

t.test("the send hook is called for a command, and not for a retry of the command", async (t) => {
  const { sender, channel, member } = await pair(t);
  const command = { type: 99, cmd: "unreadClear", param: { n: 1 } };
  hook.decide = () => ({ allow: true, payload: encoded({ ...command, param: { n: 2 } }) });
  const options = { clientMsgNo: "n-1" };
  const first = await sender.send(channel, command, options);
  t.match(await sender.send(channel, command, options), {
    ...{ messageId: first.messageId, repeated: true },
  });
  const other = { ...command, param: { n: 2 } };
  t.equal(await outcomeOf(sender.send(channel, other, options)), "client_msg_no_reused");
  t.equal(hook.questions.length, 1);
  await member.waitFor(() => member.commands.length > 0, "the command");
  const [received] = member.commands;
  t.same(JSON.parse(new TextDecoder().decode(received?.message.payload)), other);
});

// Covers [feature: Hooks]
t.test("a message is refused if the send hook returns an invalid payload for it", async (t) => {
  const { sender, channel } = await pair(t);
  /** Returns the metric lines of each node about questions that were answered with `allow`. */
  const allowedLines = async () => {
    const pages = await Promise.all(range(1, 3).map(() => world.call("/metrics")));
    const lines = pages.flatMap(({ body }) => String(body).split("\n"));
    return lines
      .filter((line) =>
        line.startsWith('jindou_hook_requests_total{hook="send",outcome="allowed"}'),
      )
      .sort();
  };
  const allowed = await allowedLines();
  for (const payload of [
    encoded("no object"),
    encoded({ content: "no type" }),
    encoded({ type: 1, content: "x".repeat(65_536) }),
    encoded({ type: 99, cmd: "unreadClear", param: {} }),
    Buffer.from("no JSON").toString("base64"),
    "",
  ]) {
    hook.decide = () => ({ allow: true, payload });
    t.equal(await outcomeOf(sender.send(channel, "fine")), "refused_by_hook", payload.slice(0, 40));
  }
  t.equal(await seqOf(sender, channel), 0, "nothing is stored");
  t.strictSame(await allowedLines(), allowed, "no question is counted as answered with allow");
});

// Covers [feature: Hooks]
t.test(
  "the send hook is called only for messages from clients that may send, and only in the configured channels",
  async (t) => {
    const { ann, sender, channel, member } = await pair(t);
    hook.decide = () => ({ allow: false });
    await world.send(ann, channel, "from the backend");
    await sender.emit(channel, "typing");
    const event = { from_uid: ann, channel_id: channel.id, channel_type: 2 };
    for (const type of ["___TextMessageStart", "___TextMessageContent", "___TextMessageEnd"])
      await world.ok("/event", { ...event, client_msg_no: "s-1", event: { type, data: "x" } });
    const free = group(world.name("free"));
    await world.ok("/channel", { channel_id: free.id, channel_type: 2, subscribers: [ann] });
    await sender.send(free, "not covered");
    const stranger = await world.newGroup([]);
    t.equal(await outcomeOf(sender.send(stranger, "not a member")), "not_subscriber");
    t.equal(await outcomeOf(sender.send(channel, "x".repeat(70_000))), "too_large");
    t.equal(hook.questions.length, 0, "the hook is not called");
    t.equal((await untilReceived(member, 2))[0], "from the backend");
    t.equal(await outcomeOf(sender.send(channel, "covered")), "refused_by_hook");
  },
);

// Covers [feature: Hooks]
t.test(
  "a session's messages keep their order even if the send hook replies in a different order",
  async (t) => {
    const { sender, channel, member } = await pair(t);
    const waiting: (() => void)[] = [];
    hook.decide = (question) =>
      new Promise((resolve) => {
        const isRefused = textIn(question) === "3";
        waiting.push(() => resolve(isRefused ? { allow: false } : { allow: true }));
        // The hook answers in the reverse order of the questions.
        if (waiting.length === texts.length) for (const answer of waiting.toReversed()) answer();
      });
    const texts = range(1, 12).map(String);
    const sends = texts.map((text) =>
      outcomeOf(
        sender.send(
          channel,
          text === "6" ? { type: 99, cmd: "six", param: {}, content: "6" } : text,
          { clientMsgNo: text },
        ),
      ),
    );
    const results = await Promise.all(sends);
    t.same(results, [...results.slice(0, 2).fill("ok"), "refused_by_hook", ...Array(9).fill("ok")]);
    const stored = texts.filter((text) => text !== "3" && text !== "6");
    t.same(await untilReceived(member, stored.length), stored);
    t.same(textsOf((await member.history(channel)).messages), stored);
  },
);

// Covers [feature: Hooks]
t.test("a send hook that hangs delays only the messages that it checks", async (t) => {
  const { sender, channel, member } = await pair(t);
  const other = await world.join(t, world.name("eve"));
  const free = group(world.name("free"));
  await world.ok("/channel", { channel_id: free.id, channel_type: 2, subscribers: [sender.uid] });
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  hook.decide = async (question) => {
    if (question.data.from_uid === sender.uid) await released;
    return { allow: true };
  };
  // 40 is more than the number of messages that the hook is asked about for one user at a time.
  const hanging = range(1, 40).map((number) => sender.send(channel, `slow ${number}`));
  await other.send(person(sender.uid), "another user");
  await sender.send(free, "another channel");
  await sender.ping();
  t.notOk(member.messages.length, "the messages wait for the hook");
  release();
  await Promise.all(hanging);
  t.equal((await untilReceived(member, 40)).length, 40);
});

// Covers [feature: Hooks]
t.test("two users who send many messages cannot fill the queue of the send hook", async (t) => {
  reset();
  const small = await startWorld(t, { ...HOOK_SETTINGS, JINDOU_HOOKS_SEND_MAX_IN_FLIGHT: "5" });
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  hook.decide = async (question) => {
    if (question.data.from_uid !== "eve") await released;
    return { allow: true };
  };
  const [ann, ben, eve] = [
    await small.join(t, "ann"),
    await small.join(t, "ben"),
    await small.join(t, "eve"),
  ];
  const sendMany = (client: NativeClient) =>
    range(1, 100).map((number) => outcomeOf(client.send(person(`user-${number}`), "slow")));
  const sends = [ann, ben].flatMap(sendMany);
  await Promise.all([ann.ping(), ben.ping()]);
  t.equal(await outcomeOf(eve.send(person("ann"), "fine")), "ok", "a third user may send");
  release();
  const outcomes = await Promise.all(sends);
  const accepted = outcomes.filter((outcome) => outcome === "ok");
  t.ok(accepted.length >= 42, "each user has a request in progress and 20 waiting messages");
  t.ok(outcomes.includes("try again"), "messages beyond a user's share are refused");
});

t.test(
  "the rights of a session are checked again after the send hook accepts its message",
  async (t) => {
    const { ann, channel, member } = await pair(t);
    let expiresInS = 600;
    const tokenWith = (jd: object) => {
      expiresInS += 60;
      return mint(HMAC_KEY, { sub: ann, jd }, { expiresInS });
    };
    const client = await world.connect(t, ann, { token: await tokenWith({ send: ["*"] }) });
    for (const payload of ["a message", { type: 99, cmd: "a command", param: {} }]) {
      const held = holdAnswer();
      const waiting = outcomeOf(client.send(channel, payload));
      await held.questioned;
      await client.refresh(await tokenWith({ send: [] }));
      held.release();
      t.equal(await waiting, "forbidden");
      await client.refresh(await tokenWith({ send: ["*"] }));
    }
    t.equal(await seqOf(member, channel), 0);
  },
);

t.test(
  "a message or command that waits for the send hook is not stored if its user is logged out or kicked meanwhile",
  async (t) => {
    const { ann, channel, member } = await pair(t);
    const device = { uid: ann, device_flag: 0, device_level: 1 };
    const ends: readonly [code: number, end: () => Promise<unknown>][] = [
      [4200, () => world.join(t, ann, { level: 1 })],
      [4203, () => world.ok("/user/token", { ...device, token: "another" })],
      [4204, () => world.ok("/user/device_quit", device)],
    ];
    let sent = 0;
    for (const [code, end] of ends)
      for (const payload of ["a message", { type: 99, cmd: "a command", param: {} }]) {
        const client = await world.join(t, ann, { level: 1 });
        const held = holdAnswer();
        client.send(channel, payload).catch(() => undefined);
        await held.questioned;
        await end();
        t.equal((await client.closed).code, code);
        held.release();
        hook.decide = allow;
        await member.send(channel, "a later message");
        sent += 1;
        t.equal(await seqOf(member, channel), sent, "only the later message is stored");
      }
    t.equal(member.commands.length, 0);
  },
);

t.test(
  "the permission and recipients of a command are determined after it has waited for earlier messages",
  async (t) => {
    const { ann, ben, sender, channel, member } = await pair(t);
    const eve = world.name("eve");
    const newcomer = await world.join(t, eve);
    const held = holdAnswer((question) => textIn(question) === "slow");
    const command = (cmd: string) => ({ type: 99, cmd, param: {}, content: cmd });
    const change = (path: string, uid: string) =>
      world.ok(path, { channel_id: channel.id, channel_type: 2, subscribers: [uid] });
    const slow = () => outcomeOf(sender.send(channel, "slow"));

    const first = slow();
    const waiting = outcomeOf(sender.send(channel, command("first")));
    await held.questioned;
    await eventually(() => hook.questions.length === 2);
    await change("/channel/subscriber_remove", ben);
    await change("/channel/subscriber_add", eve);
    held.release();
    t.same([await first, await waiting], ["ok", "ok"]);
    await eventually(() => newcomer.commands.length === 1);
    t.equal(member.commands.length, 0, "a user who was removed during the wait gets no command");

    const again = slow();
    const refused = outcomeOf(sender.send(channel, command("second")));
    await eventually(() => hook.questions.length === 4);
    await change("/channel/subscriber_remove", ann);
    held.release();
    t.same([await again, await refused], ["not_subscriber", "not_subscriber"]);
    t.equal(newcomer.commands.length, 1);
  },
);

t.test(
  "the permission to send is checked again after the send hook accepts a message",
  async (t) => {
    const { ann, sender, channel, member } = await pair(t);
    const held = holdAnswer();
    sender.send(channel, "late").catch(() => undefined);
    await held.questioned;
    await world.ok("/channel/subscriber_remove", {
      ...{ channel_id: channel.id, channel_type: 2, subscribers: [ann] },
    });
    held.release();
    hook.decide = allow;
    t.equal(await outcomeOf(sender.send(channel, "later")), "not_subscriber");
    t.equal(await seqOf(member, channel), 0, "the permission is checked again after the hook");
  },
);

// Covers [feature: Hooks]
t.test(
  "with onFailure deny, a message is refused temporarily if the send hook fails or responds with a redirect",
  async (t) => {
    const { sender, channel } = await pair(t);
    const raw = (body: string | Buffer, status = 200, headers = {}) => {
      hook.decide = (_question, response) => {
        response.writeHead(status, headers).end(body);
        return undefined;
      };
    };
    const allowed = JSON.stringify({ allow: true });
    const failures: (() => void)[] = [
      () => raw("rubbish"),
      () => raw(""),
      () => raw("[]"),
      () => raw("null"),
      () => raw('{"allow":"yes"}'),
      () => raw("{}"),
      () => raw('{"allow":true,"payload":{"type":1}}'),
      () => raw('{"allow":true,"payload":"???"}'),
      () => raw(`{"allow":true,"padding":"${"x".repeat(1_048_576)}"}`),
      () => raw(Buffer.from([0x7b, 0xff, 0x7d])),
      () => raw(allowed, 500),
      () => raw(allowed, 204),
      () => raw(allowed, 302, { location: target.url }),
      () => raw(allowed, 307, { location: target.url }),
      () => {
        hook.decide = (_question, response) => {
          response.destroy();
          return undefined;
        };
      },
      () => {
        hook.decide = (_question, response) => {
          response.write('{"allow":');
          return undefined;
        };
      },
    ];
    for (const [at, fail] of failures.slice(0, -1).entries()) {
      fail();
      t.equal(await outcomeOf(sender.send(channel, "fine")), "try again", `failure ${at}`);
      hook.decide = allow;
      t.equal(await outcomeOf(sender.send(channel, "fine")), "ok");
    }
    t.equal(target.questions.length, 0, "no redirect is followed");
    const short = await startWorld(t, { ...HOOK_SETTINGS, JINDOU_HOOKS_SEND_TIMEOUT_MS: "200" });
    const ann = await short.join(t, "ann");
    failures.at(-1)?.();
    t.equal(await outcomeOf(ann.send(person("ben"), "half an answer")), "try again");
    hook.decide = () => undefined;
    t.equal(await outcomeOf(ann.send(person("ben"), "no answer")), "try again");
    hook.decide = allow;
    // On a busy machine, even an immediate reply of the hook may arrive after the time-out.
    await eventually(async () => (await outcomeOf(ann.send(person("ben"), "fine"))) === "ok");
  },
);

// Covers [feature: Hooks]
for (const policy of ["deny", "allow"] as const)
  t.test(
    `with onFailure ${policy}, a send hook that failed ten times is not called for the next message`,
    async (t) => {
      reset();
      const isAllowed = policy === "allow";
      const failing = await startWorld(t, {
        ...HOOK_SETTINGS,
        JINDOU_HOOKS_SEND_ON_FAILURE: policy,
      });
      const ann = await failing.join(t, "ann");
      hook.decide = (_question, response) => {
        response.writeHead(500).end();
        return undefined;
      };
      const expected = isAllowed ? "ok" : "try again";
      const nodes = 3; // each node has its own circuit breaker, and a session is on one node
      for (const number of range(1, 10))
        t.equal(await outcomeOf(ann.send(person("ben"), `${number}`)), expected);
      t.equal(hook.questions.length, 10);
      t.equal(await outcomeOf(ann.send(person("ben"), "11")), expected);
      t.equal(hook.questions.length, 10, "the hook is not called");
      t.equal(await seqOf(ann, person("ben")), isAllowed ? 11 : 0);
      const pages = await Promise.all(range(1, nodes).map(() => failing.call("/metrics")));
      const metrics = pages.map(({ body }) => String(body)).join("\n");
      t.match(metrics, 'jindou_hook_circuit_open{hook="send"} 1');
      t.match(metrics, 'jindou_hook_requests_total{hook="send",outcome="status"} 10');
      t.match(metrics, 'jindou_hook_requests_total{hook="send",outcome="circuit_open"} 1');
    },
  );
