// Fail-overs that lose messages: the server has fewer messages than the client, or reuses their
// seqs. The client must deliver the new messages once, and must not deliver the old messages again.

import type { Test } from "tap";
import type { Cursor } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { live, message, messages, range, TEAM } from "./messages.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

/**
 * Connects a client with the position `lastSeq` and `lastId` to a server whose last common seq with
 * the client is `headSeq`. `seen` contains the ids of delivered messages.
 */
async function start(t: Test, { lastSeq, lastId }: Omit<Cursor, "channel">, headSeq = lastSeq) {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket, { heads: { team: headSeq } });
  });
  const cursor = { channel: TEAM, lastSeq, lastId: lastId ?? 0 };
  const client = connectTo(t, server, { cursors: [cursor] });
  const seen: number[] = [];
  client.on("message", ({ messageId }) => seen.push(messageId));
  await client.ready();
  t.same((await server.received("connect")).resume, [cursor]);
  const until = (id: number) => server.until(`message ${id}`, () => seen.at(-1) === id);
  let sent = 0;
  /**
   * Sends a message with the client and acknowledges it with a seq that was lost, or a later one.
   */
  const send = async (seq: number, connection = 0) => {
    const socket = await server.socket(connection);
    const sendCount = socket.all("send").length;
    const clientMsgNo = `own${sent++}`;
    const sending = client.send(TEAM, "own", { clientMsgNo });
    const request = await server.received("send", sendCount, connection);
    const { messageSeq, messageId } = newMessage(seq);
    socket.reply(request, { kind: "sendack", messageSeq, messageId, clientMsgNo });
    await sending;
  };
  return { server, client, seen, send, until, socket: await server.socket() };
}

/** Returns a message that was stored after the fail-over, with a reused or a later seq. */
const newMessage = (seq: number) => message(seq, { messageId: 2000 + seq });

t.test("a client whose cursor is above the head of the channel gets new messages", async (t) => {
  const { socket, seen, until } = await start(t, { lastSeq: 9 }, 2);
  socket.push(live(message(3)));
  await until(1003);
  t.same(seen, [1003]);
});

t.test("messages that reuse lost seqs are delivered on the same connection", async (t) => {
  const { seen, socket, until } = await start(t, { lastSeq: 0 });
  for (const lostMessage of messages(1, 5)) socket.push(live(lostMessage));
  for (const seq of [4, 5, 6, 3, 4, 2]) socket.push(live(newMessage(seq)));
  socket.push(live(message(5)));
  socket.push(live(newMessage(7)));
  await until(2007);
  const lost = [1001, 1002, 1003, 1004, 1005];
  t.same(seen, [...lost, 2004, 2005, 2006, 2007], "no message is delivered twice");
});

for (const { messageCount, headSeq } of [
  { messageCount: "more of them than were lost", headSeq: 7 },
  { messageCount: "as many of them as were lost", headSeq: 5 },
  { messageCount: "fewer of them than were lost", headSeq: 4 },
])
  t.test(
    `a client that was offline while the server lost messages receives all new messages if there are ${messageCount}`,
    async (t) => {
      const position = { lastSeq: 5, lastId: 1005 };
      const { client, seen, socket, until } = await start(t, position, 2);
      const newSeqs = [3, 4, 5, 6, 7].filter((seq) => seq <= headSeq);
      for (let times = 0; times < 2; times++)
        socket.push(range(2, headSeq, newSeqs.map(newMessage)));
      socket.push(live(newMessage(headSeq + 1)));
      await until(2001 + headSeq);
      t.same(
        seen,
        [...newSeqs, headSeq + 1].map((seq) => 2000 + seq),
      );
      const cursor = { lastSeq: headSeq + 1, lastId: 2001 + headSeq };
      t.same(client.cursors(), [{ channel: TEAM, ...cursor }]);
    },
  );

t.test(
  "new messages are delivered even if the SENDACK of a message from this client arrives before them",
  async (t) => {
    const position = { lastSeq: 5, lastId: 1005 };
    const { client, seen, send, socket, until } = await start(t, position, 3);
    await send(7);
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 3, lastId: 1005 }]);
    socket.push(range(3, 7, [4, 5, 6, 7].map(newMessage)));
    socket.push(live(newMessage(8)));
    await until(2008);
    t.same(seen, [2004, 2005, 2006, 2008]);
  },
);

