// Calls of the app: repeated over connections, bounded in time and number, and nothing stays of
// them.

import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { t } from "../support/suite.ts";
import { acknowledge, play, ScriptedServer } from "./scripted.ts";

setFlagsFromString("--expose-gc");
const collectGarbage: () => void = runInNewContext("gc");

t.test("a call is repeated on the next connection", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "presence" && server.sockets.length === 3)
      socket.reply(operation, { kind: "presence", presence: [] });
  });
  const client = play(t, server);
  const asked = client.presence(["a"]);
  for (const n of [0, 1]) {
    await server.heard("presence", 0, n);
    server.sockets[n]?.end(1006);
  }
  t.same(await asked, []);
  t.equal(server.sockets[2]?.all("presence").length, 1);
});

t.test("a call that the server finds too fast waits and is repeated", async (t) => {
  let refusals = 3;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "presence") return;
    if (refusals-- > 0)
      socket.reply(operation, {
        ...({ kind: "error", code: "rate_limited" } as const),
        ...{ message: "slow down", retryAfterMs: 5 },
      });
    else socket.reply(operation, { kind: "presence", presence: [] });
  });
  const client = play(t, server);
  const answers = [client.presence(["a"]), client.presence(["b"])];
  t.same(await Promise.all(answers), [[], []]);
  t.equal(server.sockets[0]?.all("presence").length, 5, "two and the refused");
});

t.test("a call waits for a server that is too busy no longer than its time", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "presence")
      socket.reply(operation, {
        ...({ kind: "error", code: "rate_limited" } as const),
        ...{ message: "slow down", retryAfterMs: 60_000 },
      });
  });
  const client = play(t, server, { timeouts: { requestMs: 20 } });
  await t.rejects(client.presence(["a"]), { code: "timeout" });
});

t.test("a call has its time, and only so many wait", async (t) => {
  const server = new ScriptedServer(() => undefined);
  const client = play(t, server, { maxQueued: 2, timeouts: { requestMs: 20 } });
  const waiting = [client.presence(["a"]), client.presence(["b"])];
  await t.rejects(client.presence(["c"]), { code: "queue_full" });
  for (const one of waiting) await t.rejects(one, { code: "timeout" });
  await t.rejects(client.presence(["d"]), { code: "timeout" });
});

t.test("nothing stays of calls that waited in vain", async (t) => {
  const server = new ScriptedServer(() => undefined);
  const client = play(t, server, { timeouts: { requestMs: 1 } });
  const errors: WeakRef<Error>[] = [];
  const asked = Array.from({ length: 1000 }, async () => {
    await client.presence(["a"]).catch((error) => {
      errors.push(new WeakRef(error));
    });
  });
  await Promise.all(asked);
  t.equal(errors.length, 1000);
  let left = errors.length;
  for (let n = 0; n < 20 && left > 10; n++) {
    await new Promise(setImmediate);
    collectGarbage();
    left = errors.filter((error) => error.deref() !== undefined).length;
  }
  t.ok(left <= 10, `${left} errors are still held`);
});
