// Sending: order, repetition, bounds, refusals.

import type { Test } from "tap";
import type { ErrorCode } from "../../src/broker/errors.ts";
import { group } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { TEAM } from "./messages.ts";
import { acknowledge, play, type Script, ScriptedServer, type ScriptedSocket } from "./scripted.ts";

type Send = Extract<Operation, { readonly kind: "send" }>;

const textOf = ({ payload }: Send) => JSON.parse(new TextDecoder().decode(payload)).content;

function receipt(socket: ScriptedSocket, send: Send, messageSeq: number): void {
  const { clientMsgNo } = send;
  socket.reply(send, {
    kind: "sendack",
    messageId: 1,
    messageSeq,
    clientMsgNo,
  });
}

function refuse(socket: ScriptedSocket, send: Send, code: ErrorCode): void {
  const error = { kind: "error", message: "", retryAfterMs: 1 } as const;
  socket.reply(send, { ...error, code });
}

/** Opens sessions, and leaves it to `onSend` what becomes of messages. */
const selling =
  (onSend: (send: Send, socket: ScriptedSocket) => void): Script =>
  (operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "send") onSend(operation, socket);
  };

t.test("what is sent carries the options", async (t) => {
  const server = new ScriptedServer(selling((send, socket) => receipt(socket, send, 1)));
  const client = play(t, server);
  const bytes = Uint8Array.of(1, 2, 3);
  await client.send(TEAM, "text");
  await client.send(TEAM, bytes, {
    clientMsgNo: "mine",
    redDot: false,
    noPersist: true,
    syncOnce: true,
    expireS: 60,
    tagKey: "tag",
  });
  const plain = await server.heard("send");
  const full = await server.heard("send", 1);
  t.match(plain, {
    header: { redDot: true, noPersist: false, syncOnce: false },
    expireS: 0,
    tagKey: undefined,
  });
  t.equal(textOf(plain), "text");
  t.match(full, {
    clientMsgNo: "mine",
    header: { redDot: false, noPersist: true, syncOnce: true },
    expireS: 60,
    tagKey: "tag",
  });
  t.same([...full.payload], [...bytes]);
  t.not(plain.clientMsgNo, "", "a number of its own makes it repeatable");
  await t.rejects(client.send(TEAM, "x", { expireS: -1 }), {
    code: "bad_request",
  });
});

t.test("messages of one channel leave one behind the other, channels at once", async (t) => {
  const server = new ScriptedServer(selling(() => undefined));
  const client = play(t, server);
  const other = group("other");
  const sent = [client.send(TEAM, "1"), client.send(TEAM, "2"), client.send(other, "a")];
  const socket = await server.socket();
  const [first, second] = [await server.heard("send"), await server.heard("send", 1)];
  t.same([textOf(first), textOf(second)], ["1", "a"]);
  receipt(socket, second, 9);
  receipt(socket, first, 1);
  const third = await server.heard("send", 2);
  t.equal(textOf(third), "2");
  receipt(socket, third, 2);
  t.same(
    (await Promise.all(sent)).map((one) => one.messageSeq),
    [1, 2, 9],
  );
});

t.test(
  "what waits while offline is sent in order, what had no receipt again with its number",
  async (t) => {
    const server = new ScriptedServer(selling(() => undefined));
    const client = play(t, server);
    await client.ready();
    const sent = ["1", "2", "3"].map((text) => client.send(TEAM, text));
    const lost = await server.heard("send");
    (await server.socket()).end(1006);
    const socket = await server.socket(1);
    for (const n of [0, 1, 2]) {
      const send = await server.heard("send", n, 1);
      if (n === 0) t.equal(send.clientMsgNo, lost.clientMsgNo);
      t.equal(textOf(send), `${n + 1}`);
      receipt(socket, send, n + 1);
    }
    t.same(
      (await Promise.all(sent)).map((one) => one.messageSeq),
      [1, 2, 3],
    );
  },
);

