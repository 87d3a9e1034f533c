// A server that lost messages and gave their seqs to others, or has fewer than it had: what is new
// is given, once, and what was had is not.

import type { Test } from "tap";
import type { Cursor } from "../../src/client/index.ts";
import { t } from "../support/suite.ts";
import { live, message, messages, run, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer } from "./scripted.ts";

/**
 * A client that has the channel through there, at a server that shares so much with it; `seen`: the
 * ids of what the app was given.
 */
async function start(t: Test, { lastSeq, lastId }: Omit<Cursor, "channel">, headSeq = lastSeq) {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket, { heads: { team: headSeq } });
  });
  const cursor = { channel: TEAM, lastSeq, lastId: lastId ?? 0 };
  const client = play(t, server, { cursors: [cursor] });
  const seen: number[] = [];
  client.on("message", ({ messageId }) => seen.push(messageId));
  await client.ready();
  t.same((await server.heard("connect")).resume, [cursor]);
  const until = (id: number) => server.until(`message ${id}`, () => seen.at(-1) === id);
  let sent = 0;
  /**
   * The client sends a message, and gets the receipt of one that took or follows the seqs of lost
   * ones.
   */
  const send = async (seq: number, connection = 0) => {
    const socket = await server.socket(connection);
    const before = socket.all("send").length;
    const clientMsgNo = `own${sent++}`;
    const sending = client.send(TEAM, "own", { clientMsgNo });
    const heard = await server.heard("send", before, connection);
    const { messageSeq, messageId } = afterwards(seq);
    const place = { messageSeq, messageId, clientMsgNo };
    socket.reply(heard, { kind: "sendack", ...place });
    await sending;
  };
  return { server, client, seen, send, until, socket: await server.socket() };
}

/** A message with the seq of one that was lost, or behind it. */
const afterwards = (seq: number) => message(seq, { messageId: 2000 + seq });

t.test("a server that was set back is believed", async (t) => {
  const { socket, seen, until } = await start(t, { lastSeq: 9 }, 2);
  socket.push(live(message(3)));
  await until(1003);
  t.same(seen, [1003]);
});

t.test(
  "messages that took the places of lost ones are given, without a new connection",
  async (t) => {
    const { seen, socket, until } = await start(t, { lastSeq: 0 });
    for (const one of messages(1, 5)) socket.push(live(one));
    for (const seq of [4, 5, 6, 3, 4, 2]) socket.push(live(afterwards(seq)));
    socket.push(live(message(5)));
    socket.push(live(afterwards(7)));
    await until(2007);
    const lost = [1001, 1002, 1003, 1004, 1005];
    t.same(seen, [...lost, 2004, 2005, 2006, 2007], "none of them twice");
  },
);

for (const { where, headSeq } of [
  { where: "and others behind them", headSeq: 7 },
  { where: "as many as were lost", headSeq: 5 },
  { where: "though fewer than were lost", headSeq: 4 },
])
  t.test(`those that came while the client was away are given, ${where}`, async (t) => {
    const has = { lastSeq: 5, lastId: 1005 };
    const { client, seen, socket, until } = await start(t, has, 2);
    const given = [3, 4, 5, 6, 7].filter((seq) => seq <= headSeq);
    for (let times = 0; times < 2; times++) socket.push(run(2, headSeq, given.map(afterwards)));
    socket.push(live(afterwards(headSeq + 1)));
    await until(2001 + headSeq);
    t.same(
      seen,
      [...given, headSeq + 1].map((seq) => 2000 + seq),
    );
    const cursor = { lastSeq: headSeq + 1, lastId: 2001 + headSeq };
    t.same(client.cursors(), [{ channel: TEAM, ...cursor }]);
  });

t.test("and so are they when the receipt of an own message comes first", async (t) => {
  const has = { lastSeq: 5, lastId: 1005 };
  const { client, seen, send, socket, until } = await start(t, has, 3);
  await send(7);
  t.same(client.cursors(), [{ channel: TEAM, lastSeq: 3, lastId: 1005 }]);
  socket.push(run(3, 7, [4, 5, 6, 7].map(afterwards)));
  socket.push(live(afterwards(8)));
  await until(2008);
  t.same(seen, [2004, 2005, 2006, 2008]);
});

