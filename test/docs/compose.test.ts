// Tests of `config/compose/`: the settings exist and are valid, no secret has a default value, and
// nodes, Redis and HAProxy run with the settings of the files and the addresses of the test. Docker
// itself is not used, because the test machines do not have it.

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import t, { type Test } from "tap";
import { parse } from "yaml";
import { loadConfig } from "../../src/config/load.ts";
import { CONFIG_KEYS } from "../../src/config/schema.ts";
import { jindou } from "../main/jindou.ts";
import {
  type ChildBroker,
  type Settings,
  spawnBroker,
  startBroker,
  tempFolder,
  textPayload,
} from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { findLinter } from "../support/linters.ts";
import { openNative } from "../support/native-client.ts";
import { freePort } from "../support/redis.ts";
import { blocks, readPage, section } from "./pages.ts";

const FOLDER = "config/compose";
const FILES = ["single.yaml", "cluster.yaml", "observability.yaml"];
const PAGE = readPage("docs/cluster.md");
const PASSWORD = "0123456789abcdef0123456789abcdef";
const SECRETS = { REDIS_PASSWORD: PASSWORD, API_TOKEN: PASSWORD, GRAFANA_PASSWORD: PASSWORD };
const NODES = ["node-1", "node-2", "node-3"];
const haproxy = findLinter("haproxy");

/** A service in a compose file. */
interface Service {
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string>>;
  readonly networks?: readonly string[];
  readonly ports?: readonly string[];
  readonly volumes?: readonly string[];
}

interface Compose {
  readonly services: Readonly<Record<string, Service>>;
  readonly networks?: Readonly<
    Record<string, { readonly ipam?: { readonly config: readonly { readonly subnet: string }[] } }>
  >;
  readonly volumes?: Readonly<Record<string, unknown>>;
}

/** Returns a compose file with the secrets filled in, as `docker compose` does. */
function compose(file: string): Compose {
  const filled = readPage(`${FOLDER}/${file}`).replaceAll(
    /\$\{(\w+):\?[^}]*\}/g,
    (_, name: string) => SECRETS[name as keyof typeof SECRETS] ?? "unknown",
  );
  return parse(filled, { merge: true });
}

/** Returns the settings of a service that runs a node. */
function settingsOf(file: string, name: string): Settings {
  return compose(file).services[name]?.environment ?? {};
}

const SETTINGS: readonly (readonly [string, Settings])[] = [
  ["single.yaml", settingsOf("single.yaml", "jindou")],
  ["observability.yaml", settingsOf("observability.yaml", "jindou")],
  ...NODES.map((name) => ["cluster.yaml", settingsOf("cluster.yaml", name)] as const),
];

t.test("the settings in the compose files exist and are valid", async (t) => {
  const settingNames = new Set(CONFIG_KEYS.map(({ env }) => env));
  for (const [file, env] of SETTINGS) {
    const unknown = Object.keys(env).filter((setting) => !settingNames.has(setting));
    t.same(unknown, [], file);
    t.equal(loadConfig({ env }).api.token, PASSWORD, "every call needs the token");
  }
});

