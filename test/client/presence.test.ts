// Presence watches: the server gets one list for all watches, and each watch gets the changes of
// its users.

import type { Test } from "tap";
import type { Presence } from "../../src/broker/model.ts";
import type { Client } from "../../src/client/index.ts";
import type { Operation } from "../../src/protocol/protocol.ts";
import { t } from "../support/suite.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

type Watch = Extract<Operation, { readonly kind: "watch" }>;

/** A client, and the server's users. */
interface PresenceFixture {
  readonly server: ScriptedServer;
  readonly client: Client;
  /** Users who are online according to the server. */
  readonly online: Set<string>;
  /** Returns the lists of watched users that the server received on a connection. */
  watched(connection?: number): readonly (readonly string[])[];
}

async function start(t: Test): Promise<PresenceFixture> {
  const online = new Set<string>();
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "watch")
      socket.reply(operation, {
        kind: "watch",
        presence: operation.uids.map((uid) => presenceOf(uid, online.has(uid))),
      });
  });
  const client = connectTo(t, server);
  await client.ready();
  const watched = (connection = 0) =>
    (server.sockets[connection]?.all("watch") ?? []).map((watch: Watch) => watch.uids);
  return { server, client, online, watched };
}

/** Returns the presence of a user. */
const presenceOf = (uid: string, online: boolean): Presence => ({
  uid,
  online,
  flag: online ? 1 : 0,
});

/** Returns a handler for a watch, and the presences with which it was called. */
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

t.test(
  "a presence watch reports the current presence of each user, then each change once",
  async (t) => {
    const { server, client, online, watched } = await start(t);
    online.add("bob");
    const watch = recorder();
    const changes = recorder();
    client.on("presence", changes.handler);
    client.watchPresence(["ann", "bob"], watch.handler);
    await server.until("the current presence is reported", () => watch.seen.length === 2);
    const socket = await server.socket();
    socket.push({ kind: "presence", presence: [presenceOf("ann", true)] });
    socket.push({
      kind: "presence",
      presence: [presenceOf("ann", true), presenceOf("eve", true)],
    });
    socket.push({ kind: "presence", presence: [presenceOf("bob", false)] });
    await server.until("the changes are reported", () => watch.seen.length === 4);
    t.same(watch.seen, ["ann off", "bob on", "ann on", "bob off"]);
    t.same(changes.seen, ["ann on", "bob off"]);
    t.same(watched(), [["ann", "bob"]]);
  },
);

t.test(
  "the client sends the uids of all presence watches as one list, at most once per turn of the event loop",
  async (t) => {
    const { server, client, watched } = await start(t);
    const [first, second] = [recorder(), recorder()];
    const stop = client.watchPresence(["ann", "bob"], first.handler);
    client.watchPresence(["bob", "eve"], second.handler);
    await server.until("all are reported", () => first.seen.length + second.seen.length === 4);
    stop();
    stop();
    await server.until("the new list is sent", () => watched().length === 2);
    t.same(watched(), [
      ["ann", "bob", "eve"],
      ["bob", "eve"],
    ]);
    const late = recorder();
    client.watchPresence(["eve"], late.handler);
    await server.until("the late watch is called", () => late.seen.length === 1);
    t.same(second.seen, ["bob off", "eve off"], "no presence is reported twice");
  },
);

t.test(
  "presence watches continue after a reconnect and report the changes that occurred while the client was offline",
  async (t) => {
    const { server, client, online, watched } = await start(t);
    const watch = recorder();
    client.watchPresence(["ann", "bob"], watch.handler);
    await server.until("the current presence is reported", () => watch.seen.length === 2);
    online.add("bob");
    (await server.socket()).end(1006);
    await server.until("the change is reported", () => watch.seen.length === 3);
    t.same(watched(1), [["ann", "bob"]]);
    t.same(watch.seen, ["ann off", "bob off", "bob on"]);
  },
);

t.test(
  "a presence push that follows the reply to a watch is reported, even if both arrive in the same turn of the event loop",
  async (t) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind === "connect") acknowledge(operation, socket);
    });
    const client = connectTo(t, server);
    await client.ready();
    const watcher = recorder();
    client.watchPresence(["ann"], watcher.handler);
    const watch = await server.received("watch");
    const socket = await server.socket();
    socket.together(() => {
      socket.reply(watch, { kind: "watch", presence: [presenceOf("ann", false)] });
      socket.push({ kind: "presence", presence: [presenceOf("ann", true)] });
    });
    await server.until("both are reported", () => watcher.seen.length === 2);
    t.same(watcher.seen, ["ann off", "ann on"]);
  },
);

t.test(
  "`watchPresence` throws at once for more than 200 users in total, or for an invalid uid",
  async (t) => {
    const { client } = await start(t);
    const uids = Array.from({ length: 200 }, (_, n) => `u${n}`);
    const stop = client.watchPresence(uids, () => undefined);
    t.throws(() => client.watchPresence(["further"], () => undefined), {
      code: "too_large",
    });
    t.throws(() => client.watchPresence(["a#b"], () => undefined), {
      code: "bad_id",
    });
    stop();
    client.watchPresence(["further"], () => undefined);
  },
);