t.test(
  "new messages are delivered once if the client reads them from history before the resume pushes them",
  async (t) => {
    const position = { lastSeq: 5, lastId: 1005 };
    const { server, seen, send, socket, until } = await start(t, position, 3);
    await send(7);
    const request = await server.received("history");
    t.match(request, { fromSeq: 4, toSeq: 7 });
    const newMessages = [4, 5, 6, 7].map(newMessage);
    socket.reply(request, {
      ...{ kind: "history", channel: TEAM, headSeq: 7, more: false },
      messages: newMessages,
    });
    socket.push(range(3, 7, newMessages));
    socket.push(live(newMessage(8)));
    await until(2008);
    t.same(seen, [2004, 2005, 2006, 2008]);
  },
);

t.test(
  "a new message that reuses the seq of a lost message of this client is delivered",
  async (t) => {
    const position = { lastSeq: 1, lastId: 1001 };
    const { server, client, seen, socket, until } = await start(t, position);
    const sent = client.send(TEAM, "own");
    const ack = { messageSeq: 3, messageId: 1003, clientMsgNo: "own" };
    socket.reply(await server.received("send"), { kind: "sendack", ...ack });
    await sent;
    socket.end(1006);
    const { resume } = await server.received("connect", 0, 1);
    t.same(resume, [{ channel: TEAM, lastSeq: 1, lastId: 1001 }]);
    const again = await server.socket(1);
    again.push(range(1, 3, [2, 3].map(newMessage)));
    again.push(live(newMessage(4)));
    await until(2004);
    t.same(seen, [2002, 2003, 2004]);
  },
);

for (const { order, own, pushed } of [
  { order: "before the new messages", own: [4], pushed: [5] },
  { order: "after the new messages", own: [6], pushed: [4, 5, 7] },
  { order: "after the last old seq", own: [8], pushed: [4, 5, 6, 7, 9] },
  { order: "among the new messages", own: [4, 6, 7], pushed: [5, 8] },
])
  t.test(
    `the client's own message, stored ${order}, is not delivered and hides no other message`,
    async (t) => {
      const position = { lastSeq: 3, lastId: 1003 };
      const { client, seen, send, socket, until } = await start(t, position);
      const lost = messages(4, 6);
      for (const lostMessage of lost) socket.push(live(lostMessage));
      await until(1006);
      for (const seq of own) await send(seq);
      const unchanged = { lastSeq: 6, lastId: 1006 };
      t.same(
        client.cursors(),
        [{ channel: TEAM, ...unchanged }],
        "a SENDACK does not move the cursor",
      );
      for (const seq of pushed) socket.push(live(newMessage(seq)));
      const newIds = pushed.map((seq) => 2000 + seq);
      const last = newIds.at(-1) ?? 0;
      await until(last);
      t.same(seen, [...lost.map(({ messageId }) => messageId), ...newIds]);
      const cursor = { lastSeq: last - 2000, lastId: last };
      t.same(client.cursors(), [{ channel: TEAM, ...cursor }]);
    },
  );

t.test(
  "the client's own message does not hide new messages if the connection is lost after its SENDACK",
  async (t) => {
    const position = { lastSeq: 3, lastId: 1003 };
    const { server, seen, send, socket, until } = await start(t, position);
    for (const lostMessage of messages(4, 6)) socket.push(live(lostMessage));
    await until(1006);
    await send(5);
    socket.end(1006);
    const { resume } = await server.received("connect", 0, 1);
    t.same(resume, [{ channel: TEAM, lastSeq: 6, lastId: 1006 }]);
    const again = await server.socket(1);
    await send(7, 1);
    again.push(range(3, 7, [4, 5, 6, 7].map(newMessage)));
    again.push(live(newMessage(8)));
    await until(2008);
    t.same(seen, [1004, 1005, 1006, 2004, 2006, 2008]);
  },
);

t.test(
  "a client's cursor moves forward even if the client sent all the new messages itself",
  async (t) => {
    const position = { lastSeq: 6, lastId: 1006 };
    const { client, seen, send, socket, until } = await start(t, position);
    for (let seq = 4; seq <= 110; seq++) await send(seq);
    t.same(client.cursors(), [{ channel: TEAM, lastSeq: 110, lastId: 2110 }]);
    socket.push(live(newMessage(111)));
    await until(2111);
    t.same(seen, [2111]);
  },
);
