// Sending messages: order, repetition, limits, refusals.

import type { Test } from "tap";
import { ERRORS, type ErrorCode } from "../../src/broker/errors.ts";
import { group } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { Random } from "../support/random.ts";
import { t } from "../support/suite.ts";
import { TEAM } from "./messages.ts";
import {
  acknowledge,
  connectTo,
  type Script,
  ScriptedServer,
  type ScriptedSocket,
} from "./scripted.ts";

type Send = Extract<Operation, { readonly kind: "send" }>;

const textOf = ({ payload }: Send) => JSON.parse(new TextDecoder().decode(payload)).content;

/** Replies to a SEND with a SENDACK. */
function acknowledgeSend(socket: ScriptedSocket, send: Send, messageSeq: number): void {
  const { clientMsgNo } = send;
  socket.reply(send, {
    kind: "sendack",
    messageId: 1,
    messageSeq,
    clientMsgNo,
  });
}

/** Replies to a SEND with an error. */
function refuse(socket: ScriptedSocket, send: Send, code: ErrorCode): void {
  const retryAfterMs = ERRORS[code].retry ? 1 : 0;
  const error = { kind: "error", message: "", retryAfterMs } as const;
  socket.reply(send, { ...error, code });
}

/** Returns a script that opens sessions and passes each SEND to `onSend`. */
const handlingSends =
  (onSend: (send: Send, socket: ScriptedSocket) => void): Script =>
  (operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "ping") socket.reply(operation, { kind: "pong", serverTimeMs: 1 });
    if (operation.kind === "send") onSend(operation, socket);
  };

t.test("the options of `client.send`, or their defaults, are sent with the message", async (t) => {
  const server = new ScriptedServer(
    handlingSends((send, socket) => acknowledgeSend(socket, send, 1)),
  );
  const client = connectTo(t, server);
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
  const plain = await server.received("send");
  const full = await server.received("send", 1);
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
  t.not(plain.clientMsgNo, "", "the client creates a clientMsgNo");
  await t.rejects(client.send(TEAM, "x", { expireS: -1 }), {
    code: "bad_request",
  });
});

t.test(
  "messages of one channel are sent one after the other, and messages of different channels are sent in parallel",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server);
    const otherTeam = group("other");
    const sent = [client.send(TEAM, "1"), client.send(TEAM, "2"), client.send(otherTeam, "a")];
    const socket = await server.socket();
    const [first, second] = [await server.received("send"), await server.received("send", 1)];
    t.same([textOf(first), textOf(second)], ["1", "a"]);
    acknowledgeSend(socket, second, 9);
    acknowledgeSend(socket, first, 1);
    const third = await server.received("send", 2);
    t.equal(textOf(third), "2");
    acknowledgeSend(socket, third, 2);
    t.same(
      (await Promise.all(sent)).map(({ messageSeq }) => messageSeq),
      [1, 2, 9],
    );
  },
);

t.test(
  "messages that wait while the client is offline are sent in the order of their calls, and an unacknowledged message is sent again with the same clientMsgNo",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server);
    await client.ready();
    const sent = ["1", "2", "3"].map((text) => client.send(TEAM, text));
    const lost = await server.received("send");
    (await server.socket()).end(1006);
    const socket = await server.socket(1);
    for (const n of [0, 1, 2]) {
      const send = await server.received("send", n, 1);
      if (n === 0) t.equal(send.clientMsgNo, lost.clientMsgNo);
      t.equal(textOf(send), `${n + 1}`);
      acknowledgeSend(socket, send, n + 1);
    }
    t.same(
      (await Promise.all(sent)).map(({ messageSeq }) => messageSeq),
      [1, 2, 3],
    );
  },
);

t.test(
  "a message is sent again with the same bytes after a lost connection, even if the token or the app's content object has changed",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    let tokens = 0;
    const client = connectTo(t, server, { token: () => `token-${++tokens}` });
    await client.ready();
    const content: Record<string, unknown> = {
      type: 1,
      content: "ä",
      b: 1,
      a: [2, { z: 3, y: 4 }],
    };
    const bytes = new TextEncoder().encode(JSON.stringify(content));
    const sent = client.send(TEAM, content as { readonly type: number });
    await server.received("send");
    delete content.b;
    content.b = 2; // the last key now
    for (const connection of [0, 1, 2]) {
      const send = await server.received("send", 0, connection);
      t.same([...send.payload], [...bytes]);
      if (connection < 2) (await server.socket(connection)).end(4000);
      else acknowledgeSend(await server.socket(connection), send, 1);
    }
    t.match(await sent, { messageSeq: 1 });
    t.equal(tokens, 3);
  },
);

