// Tests of `api.compatListen`, the second address of the API on the portable transport.

import { get } from "node:https";
import { connect, createServer } from "node:net";
import { text } from "node:stream/consumers";
import t from "tap";
import { jindou, nodeSettings, spawnJindou } from "./jindou.ts";

const TOKEN = "0123456789abcdef0123456789abcdef";

/** Sends these bytes and returns everything the server sends until it closes. */
async function exchange(port: number, bytes: string): Promise<string> {
  const socket = connect(port, "127.0.0.1");
  socket.write(bytes);
  return text(socket);
}

t.test("api.compatListen serves the API like api.listen, and also over HTTP/1.0", async (t) => {
  const settings = await nodeSettings(t, 1000);
  const node = spawnJindou(t, [], {
    env: { ...settings, JINDOU_API_COMPAT_LISTEN: "127.0.0.1:0", JINDOU_TRANSPORT_DRIVER: "uws" },
  });
  const ready = await node.logged("The node is ready");
  const [apiPort, compatPort] = [Number(ready.apiPort), Number(ready.apiCompatPort)];
  t.not(compatPort, apiPort);
  for (const port of [apiPort, compatPort])
    t.equal((await fetch(`http://127.0.0.1:${port}/healthz`)).status, 200);
  const check = "GET /healthz HTTP/1.0\r\n\r\n";
  t.match(await exchange(compatPort, check), /^HTTP\/1\.1 200 /);
  t.match(await exchange(apiPort, check), /^HTTP\/1\.1 505 /);
  const token = { uid: "alice", token: "secret", device_flag: 0 };
  const body = JSON.stringify(token);
  const chunked = `POST /user/token HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\ntrailer: a\r\n\r\n${body.length.toString(16)};b=c\r\n${body}\r\n0\r\na: d\r\n\r\n`;
  const reply = await exchange(compatPort, chunked);
  t.match(reply, /^HTTP\/1\.1 200 /);
  t.match(reply, /"status":"ok"/);
  const upgrade =
    "GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade, close\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
  t.notMatch(
    await exchange(compatPort, upgrade),
    /^HTTP\/1\.1 101 /,
    "the listener serves no sockets",
  );
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
});

t.test(
  "calls need a credential if api.compatListen is reachable from other machines",
  async (t) => {
    const env = {
      ...(await nodeSettings(t, 1000)),
      JINDOU_API_COMPAT_LISTEN: "0.0.0.0:0",
    };
    const refused = await jindou(t, ["check-config"], {
      env: { ...env, JINDOU_ADMIN_PASSWORD: "" },
    });
    t.equal(refused.code, 2);
    t.match(refused.stderr, /reachable from other machines without a configured credential/);
    const node = spawnJindou(t, [], { env: { ...env, JINDOU_API_TOKEN: TOKEN } });
    const { apiPort, apiCompatPort } = await node.logged("The node is ready");
    for (const port of [apiPort, apiCompatPort]) {
      const url = `http://127.0.0.1:${port}/user/onlinestatus`;
      const call = (headers: Record<string, string>) =>
        fetch(url, { method: "POST", body: '["alice"]', headers });
      t.equal((await call({ "content-type": "application/json" })).status, 401);
      t.equal((await call({ "content-type": "application/json", token: TOKEN })).status, 200);
    }
  },
);

const tls = (name: string) => new URL(`../support/tls/${name}`, import.meta.url).pathname;

t.test(
  "api.compatListen uses the TLS certificate of api.listen, and its connections count in jindou_sockets",
  async (t) => {
    const node = spawnJindou(t, [], {
      env: {
        ...(await nodeSettings(t, 1000)),
        JINDOU_API_COMPAT_LISTEN: "127.0.0.1:0",
        JINDOU_API_TLS_CERT_FILE: tls("cert.pem"),
        JINDOU_API_TLS_KEY_FILE: tls("key.pem"),
      },
    });
    const { apiPort, apiCompatPort } = await node.logged("The node is ready");
    const read = (port: unknown, path: string) =>
      new Promise<string>((resolve, reject) => {
        const url = `https://127.0.0.1:${port}${path}`;
        get(url, { rejectUnauthorized: false, agent: false }, (reply) =>
          text(reply).then(resolve, reject),
        ).once("error", reject);
      });
    t.match(await read(apiCompatPort, "/healthz"), "ok");
    const sockets = async () =>
      Number(/^jindou_sockets (\d+)$/m.exec(await read(apiPort, "/metrics"))?.[1]);
    const before = await sockets();
    const silent = [1, 2, 3].map(() => connect(Number(apiCompatPort), "127.0.0.1"));
    t.teardown(() => {
      for (const socket of silent) socket.destroy();
    });
    while ((await sockets()) < before + silent.length)
      await new Promise((resolve) => setTimeout(resolve, 10));
  },
);

t.test(
  "an error names api.compatListen if its address is invalid, in use or the address of api.listen",
  async (t) => {
    const env = await nodeSettings(t, 1000);
    const equal = await jindou(t, ["check-config"], {
      env: {
        ...env,
        JINDOU_API_LISTEN: "127.0.0.1:5001",
        JINDOU_API_COMPAT_LISTEN: "127.0.0.1:5001",
      },
    });
    t.equal(equal.code, 2);
    t.match(equal.stderr, "api.compatListen must not be the same address as api.listen");
    const invalid = await jindou(t, ["check-config"], {
      env: { ...env, JINDOU_API_COMPAT_LISTEN: "nowhere" },
    });
    t.match(invalid.stderr, "api.compatListen must be host:port");

    const other = createServer().listen(0, "127.0.0.1");
    t.teardown(() => other.close());
    await new Promise((resolve) => other.once("listening", resolve));
    const { port } = other.address() as { port: number };
    const portInUse = await jindou(t, [], {
      env: { ...env, JINDOU_API_COMPAT_LISTEN: `127.0.0.1:${port}` },
    });
    t.equal(portInUse.code, 1);
    t.match(
      portInUse.stderr,
      /another process is already listening there; set api\.compatListen \(JINDOU_API_COMPAT_LISTEN\)/,
    );
  },
);