t.test("a refusal that may pass is tried again in its place, another one rejects", async (t) => {
  const refusals: ErrorCode[] = ["overloaded", "rate_limited", "send_banned"];
  const server = new ScriptedServer(
    selling((send, socket) => {
      const code = refusals.shift();
      if (code === undefined) receipt(socket, send, 1);
      else refuse(socket, send, code);
    }),
  );
  const client = play(t, server);
  const first = client.send(TEAM, "1");
  const second = client.send(TEAM, "2");
  await t.rejects(first, { code: "send_banned", retry: false });
  await second;
  const { heard } = await server.socket();
  const order = heard.flatMap((one) => (one.kind === "send" ? [textOf(one)] : []));
  t.same(order, ["1", "1", "1", "2"]);
});

t.test("more than the bound is refused at once, and what left makes room", async (t) => {
  const server = new ScriptedServer(selling(() => undefined));
  const client = play(t, server, { maxQueued: 2 });
  const first = client.send(TEAM, "1");
  const same = client.send(TEAM, "2", { clientMsgNo: "c" });
  const twin = client.send(TEAM, "2", { clientMsgNo: "c" });
  await t.rejects(client.send(TEAM, "3"), {
    code: "queue_full",
    retry: true,
  });
  const socket = await server.socket();
  receipt(socket, await server.heard("send"), 1);
  await first;
  const third = client.send(TEAM, "3");
  receipt(socket, await server.heard("send", 1), 2);
  t.equal(await same, await twin, "the same message");
  receipt(socket, await server.heard("send", 2), 3);
  t.equal((await third).messageSeq, 3);
});

t.test("time that is up rejects, without disorder for those behind", async (t) => {
  const server = new ScriptedServer(selling(() => undefined));
  const client = play(t, server, { timeouts: { sendMs: 500 } });
  await client.ready(); // else the time may be up before anything is sent
  const late = t.rejects(client.send(TEAM, "1"), { code: "timeout" });
  const first = await server.heard("send");
  await late;
  const second = client.send(TEAM, "2");
  const socket = await server.socket();
  receipt(socket, first, 1);
  receipt(socket, await server.heard("send", 1), 2);
  t.equal((await second).messageSeq, 2);
});

t.test("a server that gives no receipt is left for a new connection", async (t) => {
  let tries = 0;
  const server = new ScriptedServer(
    selling((send, socket) => {
      tries += 1;
      if (tries > 1) receipt(socket, send, 1); // each later one: on a busy machine a connection may be left again
    }),
  );
  const client = play(t, server, { timeouts: { requestMs: 20 } });
  await client.send(TEAM, "1");
  const first = await server.heard("send");
  const again = await server.heard("send", 0, 1);
  t.equal(again.clientMsgNo, first.clientMsgNo);
  t.ok(server.sockets.length > 1, "on a new connection");
});

t.test("what no server would take is refused here", async (t) => {
  const server = new ScriptedServer(selling(() => undefined));
  const client = play(t, server);
  await client.ready();
  const large = new Uint8Array(200_000);
  await t.rejects(client.send(TEAM, large), { code: "too_large" });
  const uids = Array.from({ length: 2000 }, (_, n) => `${n}`.padEnd(100, "x"));
  await t.rejects(client.presence(uids), { code: "too_large" });
  await t.rejects(client.history(TEAM, { fromSeq: -1 }), {
    code: "bad_request",
  });
  t.equal(server.sockets.length, 1);
});

t.test(
  "whatever is lost or refused, a server with a memory has each message once, in order",
  async (t) => {
    for (let seed = 1; seed <= 15; seed++) await trial(t, seed);
  },
);

async function trial(t: Test, seed: number): Promise<void> {
  const random = new Random(seed);
  const stored: string[] = [];
  const server = new ScriptedServer(
    selling((send, socket) => {
      const what = random.below(8);
      if (what === 0) return socket.end(1006);
      if (what === 1) return refuse(socket, send, "rate_limited");
      if (!stored.includes(send.clientMsgNo)) stored.push(send.clientMsgNo);
      if (what === 2) return socket.end(1006);
      receipt(socket, send, stored.indexOf(send.clientMsgNo) + 1);
    }),
  );
  const client = play(t, server);
  const names = Array.from({ length: 30 }, (_, n) => `m${n}`);
  const sent = names.map((clientMsgNo) => client.send(TEAM, "x", { clientMsgNo }));
  const seqs = (await Promise.all(sent)).map((one) => one.messageSeq);
  t.same(stored, names, `seed ${seed}`);
  t.same(
    seqs,
    names.map((_, n) => n + 1),
  );
  await client.close();
}
