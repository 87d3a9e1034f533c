// The life cycle of a listener: ports, TLS, and closing.

import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { Agent, get } from "node:https";
import { networkInterfaces } from "node:os";
import { ClientSockets } from "../../src/transport/client-sockets.ts";
import type { TlsFiles } from "../../src/transport/driver.ts";
import { BodyBudget } from "../../src/transport/http-body.ts";
import { createListener } from "../../src/transport/listener.ts";
import type { ListenerSpec } from "../../src/transport/types.ts";
import { compiledUrl, tieToParent } from "../support/child.ts";
import { t } from "../support/suite.ts";
import {
  connectionAt,
  DRIVER,
  HOST,
  httpEndpoint,
  openClient,
  RawClient,
  socketEndpoint,
  socketLimits,
  startListener,
  text,
  tlsFile,
  until,
} from "./support.ts";

const hello = () => httpEndpoint([{ method: "GET", path: "/", handle: () => text("hello") }]);

const spec = (overrides: Partial<ListenerSpec>): ListenerSpec => ({
  driver: DRIVER,
  host: HOST,
  port: 0,
  tls: undefined,
  http: hello(),
  limits: socketLimits(),
  trustedProxies: [],
  spareSockets: 0,
  bodies: new BodyBudget(0),
  onHeadRefused: () => undefined,
  onError: () => undefined,
  ...overrides,
});

const tlsFiles = (overrides: Partial<TlsFiles> = {}): TlsFiles => ({
  certFile: tlsFile("cert.pem"),
  keyFile: tlsFile("key.pem"),
  caFile: undefined,
  passphrase: undefined,
  ...overrides,
});

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

async function causeOf(starting: Promise<number>): Promise<{ code?: string }> {
  try {
    await starting;
  } catch (error) {
    if (error instanceof Error) return error.cause ?? {};
  }
  throw new Error("the promise did not reject with an Error");
}

t.test(
  "a listener rejects a port in use, and the listener that uses the port keeps working",
  async (t) => {
    const { port } = await startListener(t, { http: hello() });
    const second = createListener(spec({ port }));
    await t.rejects(second.start(), /another process is already listening there/);
    second.close();
    t.equal((await fetch(`http://${HOST}:${port}/`)).status, 200);
  },
);

t.test("a listener rejects an address that belongs to another machine", async (t) => {
  const listener = createListener(spec({ host: "192.0.2.1" }));
  await t.rejects(listener.start(), /does not have that address/);
});

t.test("a port is free again after its listener is closed", async (t) => {
  const first = createListener(spec({}));
  const port = await first.start();
  first.close();
  const second = createListener(spec({ port }));
  t.teardown(() => second.close());
  t.equal(await second.start(), port);
});

t.test("a listener starts only once, and not after `close`", async (t) => {
  const { listener } = await startListener(t, { http: hello() });
  await t.rejects(listener.start());
  const closed = createListener(spec({}));
  closed.close();
  await t.rejects(closed.start());
  const hasty = createListener(spec({ tls: tlsFiles() }));
  const starting = hasty.start();
  hasty.close();
  await t.rejects(starting);
});

t.test("a listener rejects an idle time-out that uWebSockets.js does not support", async (t) => {
  for (const idleTimeoutS of [7, 961]) {
    const { endpoint } = socketEndpoint({ endpoint: { idleTimeoutS } });
    const options = spec({});
    const listener = createListener(options, new ClientSockets(endpoint, options));
    await t.rejects(listener.start(), { name: "RangeError" });
  }
});

t.test("publishing before `start` or after `close` has no effect", async (t) => {
  const { endpoint } = socketEndpoint();
  const options = spec({});
  const clients = new ClientSockets(endpoint, options);
  const listener = createListener(options, clients);
  clients.publish("topic", "early");
  await listener.start();
  listener.close();
  clients.publish("topic", "late");
  t.pass();
});

