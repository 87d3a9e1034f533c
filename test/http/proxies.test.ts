// The proxy configurations of docs/operations.md in front of a node: they carry calls, a stream and
// a client socket, pass on no request that is smuggled in another request, and keep quiet
// sessions open.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { type AddressInfo, connect, createServer } from "node:net";
import { delimiter, join } from "node:path";
import t, { type Test } from "tap";
import { openFeed } from "../behaviour/feed.ts";
import { eventually, group, startWorld, TIMEOUT_MS } from "../behaviour/world.ts";
import { blocks, ROOT, readPage } from "../docs/pages.ts";
import { tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { openNative } from "../support/native-client.ts";
import { IS_FULL } from "../support/volume.ts";

const TOKEN = "a-static-token-of-the-test";
const TOOLS = execFileSync(join(ROOT, ".ci/tools"), ["--print"], { encoding: "utf8" }).trim();
const FOLDERS = [
  ...(process.env.PATH ?? "").split(delimiter),
  ...["/usr/sbin", join(TOOLS, "usr/bin"), join(TOOLS, "usr/sbin")],
];
const LIBRARIES = join(TOOLS, "usr/lib/x86_64-linux-gnu");
const PAGE = blocks(readPage("docs/operations.md"));

interface Ports {
  readonly api: number;
  readonly clients: number;
}

/** A proxy: the name of its program and of its block on the page, and how it is started. */
interface Proxy {
  readonly name: string;
  readonly program: string;
  /** Returns the complete configuration with the page's block in it. */
  wrap(block: string, folder: string): string;
  args(file: string, folder: string): readonly string[];
}

const PROXIES: readonly Proxy[] = [
  {
    name: "nginx",
    program: "nginx",
    wrap: (block, folder) =>
      `daemon off; master_process off; pid ${folder}/pid; error_log stderr;
events {} http { access_log off;
${["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((name) => `${name}_temp_path ${folder}/${name};`).join("\n")}
${block} }`,
    args: (file) => ["-c", file],
  },
  {
    name: "haproxy",
    program: "haproxy",
    wrap: (block) => `${block}\n`,
    args: (file) => ["-db", "-f", file],
  },
  {
    name: "caddy",
    program: "caddy",
    wrap: (block) => `{\n  admin off\n}\n${block}\n`,
    args: (file) => ["run", "--adapter", "caddyfile", "--config", file],
  },
  {
    name: "apache",
    program: "apache2",
    wrap: (block, folder) => {
      const installed = "/usr/lib/apache2/modules";
      const modules = existsSync(installed) ? installed : join(TOOLS, installed);
      const load = ["mpm_event", "authz_core", "proxy", "proxy_http"]
        .map((name) => `LoadModule ${name}_module ${modules}/mod_${name}.so`)
        .join("\n");
      const listens = [...block.matchAll(/\*:(\d+)/g)].map(([, port]) => `Listen ${port}`);
      return `ServerRoot ${folder}\nServerName localhost\nPidFile ${folder}/pid\nMutex file:${folder}\nDefaultRuntimeDir ${folder}\nErrorLog ${folder}/errors\n${load}\n${listens.join("\n")}\n${block}\n`;
    },
    args: (file) => ["-X", "-f", file],
  },
];

/** Returns `count` different free ports. */
async function freePorts(count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, "127.0.0.1"));
  await Promise.all(servers.map((server) => once(server, "listening")));
  const ports = servers.map((server) => (server.address() as AddressInfo).port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}