t.test(
  "a second send with the clientMsgNo of a waiting message returns that message's result, or is rejected if its content differs",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server);
    const numbered = { clientMsgNo: "mine" };
    const sent = client.send(TEAM, { type: 1, a: 1, b: 2 }, numbered);
    const again = client.send(TEAM, { type: 1, a: 1, b: 2 }, numbered);
    for (const content of ["other", { type: 1, a: 1, b: 3 }, { type: 1, b: 2, a: 1 }])
      await t.rejects(client.send(TEAM, content, numbered), {
        ...{ code: "client_msg_no_reused", retry: false },
      });
    acknowledgeSend(await server.socket(), await server.received("send"), 1);
    t.same(await again, await sent);
  },
);

t.test(
  "a message that the server refuses because of its clientMsgNo is rejected with client_msg_no_reused",
  async (t) => {
    const server = new ScriptedServer(
      handlingSends((send, socket) => refuse(socket, send, "client_msg_no_reused")),
    );
    const refused = { code: "client_msg_no_reused", retry: false };
    await t.rejects(connectTo(t, server).send(TEAM, "x", { clientMsgNo: "mine" }), refused);
  },
);

t.test(
  "a message that is refused temporarily is sent again before later messages of its channel, and a message that is refused permanently is rejected",
  async (t) => {
    const refusals: ErrorCode[] = ["overloaded", "rate_limited", "send_banned"];
    const server = new ScriptedServer(
      handlingSends((send, socket) => {
        const code = refusals.shift();
        if (code === undefined) acknowledgeSend(socket, send, 1);
        else refuse(socket, send, code);
      }),
    );
    const client = connectTo(t, server);
    const first = client.send(TEAM, "1");
    const second = client.send(TEAM, "2");
    await t.rejects(first, { code: "send_banned", retry: false });
    await second;
    const { received } = await server.socket();
    const order = received.flatMap((operation) =>
      operation.kind === "send" ? [textOf(operation)] : [],
    );
    t.same(order, ["1", "1", "1", "2"]);
  },
);

t.test(
  "messages over `maxQueued` are rejected until an earlier message is acknowledged",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server, { maxQueued: 2 });
    const first = client.send(TEAM, "1");
    const same = client.send(TEAM, "2", { clientMsgNo: "c" });
    const twin = client.send(TEAM, "2", { clientMsgNo: "c" });
    await t.rejects(client.send(TEAM, "3"), {
      code: "queue_full",
      retry: true,
    });
    const socket = await server.socket();
    acknowledgeSend(socket, await server.received("send"), 1);
    await first;
    const third = client.send(TEAM, "3");
    acknowledgeSend(socket, await server.received("send", 1), 2);
    t.equal(await same, await twin, "a message with the same clientMsgNo is the same message");
    acknowledgeSend(socket, await server.received("send", 2), 3);
    t.equal((await third).messageSeq, 3);
  },
);

t.test(
  "a message that is not acknowledged within `sendMs` is rejected, and a later message of its channel is still sent",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server, { timeouts: { sendMs: 500 } });
    await client.ready(); // otherwise `sendMs` may be over before a message is sent
    const late = t.rejects(client.send(TEAM, "1"), { code: "timeout" });
    const first = await server.received("send");
    await late;
    const second = client.send(TEAM, "2");
    const socket = await server.socket();
    acknowledgeSend(socket, first, 1);
    acknowledgeSend(socket, await server.received("send", 1), 2);
    t.equal((await second).messageSeq, 2);
  },
);

t.test("a client that gets no SENDACK sends the message again on a new connection", async (t) => {
  let tries = 0;
  const server = new ScriptedServer(
    handlingSends((send, socket) => {
      tries += 1;
      // on a busy machine a later connection may be dropped too
      if (tries > 1) acknowledgeSend(socket, send, 1);
    }),
  );
  const client = connectTo(t, server, { timeouts: { requestMs: 20 } });
  await client.send(TEAM, "1");
  const first = await server.received("send");
  const again = await server.received("send", 0, 1);
  t.equal(again.clientMsgNo, first.clientMsgNo);
  t.ok(server.sockets.length > 1, "the message is sent on a new connection");
});

t.test(
  "a frame that is too large or cannot be encoded is rejected without being sent",
  async (t) => {
    const server = new ScriptedServer(handlingSends(() => undefined));
    const client = connectTo(t, server);
    await client.ready();
    const large = new Uint8Array(200_000);
    await t.rejects(client.send(TEAM, large), { code: "too_large" });
    const uids = Array.from({ length: 2000 }, (_, n) => `${n}`.padEnd(100, "x"));
    await t.rejects(client.presence(uids), { code: "too_large" });
    await t.rejects(client.history(TEAM, { fromSeq: -1 }), {
      code: "bad_request",
    });
    for (const text of ["half \ud83d", "half \ud83c", "\udc00"]) {
      const calls: readonly (() => Promise<unknown>)[] = [
        () => client.send(TEAM, "x", { clientMsgNo: text }),
        () => client.send(TEAM, "x", { tagKey: text }),
        () => client.stream({ channel: TEAM, clientMsgNo: text }).ready(),
      ];
      for (const call of calls) await t.rejects(call(), { code: "bad_request" });
    }
    const legal = "\ufffd \ud83d\ude00";
    const sent = client.send(TEAM, "x", { clientMsgNo: legal });
    t.match(await server.received("send"), { clientMsgNo: legal });
    t.equal(server.sockets.length, 1);
    const rejected = t.rejects(sent, { code: "closed" });
    await client.close();
    await rejected;
  },
);