t.test("no compose file contains a secret, and the API is published on loopback only", (t) => {
  for (const file of FILES) {
    const text = readPage(`${FOLDER}/${file}`);
    const values = [...text.matchAll(/^\s+\w*(PASSWORD|TOKEN|URL): (.*)$/gm)];
    t.ok(values.length >= 1, file);
    for (const [line] of values) t.match(line, /\$\{\w+:\?/);
    t.notMatch(text, /\$\{\w+:?-/, "no secret has a default value");
    const ports = Object.values(compose(file).services).flatMap((service) => service.ports ?? []);
    t.same(ports.slice(0, 2), ["5200:5200", "127.0.0.1:5001:5001"], file);
    for (const port of ports.slice(2)) t.match(port, /^127\.0\.0\.1:/, file);
    const ignored = readPage(".gitignore").split("\n");
    t.ok(ignored.includes(`${FOLDER}/.env`), "git ignores the file with the secrets");
  }
  t.match(readPage(".dockerignore"), /^config\/compose$/m, "the image does not contain them");
  t.ok(JSON.parse(readPage("package.json")).files.includes(`!${FOLDER}/.env`));
  t.end();
});

t.test("observability.yaml mounts files that exist, and Prometheus reads the node's token", (t) => {
  const { services } = compose("observability.yaml");
  const mounts = Object.values(services)
    .flatMap(({ volumes = [] }) => volumes)
    .filter((mount) => mount.startsWith("."));
  t.equal(mounts.length, 5);
  for (const mount of mounts) t.ok(readPage(join(FOLDER, mount.split(":")[0] ?? "")), mount);
  const prometheus = parse(readPage("config/observability/prometheus.yaml"));
  const [job] = prometheus.scrape_configs;
  t.match(job, {
    job_name: "jindou",
    authorization: { credentials_file: "/run/secrets/api_token" },
  });
  t.same(job.static_configs, [{ targets: ["jindou:5001"] }]);
  t.end();
});

t.test("single.yaml mounts a volume at the path where the image stores its data", async (t) => {
  const { services, volumes } = compose("single.yaml");
  const [mount = ""] = services.jindou?.volumes ?? [];
  const [volume = "", path] = mount.split(":");
  t.ok(volume in (volumes ?? {}), "the volume is declared");
  t.match(readPage("Dockerfile"), new RegExp(`JINDOU_STORE_PATH=${path}\\b`));
});

t.test(
  "the node of single.yaml accepts its token, and the command jindou finds the token in the environment",
  async (t) => {
    const ports = { API: await freePort(), CLIENT: await freePort() };
    const env = Object.fromEntries(
      Object.entries(settingsOf("single.yaml", "jindou")).map(([name, value]) => [
        name,
        value.replace(":5001", `:${ports.API}`).replace(":5200", `:${ports.CLIENT}`),
      ]),
    );
    const node = await spawnBroker(t, env);
    t.equal((await node.call("/varz")).status, 401, "a call without the token is refused");
    t.equal((await node.call("/varz", undefined, { token: PASSWORD })).status, 200);
    t.match(await jindou(t, ["health"], { env }), { code: 0 });
    t.match(await jindou(t, ["token", "alice"], { env }), { code: 0, stdout: /^\S+\n$/ });
  },
);

t.test(
  "the Redis of cluster.yaml has the user that docs/cluster.md describes, and a node needs this user to start",
  async (t) => {
    const { port, text } = await startRedisOfCluster(t);
    const rights = /resetchannels.*/.exec(
      blocks(section(PAGE, "### A user with few rights"))[0]?.text ?? "",
    );
    const words = text.replaceAll(/["\s]+/g, " ");
    t.ok(words.includes(rights?.[0] ?? "no rights"), "the user has the rights that the page lists");
    const anonymous = { JINDOU_REDIS_URL: `redis://127.0.0.1:${port}` };
    await t.rejects(
      startBroker(t, anonymous),
      /^Redis cannot be used: .*NOAUTH/,
      "a node without the user cannot start",
    );
  },
);

/** Runs the Redis command of `cluster.yaml` with a port and a folder of the test. */
async function startRedisOfCluster(
  t: Test,
): Promise<{ readonly port: number; readonly text: string }> {
  const command = compose("cluster.yaml").services.redis?.command?.[2] ?? "";
  const text = command.replaceAll("$$", "$");
  const port = await freePort();
  const args = `--port ${port} --bind 127.0.0.1 --daemonize no`;
  const child = spawn(
    ...tieToParent("sh", ["-c", text.replace("redis-server", `redis-server ${args}`)]),
    { cwd: await tempFolder(t), env: { PATH: process.env.PATH, REDIS_PASSWORD: PASSWORD } },
  );
  const exit = once(child, "exit");
  t.teardown(async () => {
    child.kill("SIGKILL");
    await exit;
  });
  let output = "";
  child.stdout.on("data", (chunk) => {
    output += chunk;
    child.emit("output");
  });
  while (!output.includes("Ready to accept")) {
    await Promise.race([once(child, "output"), exit]);
    if (child.exitCode !== null) throw new Error(`Redis exited: ${output}`);
  }
  return { port, text };
}

t.test(
  "the nodes of cluster.yaml trust proxies only in the network shared with the load balancer",
  async (t) => {
    const { services, networks } = compose("cluster.yaml");
    const subnet = networks?.front?.ipam?.config[0]?.subnet ?? "";
    const inFront = Object.keys(services).filter((name) =>
      services[name]?.networks?.includes("front"),
    );
    t.same(inFront.sort(), ["balancer", ...NODES]);
    for (const name of NODES) {
      const { api, client } = loadConfig({ env: settingsOf("cluster.yaml", name) });
      t.same([api.trustedProxies, client.trustedProxies], [[subnet], [subnet]]);
    }
  },
);

/** Address of a client of the cluster, and the network that the nodes trust in the test. */
const CLIENT = "127.8.0.1";
const TRUSTED = "127.7.0.0/24";

interface Cluster {
  readonly nodes: readonly ChildBroker[];
  readonly apiPort: number;
  readonly clientPort: number;
}

/** Starts the processes of `cluster.yaml`, with addresses of this machine. */
async function startCluster(t: Test): Promise<Cluster> {
  const { port } = await startRedisOfCluster(t);
  const { networks } = compose("cluster.yaml");
  const subnet = networks?.front?.ipam?.config[0]?.subnet ?? "";
  let config = readPage(`${FOLDER}/haproxy.cfg`);
  const nodes: ChildBroker[] = [];
  for (const name of NODES) {
    const changed = Object.entries(settingsOf("cluster.yaml", name)).map(([key, value]) => [
      key,
      value
        .replace("@redis:6379", `@127.0.0.1:${port}`)
        .replace(subnet, TRUSTED)
        .replace(/^0\.0\.0\.0:\d+$/, "127.0.0.1:0"),
    ]);
    const settings = { ...Object.fromEntries(changed), JINDOU_DRAIN_NOTICE_MS: "0" };
    const node = await spawnBroker(t, settings);
    nodes.push(node);
    config = config
      .replaceAll(`${name}:5200 send`, `127.0.0.1:${node.clientPort} port ${node.apiPort} send`)
      .replaceAll(`${name}:5001`, `127.0.0.1:${node.apiPort}`);
  }
  const [apiPort, clientPort] = [await freePort(), await freePort()];
  config = config
    .replace("bind :5001", `bind 127.0.0.1:${apiPort}`)
    .replace("bind :5200", `bind 127.0.0.1:${clientPort}`)
    .replace("  default-server port 5001\n", "")
    .replace("maxconn 100000", "maxconn 100")
    .replace("default-server check", "default-server source 127.7.0.1 check");
  const file = join(await tempFolder(t), "haproxy.cfg");
  await writeFile(file, config);
  const proxy = spawn(...tieToParent(haproxy.path, ["-db", "-f", file]), { stdio: "ignore" });
  t.teardown(() => proxy.kill("SIGKILL"));
  await once(proxy, "spawn");
  return { nodes, apiPort, clientPort };
}

/** Calls the API through the load balancer, and repeats a call while no node accepts it. */
async function callThrough(
  { apiPort }: Cluster,
  path: string,
  body?: unknown,
): Promise<Readonly<Record<string, unknown>>> {
  for (;;) {
    const response = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { "content-type": "application/json", token: PASSWORD },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    }).catch(() => undefined);
    if (response?.status === 200)
      return (await response.json()) as Readonly<Record<string, unknown>>;
    if (response !== undefined && response.status !== 503)
      throw new Error(`${path} was answered with ${response.status}: ${await response.text()}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

t.test(
  "behind the HAProxy of cluster.yaml, the nodes serve clients and know the clients' addresses",
  { skip: haproxy.skip },
  async (t) => {
    const cluster = await startCluster(t);
    for (const uid of ["alice", "bob"])
      await callThrough(cluster, "/user/token", { uid, token: `${uid}-secret`, device_flag: 0 });
    const port = cluster.clientPort;
    const login = { port, uid: "alice", token: "alice-secret", localAddress: CLIENT };
    const alice = await openNative(t, login);
    await alice.connect();
    const lists = await Promise.all(
      cluster.nodes.map((node) => node.call("/connz", undefined, { token: PASSWORD })),
    );
    const sessions = lists.flatMap(({ body }) => body.connections);
    t.match(sessions, [{ uid: "alice", ip: CLIENT }], "the node knows the address of the client");
    const personal = { from_uid: "bob", channel_id: "alice", channel_type: 1 };
    const send = (content: string) => {
      const message = { client_msg_no: content, payload: textPayload(content) };
      return callThrough(cluster, "/message/send", { ...personal, ...message });
    };
    t.equal((await send("hello")).message_seq, 1);
    await cluster.nodes[0]?.kill();
    t.equal((await send("again")).message_seq, 2, "the other nodes serve the calls");
  },
);

t.test("HAProxy accepts haproxy.cfg as it is", { skip: haproxy.skip }, async (t) => {
  const file = `${FOLDER}/haproxy.cfg`;
  const { status, stderr } = spawnSync(haproxy.path, ["-c", "-f", file], { encoding: "utf8" });
  t.equal(status, 0, stderr);
});

t.test("haproxy.cfg lists the ports of every node in cluster.yaml", (t) => {
  const config = readPage(`${FOLDER}/haproxy.cfg`);
  const env = settingsOf("cluster.yaml", "node-1");
  for (const name of ["JINDOU_API_LISTEN", "JINDOU_CLIENT_LISTEN"]) {
    const port = env[name]?.split(":")[1] ?? "";
    const servers = [...config.matchAll(new RegExp(`server (\\S+) (\\S+):${port}\\b`, "gm"))];
    t.same(
      servers.map(([, label, host]) => [label, host]),
      NODES.map((node) => [node, node]),
    );
  }
  t.end();
});