/** Starts the proxy in front of a node with these ports. Resolves to the ports of the proxy. */
async function startProxy(t: Test, proxy: Proxy, path: string, node: Ports): Promise<Ports> {
  const block = PAGE.find(({ language }) => language === proxy.name)?.text ?? "";
  const [api = 0, clients = 0] = await freePorts(2);
  const ports = { api, clients };
  const local = block
    .replaceAll(/\b(?:8200|5200)\b/g, (port) => `${port === "8200" ? clients : node.clients}`)
    .replaceAll(/\b(?:8001|5001)\b/g, (port) => `${port === "8001" ? api : node.api}`);
  const folder = await tempFolder(t);
  const file = join(folder, "proxy.conf");
  await writeFile(file, proxy.wrap(local, folder));
  const child = spawn(...tieToParent(path, proxy.args(file, folder)), {
    env: { ...process.env, HOME: folder, LD_LIBRARY_PATH: LIBRARIES },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  t.teardown(() => void child.kill("SIGKILL"));
  await eventually(async () => {
    if (child.exitCode !== null) throw new Error(`${proxy.name} exited: ${output}`);
    const ready = await fetch(`http://127.0.0.1:${ports.api}/readyz`).catch(() => undefined);
    return ready?.status === 200;
  });
  return ports;
}

const CHUNKED = "transfer-encoding: chunked";

/**
 * Returns requests whose body contains the request `hidden`. A proxy and the node may disagree on
 * where the body ends, and one of them may then treat the hidden request as a second request.
 */
function smuggling(hidden: string): readonly string[] {
  const line = "POST /user/onlinestatus HTTP/1.1\r\n";
  const head = `${line}host: x\r\n`;
  const size = hidden.length.toString(16);
  const length = `content-length: ${hidden.length}`;
  const chunk = `${size}\r\n${hidden}\r\n0\r\n\r\n`;
  // A parser that accepts one of these codings together with a Content-Length ignores the
  // Content-Length.
  const validCodings = [
    CHUNKED,
    "transfer-encoding:\tchunked",
    "transfer-encoding:\r\n chunked",
    `x: y\n${CHUNKED}`,
  ];
  const codings = [
    "transfer-encoding: xchunked",
    "transfer-encoding : chunked",
    "transfer-encoding: chunked, identity",
    "transfer-encoding: identity, chunked",
    "transfer-encoding: \vchunked",
    "transfer-encoding: chunked\v",
    "transfer-encoding: chunked\0",
    'transfer-encoding: "chunked"',
    "transfer-encoding: chunked;a=b",
    `${CHUNKED}\r\ntransfer-encoding: identity`,
    `transfer-encoding: identity\r\n${CHUNKED}`,
    `x: y\r${CHUNKED}`,
    `\0x: y\r\n${CHUNKED}`,
  ];
  const lengths = [
    `content-length: 0\r\n${length}`,
    `${length}\r\ncontent-length: 0`,
    `content-length: 0, ${hidden.length}`,
    "content-length: +0",
    "content-length: -0",
    "content-length: 0x0",
    `content-length : ${hidden.length}`,
    `content-length:\v${hidden.length}`,
    `content-length: ${hidden.length}\0`,
    `content-length:\r\n ${hidden.length}`,
    `connection: content-length\r\n${length}`,
    `connection: keep-alive, content-length\r\n${length}`,
    `expect: 100-continue\r\n${length}`,
    `expect: 200-ok\r\n${length}`,
  ];
  const chunked = (body: string) => `${head}${CHUNKED}\r\n\r\n${body}`;
  const bodies = [
    `2;a=b\r\n[]\r\n${chunk}`,
    `2 \r\n[]\r\n${chunk}`,
    `0x2\r\n[]\r\n${chunk}`,
    `+2\r\n[]\r\n${chunk}`,
    `-2\r\n[]\r\n${chunk}`,
    `2\n[]\n${chunk}`,
    `2\r\n[]${chunk}`,
    `2\r\n[]xx${chunk}`,
    `2;\n\r\n[]\r\n${chunk}`,
    `1${"0".repeat(16)}${size}\r\n${hidden}`,
    `ffffffffffffffff\r\n${hidden}`,
    `0\r\nxx${hidden}`,
    `0\r\nx: y\r\nxx${hidden}`,
    `00\r\nx:${hidden}`,
  ];
  return [
    ...[...validCodings, ...codings].map(
      (coding) => `${head}content-length: 4\r\n${coding}\r\n\r\n${chunk}`,
    ),
    ...[...codings, `x: y\r\n ${CHUNKED}`].map(
      (coding) =>
        `${head}content-length: ${hidden.length + 5}\r\n${coding}\r\n\r\n0\r\n\r\n${hidden}`,
    ),
    ...lengths.map((name) => `${head}${name}\r\n\r\n${hidden}`),
    ...bodies.map(chunked),
    `${head}connection: transfer-encoding\r\n${CHUNKED}\r\n\r\n${chunk}`,
    `POST /user/onlinestatus HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n${CHUNKED}\r\n\r\n${chunk}`,
    `GET /migrate/result HTTP/1.1\r\nhost: x\r\n${length}\r\n\r\n${hidden}`,
    `HEAD /migrate/result HTTP/1.1\r\nhost: x\r\n${CHUNKED}\r\n\r\n${chunk}`,
    `${line.replaceAll("\r\n", "\n")}host: x\n${length}\n\n${hidden}`,
    `${line}host: x\r\nhost: y\r\n${length}\r\n\r\n${hidden}`,
  ];
}

/** Sends the bytes and resolves when the peer has closed the connection or replied. */
async function exchange(port: number, bytes: string): Promise<void> {
  await new Promise<void>((resolve) => {
    const socket = connect(port, "127.0.0.1", () => socket.write(bytes));
    const end = () => {
      socket.destroy();
      resolve();
    };
    socket.setTimeout(2000, end);
    socket.on("error", end);
    socket.on("close", end);
    socket.on("data", end);
  });
}

/** Returns the path of the proxy's program, or `undefined` if it is not installed. */
function pathOf({ program }: Proxy): string | undefined {
  return FOLDERS.map((folder) => join(folder, program)).find((file) => existsSync(file));
}

const SETTINGS = {
  JINDOU_API_TOKEN: TOKEN,
  JINDOU_API_TRUSTED_PROXIES: "127.0.0.1",
  JINDOU_CLIENT_TRUSTED_PROXIES: "127.0.0.1",
};

for (const proxy of PROXIES) {
  const path = pathOf(proxy);
  t.test(
    `${proxy.name} with the documented configuration carries calls, a stream and a client socket, and no smuggled request`,
    { skip: path === undefined ? `${proxy.program} is not installed` : false },
    async (t) => {
      const headers = { token: TOKEN };
      const world = await startWorld(t, SETTINGS);
      const node = { api: world.apiPort, clients: world.clientPort };
      const ports = await startProxy(t, proxy, path ?? "", node);
      const api = `http://127.0.0.1:${ports.api}`;
      const post = async (target: string, body: object) => {
        const response = await fetch(`${api}${target}`, {
          method: "POST",
          headers: { ...headers, "content-type": "application/json" },
          body: JSON.stringify(body),
        });
        t.equal(response.status, 200, target);
        return response.json();
      };
      await post("/user/token", { uid: "alice", token: "token-alice", device_flag: 0 });
      const lobby = { channel_id: "lobby", channel_type: 2 };
      await post("/channel", { ...lobby, subscribers: ["alice", "bob"] });

      const login = { uid: "alice", token: "token-alice", timeoutMs: TIMEOUT_MS };
      const alice = await openNative(t, { ...login, port: ports.clients });
      await alice.connect();
      const payload = Buffer.from('{"type":1,"content":"hello"}').toString("base64");
      await post("/message/send", { ...lobby, from_uid: "bob", payload });
      t.equal((await alice.nextMessage()).fromUid, "bob", "a message arrives");
      const { messageSeq } = await alice.send(group("lobby"), "hi");
      t.equal(messageSeq, 2, "a message is sent");

      const event = { ...lobby, client_msg_no: "s", from_uid: "bob" };
      const add = (type: string, data = "") => post("/event", { ...event, event: { type, data } });
      await add("___TextMessageStart");
      const viewer = "uid=alice&token=token-alice&device_flag=0";
      const feeds = await Promise.all([
        openFeed(t, `${api}/stream/2/lobby/s`, headers),
        openFeed(t, `http://127.0.0.1:${ports.clients}/stream/2/lobby/s?${viewer}`),
      ]);
      await add("___TextMessageContent", "It is ");
      for (const feed of feeds) await eventually(() => feed.text() === "It is "); // before the stream has ended
      await add("___TextMessageEnd");
      for (const feed of feeds) await feed.ended;

      const hiddenCall = (id: string) => {
        const body = JSON.stringify({ channel_id: id, channel_type: 2 });
        return `POST /channel HTTP/1.1\r\nhost: x\r\ntoken: ${TOKEN}\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n\r\n${body}`;
      };
      const requests = smuggling("").map((_, at) => {
        const id = `smuggled-${100 + at}`;
        return { id, bytes: smuggling(hiddenCall(id))[at] ?? "" };
      });
      await Promise.all(requests.map(({ bytes }) => exchange(ports.api, bytes)));
      for (const { id, bytes } of requests) {
        const target = `${api}/channel/state?channel_id=${id}&channel_type=2`;
        const state = await fetch(target, { headers });
        t.equal(state.status, 404, `no second request is served: ${JSON.stringify(bytes)}`);
      }
    },
  );
}

/**
 * Duration of the silence. It is longer than the time-outs of many load balancers and than several
 * ping intervals of the server.
 */
const QUIET_MS = 180_000;

t.test(
  "a session that is quiet for three minutes stays open behind every documented proxy",
  {
    skip: IS_FULL ? false : "it takes three minutes (JINDOU_TEST_VOLUME=full)",
  },
  async (t) => {
    const world = await startWorld(t, SETTINGS);
    const post = (target: string, body: object) =>
      fetch(`http://127.0.0.1:${world.apiPort}${target}`, {
        method: "POST",
        headers: { token: TOKEN, "content-type": "application/json" },
        body: JSON.stringify(body),
      });
    const node = { api: world.apiPort, clients: world.clientPort };
    const sessions = [];
    for (const proxy of PROXIES) {
      if (pathOf(proxy) === undefined) continue;
      const { name } = proxy;
      const { clients: port } = await startProxy(t, proxy, pathOf(proxy) ?? "", node);
      await post("/user/token", { uid: name, token: name, device_flag: 0 });
      const session = await openNative(t, {
        uid: name,
        token: name,
        timeoutMs: TIMEOUT_MS,
        port,
      });
      await session.connect();
      sessions.push({ name, session });
    }
    await new Promise((resolve) => setTimeout(resolve, QUIET_MS));
    const payload = Buffer.from('{"type":1,"content":"hello"}').toString("base64");
    for (const { name, session } of sessions) {
      const message = { channel_id: name, channel_type: 1, from_uid: "____system", payload };
      t.equal((await post("/message/send", message)).status, 200);
      t.equal((await session.nextMessage()).fromUid, "____system", name);
    }
  },
);
