// A server that lost messages and gave their seqs to others, or has fewer than it had: what is new is given, once, and what was had is not.

import t, { type Test } from "tap";
import type { Cursor } from "../../src/client/index.ts";
import { live, message, messages, run, TEAM } from "./messages.ts";
import { acknowledge, play, ScriptedServer } from "./scripted.ts";

/** A client that has the channel through there, at a server that says it has so much; `seen`: the ids of what the app was given. */
async function start(
  t: Test,
  { lastSeq, lastId }: Omit<Cursor, "channel">,
  headSeq = lastSeq,
) {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect")
      acknowledge(operation, socket, { heads: { team: headSeq } });
  });
  const cursor = { channel: TEAM, lastSeq, lastId: lastId ?? 0 };
  const client = play(t, server, { cursors: [cursor] });
  const seen: number[] = [];
  client.on("message", ({ messageId }) => seen.push(messageId));
  await client.ready();
  t.same((await server.heard("connect")).resume, [cursor]);
  const until = (id: number) =>
    server.until(`message ${id}`, () => seen.at(-1) === id);
  return { server, client, seen, until, socket: await server.socket() };
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
  t.test(
    `those that came while the client was away are given, ${where}`,
    async (t) => {
      const has = { lastSeq: 5, lastId: 1005 };
      const { client, seen, socket, until } = await start(t, has, headSeq);
      const given = [3, 4, 5, 6, 7].filter((seq) => seq <= headSeq);
      for (let times = 0; times < 2; times++)
        socket.push(run(2, headSeq, given.map(afterwards)));
      socket.push(live(afterwards(headSeq + 1)));
      await until(2001 + headSeq);
      t.same(
        seen,
        [...given, headSeq + 1].map((seq) => 2000 + seq),
      );
      const cursor = { lastSeq: headSeq + 1, lastId: 2001 + headSeq };
      t.same(client.cursors(), [{ channel: TEAM, ...cursor }]);
    },
  );

t.test("none of them is taken for an own message", async (t) => {
  const has = { lastSeq: 1, lastId: 1001 };
  const { server, client, seen, socket, until } = await start(t, has);
  const sent = client.send(TEAM, "own");
  const place = { messageSeq: 3, messageId: 1003, clientMsgNo: "own" };
  socket.reply(await server.heard("send"), { kind: "sendack", ...place });
  await sent;
  socket.end(1006);
  const { resume } = await server.heard("connect", 0, 1);
  t.same(resume, [{ channel: TEAM, lastSeq: 1, lastId: 1003 }]);
  const again = await server.socket(1);
  again.push(run(1, 3, [2, 3].map(afterwards)));
  again.push(live(afterwards(4)));
  await until(2004);
  t.same(seen, [2002, 2003, 2004]);
});

t.test("the receipt of an own message tells of them as well", async (t) => {
  const { seen, socket, server, client, until } = await start(t, {
    lastSeq: 0,
  });
  for (const one of messages(1, 5)) socket.push(live(one));
  await until(1005);
  const sent = client.send(TEAM, "own");
  const place = { messageSeq: 4, messageId: 2004, clientMsgNo: "own" };
  socket.reply(await server.heard("send"), { kind: "sendack", ...place });
  await sent;
  socket.push(live(afterwards(5)));
  await until(2005);
  t.same(seen, [1001, 1002, 1003, 1004, 1005, 2005]);
});