t.test("a listener that stops accepting keeps its open connections", async (t) => {
  const { endpoint } = socketEndpoint({
    received: ({ connection }, data) => connection.send(data),
  });
  const { port, listener } = await startListener(t, {
    http: hello(),
    sockets: endpoint,
  });
  const client = await openClient(t, port);
  const caller = new RawClient(t, port);
  caller.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
  await caller.has("hello");
  listener.stopAccepting();
  listener.stopAccepting();
  await t.rejects(openClient(t, port), { code: "ECONNREFUSED" });
  client.socket.send("still here");
  await until(() => client.texts.length === 1);
  caller.received = Buffer.alloc(0);
  caller.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
  await caller.has("hello");
});

t.test("`close` ends every connection and every HTTP call at once", async (t) => {
  const { seen, endpoint } = socketEndpoint();
  let isWaiting = false;
  let answer = (): void => undefined;
  const http = httpEndpoint([
    {
      method: "GET",
      path: "/wait",
      handle: () =>
        new Promise((resolve) => {
          isWaiting = true;
          answer = () => resolve(text("late"));
        }),
    },
  ]);
  const { port, listener, errors } = await startListener(t, {
    http,
    sockets: endpoint,
  });
  const clients = [await openClient(t, port), await openClient(t, port)];
  const caller = new RawClient(t, port);
  caller.write("GET /wait HTTP/1.1\r\nhost: x\r\n\r\n");
  await until(() => isWaiting);
  seen[0]?.connection.send("queued");
  listener.close();
  listener.close();
  listener.stopAccepting();
  answer();
  await until(() => clients.every(({ closed }) => closed.length === 1));
  await caller.closed();
  await nextTurn();
  t.strictSame(
    seen.map(({ closed }) => closed),
    [[1006], [1006]],
  );
  t.equal(caller.text, "");
  t.strictSame(errors, []);
});

t.test("a handler may close its own listener", async (t) => {
  const inSocket = socketEndpoint({ received: () => first.listener.close() });
  const first = await startListener(t, { sockets: inSocket.endpoint });
  const client = await openClient(t, first.port);
  client.socket.send("close");
  await until(() => client.closed.length === 1);
  t.strictSame((await connectionAt(inSocket.seen, 0)).closed, [1006]);

  const handle = () => {
    second.listener.close();
    return text("too late");
  };
  const http = httpEndpoint([
    { method: "GET", path: "/", handle },
    { method: "POST", path: "/", handle },
  ]);
  for (const request of ["GET / HTTP/1.1", "POST / HTTP/1.1"]) {
    second = await startListener(t, { http });
    const caller = new RawClient(t, second.port);
    caller.write(`${request}\r\nhost: x\r\ncontent-length: 0\r\n\r\n`);
    await caller.closed();
    t.equal(caller.text, "");
    t.strictSame(second.errors, []);
  }
});
let second: Awaited<ReturnType<typeof startListener>>;

t.test("a process exits after its listeners are closed", async (t) => {
  const compiled = (name: string) =>
    JSON.stringify(compiledUrl(new URL(`../../src/transport/${name}.ts`, import.meta.url)));
  const source = `
    import { createListener } from ${compiled("listener")};
    import { chooseDriver } from ${compiled("drivers")};
    import { BodyBudget } from ${compiled("http-body")};
    import { SocketLimits } from ${compiled("socket-limits")};
    const limits = new SocketLimits({ capacity: () => 100, maxUnauthenticatedPerAddress: 10, reserve: { start() {}, stop() {} }, onRefused() {} });
    const { driver } = await chooseDriver({ driver: "${DRIVER.name}", maxHeadBytes: 16384 });
    const listener = createListener({ driver, limits, trustedProxies: [], spareSockets: 0, bodies: new BodyBudget(0), host: "${HOST}", port: 0, tls: undefined, onError() {},
      http: { routes: [], headers: [], maxBodyBytes: 1, notFound: () => ({ status: 404, body: "" }), wrongMethod() {}, tooLarge() {} } });
    const port = await listener.start();
    const { status } = await fetch("http://${HOST}:" + port, { headers: { connection: "close" } });
    listener.close();
    process.exitCode = status === 404 ? 7 : 1;
  `;
  const args = ["--input-type=module", "--eval", source];
  const child = spawnSync(...tieToParent(process.execPath, args), {
    timeout: 60_000,
  });
  t.equal(child.status, 7, child.stderr.toString());
});