t.test("each message is stored once and in order despite random losses and refusals", async (t) => {
  for (let seed = 1; seed <= 15; seed++) await trial(t, seed);
});

async function trial(t: Test, seed: number): Promise<void> {
  const random = new Random(seed);
  const stored: string[] = [];
  const server = new ScriptedServer(
    handlingSends((send, socket) => {
      const outcome = random.below(8);
      if (outcome === 0) return socket.end(4000);
      if (outcome === 1) return refuse(socket, send, "rate_limited");
      if (!stored.includes(send.clientMsgNo)) stored.push(send.clientMsgNo);
      if (outcome === 2) return socket.end(4000);
      acknowledgeSend(socket, send, stored.indexOf(send.clientMsgNo) + 1);
    }),
  );
  const client = connectTo(t, server);
  const names = Array.from({ length: 30 }, (_, n) => `m${n}`);
  const sent = names.map((clientMsgNo) => client.send(TEAM, "x", { clientMsgNo }));
  const seqs = (await Promise.all(sent)).map(({ messageSeq }) => messageSeq);
  t.same(stored, names, `messages are stored in order with seed ${seed}`);
  t.same(
    seqs,
    names.map((_, n) => n + 1),
  );
  await client.close();
}

t.test("the pause before a refused message is sent again ends with the connection", async (t) => {
  for (const code of ["rate_limited", "overloaded"] as const) {
    const server = new ScriptedServer(
      handlingSends((send, socket) => {
        if (server.sockets.length > 1) return acknowledgeSend(socket, send, 1);
        const error = { kind: "error", message: "", retryAfterMs: 60_000 } as const;
        socket.reply(send, { ...error, code });
      }),
    );
    const client = connectTo(t, server, { timeouts: { sendMs: 10_000 } });
    const first = client.send(TEAM, "1");
    await server.received("send");
    await new Promise(setImmediate); // the refusal arrives
    const second = client.send(TEAM, "2");
    server.sockets[0]?.end(1006);
    await Promise.all([first, second, client.send(group("other"), "3")]);
    const texts = server.sockets[1]?.all("send").map(textOf);
    t.same(texts?.toSorted(), ["1", "2", "3"], `each message is sent once after ${code}`);
  }
});

/**
 * Starts a server that replies to a SEND only when the test calls `answer`. `counts.most` is the
 * largest number of SENDs that were in flight.
 */
function countInFlight() {
  const inFlight = new Set<Send>();
  const counts = { most: 0 };
  const server = new ScriptedServer(
    handlingSends((send) => {
      inFlight.add(send);
      counts.most = Math.max(counts.most, inFlight.size);
    }),
  );
  const answer = async (n: number, code?: ErrorCode) => {
    const send = await server.received("send", n);
    const socket = await server.socket();
    inFlight.delete(send);
    if (code === undefined) acknowledgeSend(socket, send, n + 1);
    else refuse(socket, send, code);
  };
  return { server, counts, answer };
}

t.test(
  "the next message of a channel is not sent while a message that timed out is still unanswered",
  async (t) => {
    const { server, counts } = countInFlight();
    const client = connectTo(t, server, { timeouts: { sendMs: 30 } });
    await client.ready();
    await t.rejects(client.send(TEAM, "timed out"), { code: "timeout" });
    client.send(TEAM, "second").catch(() => undefined); // never answered
    t.equal(server.sockets[0]?.all("send").length, 1);
    t.equal(counts.most, 1, "the next message waits for the answer to the first");
  },
);

t.test("a channel has at most one message in flight, even after a refusal", async (t) => {
  const { server, counts, answer } = countInFlight();
  const client = connectTo(t, server);
  // Each message is sent from the handler of the acknowledgement before it.
  const last = client.send(TEAM, "1").then(() => client.send(TEAM, "2"));
  await answer(0);
  await answer(1, "overloaded");
  await server.received("send", 2);
  const more = client.send(TEAM, "3");
  await answer(2);
  await last;
  await answer(3);
  await more;
  t.same(server.sockets[0]?.all("send").map(textOf), ["1", "2", "2", "3"]);
  t.equal(counts.most, 1);
});
