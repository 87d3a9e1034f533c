// Page events that end a reconnect pause, and the calls of the token function before a connect.

import type { Test } from "tap";
import { t } from "../support/suite.ts";
import { acknowledge, connectTo, ScriptedServer, welcome } from "./scripted.ts";

interface Page extends EventTarget {
  readonly document: { hidden: boolean };
}

/** Makes the global object an EventTarget with a document, as in a page. */
function openPage(t: Test): Page {
  const target = new EventTarget();
  const document = { hidden: false };
  const page = {
    document,
    addEventListener: target.addEventListener.bind(target),
    removeEventListener: target.removeEventListener.bind(target),
    dispatchEvent: target.dispatchEvent.bind(target),
  };
  Object.assign(globalThis, page);
  t.teardown(() => {
    for (const name of Object.keys(page)) Reflect.deleteProperty(globalThis, name);
  });
  return page;
}

const LONG_PAUSE = { minMs: 600_000, maxMs: 600_000 };

t.test(
  "a client reconnects at once when its page becomes visible, gets the focus or is online again",
  async (t) => {
    const page = openPage(t);
    for (const event of ["online", "visibilitychange", "pageshow", "resume", "focus"]) {
      const server = new ScriptedServer();
      const client = connectTo(t, server, { reconnect: LONG_PAUSE });
      await client.ready();
      (await server.socket()).end(1006);
      await server.until("the pause", () => client.status === "offline");
      page.document.hidden = true;
      page.dispatchEvent(new Event("visibilitychange"));
      t.equal(client.status, "offline", "a hidden page does not end the pause");
      page.document.hidden = false;
      page.dispatchEvent(Object.assign(new Event("focus"), { nodeType: 1 }));
      page.dispatchEvent(new Event(event));
      await client.ready();
      t.equal(server.sockets.length, 2, event);
      await client.close();
    }
  },
);

t.test("a connection that is silent after `offline` and `online` events is replaced", async (t) => {
  const page = openPage(t);
  const server = new ScriptedServer((operation, socket) => {
    if (operation.kind === "connect") acknowledge(operation, socket); // pings are not answered
  });
  const timeouts = { pingMs: 600_000, pongMs: 600_000 };
  const client = connectTo(t, server, { timeouts });
  await client.ready();
  page.dispatchEvent(new Event("online"));
  await server.received("ping");
  t.equal(server.sockets.length, 1, "without `offline` the usual limit applies");
  page.dispatchEvent(new Event("offline"));
  page.dispatchEvent(new Event("online"));
  await server.received("connect", 0, 1);
  await client.ready();
});

t.test(
  "a connection whose CONNECT is unanswered is replaced after `offline` and `online` events",
  async (t) => {
    const page = openPage(t);
    const server = new ScriptedServer((operation, socket) => {
      if (server.sockets.length > 1) welcome(operation, socket);
    });
    const client = connectTo(t, server, {
      reconnect: LONG_PAUSE,
      timeouts: { connectMs: 600_000 },
    });
    await server.received("connect");
    page.dispatchEvent(new Event("offline"));
    page.dispatchEvent(new Event("online"));
    await client.ready();
    t.equal(server.sockets.length, 2);
  },
);

t.test(
  "page events do not call the token function while an earlier call to it is in progress",
  async (t) => {
    const page = openPage(t);
    const server = new ScriptedServer();
    let calls = 0;
    let supply = (_token: string): void => undefined;
    const client = connectTo(t, server, {
      token: () => {
        calls += 1;
        return new Promise((resolve) => {
          supply = resolve;
        });
      },
    });
    for (let n = 0; n < 10; n++) {
      page.dispatchEvent(new Event("online"));
      await new Promise(setImmediate);
    }
    t.equal(calls, 1);
    supply("t1");
    await client.ready();
    t.equal(server.sockets.length, 1);
  },
);

t.test("after a refused token, the client calls the token function once more", async (t) => {
  const refusing = (accepted: string) => {
    const server = new ScriptedServer((operation, socket) => {
      if (operation.kind !== "connect") return;
      if (operation.token === accepted) return acknowledge(operation, socket);
      const message = "uid, device flag and token do not match";
      socket.reply(operation, { kind: "error", code: "unauthorized", message, retryAfterMs: 0 });
      socket.end(4201);
    });
    return server;
  };
  for (const [tokens, connections] of [
    [["stale", "new"], 2],
    [["stale", "stale"], 1],
    [["stale", "staler", "new"], 2],
  ] as const) {
    const server = refusing("new");
    let calls = 0;
    const client = connectTo(t, server, { token: async () => tokens[calls++] ?? "unexpected" });
    const errors: string[] = [];
    client.on("error", ({ code }) => errors.push(code));
    const isAccepted = tokens[1] === "new";
    if (isAccepted) await client.ready();
    else await t.rejects(client.ready(), { code: "auth_failed" });
    t.equal(calls, 2, `calls for ${tokens}`);
    t.equal(server.sockets.length, connections, `connections for ${tokens}`);
    t.same(errors, isAccepted ? [] : ["auth_failed"], "the error event has the same code");
    await client.close();
  }
  const server = refusing("new");
  await t.rejects(connectTo(t, server, { token: "stale" }).ready(), { code: "auth_failed" });
  t.equal(server.sockets.length, 1, "a fixed token is not sent again");
});

t.test(
  "a client whose session ends with token_changed reconnects with the next token of its token function",
  async (t) => {
    const server = new ScriptedServer();
    const tokens = ["t1", "t2"];
    const client = connectTo(t, server, { token: () => tokens.shift() ?? "" });
    await client.ready();
    (await server.socket()).end(4203);
    const login = await server.received("connect", 0, 1);
    t.match(login, { token: "t2", sessionName: /^[0-9a-f]{24}$/ });
    await client.ready();
  },
);
