// `background` and `foreground` of the SDK: what the client reports, even after a reconnect.

import { t } from "../support/suite.ts";
import { acknowledge, connectTo, ScriptedServer } from "./scripted.ts";

t.test("a change between foreground and background is reported once per connection", async (t) => {
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind === "state") socket.reply(operation, { kind: "state" });
  });
  const client = connectTo(t, server);
  const reported = (connection: number) =>
    (server.sockets[connection]?.all("state") ?? []).map(({ foreground }) => foreground);
  await client.ready();
  client.foreground();
  client.background();
  client.background();
  await server.received("state");
  t.same(reported(0), [false]);
  server.sockets[0]?.end(4000);
  await server.received("state", 0, 1);
  t.same(reported(1), [false], "a new connection begins in the foreground");
  client.foreground();
  await server.received("state", 1, 1);
  server.sockets[1]?.end(4000);
  await server.socket(2);
  await client.ready();
  client.background();
  await server.received("state", 0, 2);
  t.same([reported(1), reported(2)], [[false, true], [false]]);
});

t.test("a background state that the server refused temporarily is reported again", async (t) => {
  const refusal = { kind: "error", code: "rate_limited", message: "", retryAfterMs: 5 } as const;
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
    if (operation.kind !== "state") return;
    const isRefused = socket.all("state").length < 3;
    socket.reply(operation, isRefused ? refusal : { kind: "state" });
  });
  const client = connectTo(t, server);
  await client.ready();
  client.background();
  t.equal((await server.received("state", 2)).foreground, false);
});

t.test("in a browser, a client reports the background while its page is hidden", async (t) => {
  const page = Object.assign(new EventTarget(), { hidden: true });
  Object.assign(globalThis, { document: page });
  t.teardown(() => Reflect.deleteProperty(globalThis, "document"));
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket);
  });
  const client = connectTo(t, server);
  t.equal((await server.received("state")).foreground, false, "a page that is opened hidden");
  page.hidden = false;
  page.dispatchEvent(new Event("visibilitychange"));
  t.equal((await server.received("state", 1)).foreground, true);
  await client.close();
  page.hidden = true;
  page.dispatchEvent(new Event("visibilitychange"));
  t.equal(server.sockets[0]?.all("state").length, 2, "a closed client reports nothing");
});