t.test("HTTP calls and WebSockets work over TLS", async (t) => {
  const { endpoint } = socketEndpoint({
    received: ({ connection }, data) => connection.send(data),
  });
  for (const tls of [
    tlsFiles(),
    tlsFiles({
      keyFile: tlsFile("key-encrypted.pem"),
      passphrase: "jindou-test",
    }),
  ]) {
    const listenerSpec = { http: hello(), sockets: endpoint, tls };
    const { port } = await startListener(t, listenerSpec);
    const agent = new Agent({ rejectUnauthorized: false });
    t.teardown(() => agent.destroy());
    const status = await new Promise((resolve, reject) =>
      get({ host: HOST, port, agent }, (response) => resolve(response.resume().statusCode)).on(
        "error",
        reject,
      ),
    );
    t.equal(status, 200);
    const url = `wss://${HOST}:${port}/`;
    const client = await openClient(t, port, {
      url,
      rejectUnauthorized: false,
    });
    client.socket.send("hello");
    await until(() => client.texts.length === 1);
  }
});

t.test(
  "a client certificate from a different CA is refused if a CA file is set, and a missing certificate is accepted",
  async (t) => {
    const tls = tlsFiles({ caFile: tlsFile("cert.pem") });
    const { port } = await startListener(t, { http: hello(), tls });
    const ask = (agent: Agent) =>
      new Promise<number | undefined>((resolve) =>
        get({ host: HOST, port, agent }, (response) => resolve(response.resume().statusCode)).on(
          "error",
          () => resolve(undefined),
        ),
      );
    const certificate = (certFile: string, keyFile: string) => ({
      cert: readFileSync(tlsFile(certFile)),
      key: readFileSync(tlsFile(keyFile)),
    });
    const askWith = async (options: object) => {
      const agent = new Agent({ rejectUnauthorized: false, ...options });
      t.teardown(() => agent.destroy());
      return ask(agent);
    };
    t.equal(await askWith({}), 200);
    t.equal(await askWith(certificate("cert.pem", "key.pem")), 200);
    const other = certificate("other-cert.pem", "other-key.pem");
    t.equal(await askWith(other), undefined);
  },
);

t.test("a listener rejects unusable TLS files and reports the cause", async (t) => {
  const cases: readonly [string, TlsFiles, string | RegExp][] = [
    ["missing", tlsFiles({ certFile: "/nowhere/cert.pem" }), "ENOENT"],
    ["a directory", tlsFiles({ keyFile: tlsFile("") }), "EISDIR"],
    ["not PEM", tlsFiles({ certFile: new URL(import.meta.url).pathname }), /^ERR_/],
    ["other key", tlsFiles({ keyFile: tlsFile("other-key.pem") }), /^ERR_/],
    ["missing CA", tlsFiles({ caFile: "/nowhere/ca.pem" }), "ENOENT"],
    [
      "wrong passphrase",
      tlsFiles({ keyFile: tlsFile("key-encrypted.pem"), passphrase: "no" }),
      /^ERR_/,
    ],
  ];
  for (const [name, tls, code] of cases) {
    const cause = await causeOf(createListener(spec({ tls })).start());
    t.match(cause, { code }, name);
  }
});

const hasV6 = Object.values(networkInterfaces()).some((addresses) =>
  addresses?.some(({ family }) => family === "IPv6"),
);

t.test(
  "an IPv6 host may be written with or without brackets",
  { skip: hasV6 ? false : "this machine has no IPv6" },
  async (t) => {
    for (const host of ["::1", "[::1]"]) {
      const { port } = await startListener(t, { host, http: hello() });
      t.equal((await fetch(`http://[::1]:${port}/`)).status, 200);
      const second = createListener(spec({ host, port }));
      await t.rejects(second.start(), /another process is already listening there/);
    }
  },
);
