// Watched presence: one list for the server, the right news for each watch.

import type { Test } from "tap";
import type { Presence } from "../../src/broker/model.ts";
import type { Client } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { acknowledge, play, ScriptedServer } from "./scripted.ts";

type Watch = Extract<Operation, { readonly kind: "watch" }>;

interface Played {
  readonly server: ScriptedServer;
  readonly client: Client;
  /** Who is online, for the server's answers. */
  readonly online: Set<string>;
  watched(connection?: number): readonly (readonly string[])[];
}

async function start(t: Test): Promise<Played> {
  const online = new Set<string>();
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "watch")
      socket.reply(operation, {
        kind: "watch",
        presence: operation.uids.map((uid) => state(uid, online.has(uid))),
      });
  });
  const client = play(t, server);
  await client.ready();
  const watched = (connection = 0) =>
    (server.sockets[connection]?.all("watch") ?? []).map((watch: Watch) => watch.uids);
  return { server, client, online, watched };
}

const state = (uid: string, online: boolean): Presence => ({
  uid,
  online,
  flag: online ? 1 : 0,
});

function recorder(): {
  readonly seen: string[];
  handler(presence: Presence): void;
} {
  const seen: string[] = [];
  return {
    seen,
    handler: ({ uid, online }) => seen.push(`${uid} ${online ? "on" : "off"}`),
  };
}

t.test("a watch is told how each user stands, then each change once", async (t) => {
  const { server, client, online, watched } = await start(t);
  online.add("bob");
  const one = recorder();
  const changes = recorder();
  client.on("presence", changes.handler);
  client.watchPresence(["ann", "bob"], one.handler);
  await server.until("the states", () => one.seen.length === 2);
  const socket = await server.socket();
  socket.push({ kind: "presence", presence: [state("ann", true)] });
  socket.push({
    kind: "presence",
    presence: [state("ann", true), state("eve", true)],
  });
  socket.push({ kind: "presence", presence: [state("bob", false)] });
  await server.until("the changes", () => one.seen.length === 4);
  t.same(one.seen, ["ann off", "bob on", "ann on", "bob off"]);
  t.same(changes.seen, ["ann on", "bob off"]);
  t.same(watched(), [["ann", "bob"]]);
});

t.test("the server is told the union of all watches, once per turn", async (t) => {
  const { server, client, watched } = await start(t);
  const [one, two] = [recorder(), recorder()];
  const stop = client.watchPresence(["ann", "bob"], one.handler);
  client.watchPresence(["bob", "eve"], two.handler);
  await server.until("all", () => one.seen.length + two.seen.length === 4);
  stop();
  stop();
  await server.until("the change", () => watched().length === 2);
  t.same(watched(), [
    ["ann", "bob", "eve"],
    ["bob", "eve"],
  ]);
  const late = recorder();
  client.watchPresence(["eve"], late.handler);
  await server.until("the late one", () => late.seen.length === 1);
  t.same(two.seen, ["bob off", "eve off"], "nobody is told twice");
});

t.test("after a reconnect the watches hold, and what changed meanwhile is told", async (t) => {
  const { server, client, online, watched } = await start(t);
  const one = recorder();
  client.watchPresence(["ann", "bob"], one.handler);
  await server.until("the states", () => one.seen.length === 2);
  online.add("bob");
  (await server.socket()).end(1006);
  await server.until("the change", () => one.seen.length === 3);
  t.same(watched(1), [["ann", "bob"]]);
  t.same(one.seen, ["ann off", "bob off", "bob on"]);
});

t.test("a push behind the answer wins, also in the same breath", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  const client = play(t, server);
  await client.ready();
  const one = recorder();
  client.watchPresence(["ann"], one.handler);
  const watch = await server.heard("watch");
  const socket = await server.socket();
  socket.together(() => {
    socket.reply(watch, { kind: "watch", presence: [state("ann", false)] });
    socket.push({ kind: "presence", presence: [state("ann", true)] });
  });
  await server.until("both", () => one.seen.length === 2);
  t.same(one.seen, ["ann off", "ann on"]);
});

t.test("more than 200 users, and what is no uid, are refused at once", async (t) => {
  const { client } = await start(t);
  const uids = Array.from({ length: 200 }, (_, n) => `u${n}`);
  const stop = client.watchPresence(uids, () => undefined);
  t.throws(() => client.watchPresence(["one more"], () => undefined), {
    code: "too_large",
  });
  t.throws(() => client.watchPresence(["a#b"], () => undefined), {
    code: "bad_id",
  });
  stop();
  client.watchPresence(["one more"], () => undefined);
});