t.test("and when history is read before the run comes", async (t) => {
  const has = { lastSeq: 5, lastId: 1005 };
  const { server, seen, send, socket, until } = await start(t, has, 3);
  await send(7);
  const asked = await server.heard("history");
  t.match(asked, { fromSeq: 4, toSeq: 7 });
  const found = [4, 5, 6, 7].map(afterwards);
  socket.reply(asked, {
    ...{ kind: "history", channel: TEAM, headSeq: 7, more: false },
    messages: found,
  });
  socket.push(run(3, 7, found));
  socket.push(live(afterwards(8)));
  await until(2008);
  t.same(seen, [2004, 2005, 2006, 2008]);
});

t.test("none of them is taken for an own message", async (t) => {
  const has = { lastSeq: 1, lastId: 1001 };
  const { server, client, seen, socket, until } = await start(t, has);
  const sent = client.send(TEAM, "own");
  const place = { messageSeq: 3, messageId: 1003, clientMsgNo: "own" };
  socket.reply(await server.heard("send"), { kind: "sendack", ...place });
  await sent;
  socket.end(1006);
  const { resume } = await server.heard("connect", 0, 1);
  t.same(resume, [{ channel: TEAM, lastSeq: 1, lastId: 1001 }]);
  const again = await server.socket(1);
  again.push(run(1, 3, [2, 3].map(afterwards)));
  again.push(live(afterwards(4)));
  await until(2004);
  t.same(seen, [2002, 2003, 2004]);
});

for (const { where, own, pushed } of [
  { where: "before them", own: [4], pushed: [5] },
  { where: "after them", own: [6], pushed: [4, 5, 7] },
  { where: "after all that was there", own: [8], pushed: [4, 5, 6, 7, 9] },
  { where: "among them", own: [4, 6, 7], pushed: [5, 8] },
])
  t.test(`an own message ${where} hides none, and is not given`, async (t) => {
    const has = { lastSeq: 3, lastId: 1003 };
    const { client, seen, send, socket, until } = await start(t, has);
    const lost = messages(4, 6);
    for (const one of lost) socket.push(live(one));
    await until(1006);
    for (const seq of own) await send(seq);
    const known = { lastSeq: 6, lastId: 1006 };
    t.same(client.cursors(), [{ channel: TEAM, ...known }], "not from where");
    for (const seq of pushed) socket.push(live(afterwards(seq)));
    const found = pushed.map((seq) => 2000 + seq);
    const last = found.at(-1) ?? 0;
    await until(last);
    t.same(seen, [...lost.map(({ messageId }) => messageId), ...found]);
    const cursor = { lastSeq: last - 2000, lastId: last };
    t.same(client.cursors(), [{ channel: TEAM, ...cursor }]);
  });

t.test("nor when the connection is lost behind its receipt", async (t) => {
  const has = { lastSeq: 3, lastId: 1003 };
  const { server, seen, send, socket, until } = await start(t, has);
  for (const one of messages(4, 6)) socket.push(live(one));
  await until(1006);
  await send(5);
  socket.end(1006);
  const { resume } = await server.heard("connect", 0, 1);
  t.same(resume, [{ channel: TEAM, lastSeq: 6, lastId: 1006 }]);
  const again = await server.socket(1);
  await send(7, 1);
  again.push(run(3, 7, [4, 5, 6, 7].map(afterwards)));
  again.push(live(afterwards(8)));
  await until(2008);
  t.same(seen, [1004, 1005, 1006, 2004, 2006, 2008]);
});

t.test("a client that alone sends goes on, though none comes to tell from where", async (t) => {
  const has = { lastSeq: 6, lastId: 1006 };
  const { client, seen, send, socket, until } = await start(t, has);
  for (let seq = 4; seq <= 110; seq++) await send(seq);
  t.same(client.cursors(), [{ channel: TEAM, lastSeq: 110, lastId: 2110 }]);
  socket.push(live(afterwards(111)));
  await until(2111);
  t.same(seen, [2111]);
});
