// Tests of a node whose Redis cannot be used. The sentence on standard error, and the same sentence
// in the log while the node waits, name the cause and what to do.

import { rm } from "node:fs/promises";
import { createServer as createHttpServer } from "node:http";
import { createServer, type Server } from "node:net";
import { networkInterfaces } from "node:os";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import type { Redis } from "ioredis";
import t, { type Test } from "tap";
import { tempFolder } from "../support/broker.ts";
import {
  freePort,
  type RedisServer,
  startRedis,
  startRedisCluster,
  waitForReplication,
} from "../support/redis.ts";
import { startSentinels } from "../support/sentinels.ts";
import { type LogLine, spawnJindou } from "./jindou.ts";

type Settings = Readonly<Record<string, string>>;

interface Situation {
  readonly title: string;
  /** Creates the situation and returns the settings of the node. */
  readonly make: (t: Test) => Promise<Settings>;
  /** Matches the sentence, from its beginning. */
  readonly sentence: RegExp;
  /** True if the node does not wait, because waiting cannot fix the cause. */
  readonly lasts?: true;
  /** Reason why this machine cannot create the situation, `false` if it can. */
  readonly skip?: string | false;
}

const url = (address: string): Settings => ({ JINDOU_REDIS_URL: address });

function tlsFile(name: string): string {
  return fileURLToPath(new URL(`../support/tls/${name}`, import.meta.url));
}

/** Starts a Redis with a port for TLS at two addresses, and returns that port. */
async function startWithTls(
  t: Test,
  clients: "yes" | "no",
  certificate = "cert.pem",
): Promise<number> {
  const port = await freePort();
  await startRedis(t, [
    ...["--bind", "127.0.0.1", "127.0.0.2", "--tls-port", `${port}`],
    ...["--tls-auth-clients", clients, "--tls-ca-cert-file", tlsFile("cert.pem")],
    ...["--tls-cert-file", tlsFile(certificate), "--tls-key-file", tlsFile("key.pem")],
  ]);
  return port;
}

/** Starts a Redis whose certificate is trusted, but not valid at this time. */
async function startWithCertificate(t: Test, certificate: string): Promise<Settings> {
  const port = await startWithTls(t, "no", certificate);
  return {
    ...url(`rediss://127.0.0.1:${port}`),
    JINDOU_REDIS_CA_FILE: tlsFile(certificate),
  };
}

/** Address of this machine to which Redis does not accept connections in its protected mode. */
const ADDRESS = Object.values(networkInterfaces())
  .flatMap((addresses) => addresses ?? [])
  .find(({ family, internal }) => family === "IPv4" && !internal)?.address;

/** Starts a Redis and runs commands on it. */
async function redisAfter(
  t: Test,
  commands: (client: Redis, redis: RedisServer) => Promise<unknown>,
  args: readonly string[] = [],
): Promise<Settings> {
  const redis = await startRedis(t, args);
  await commands(redis.client(), redis);
  return url(redis.url);
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await pause(50);
}

/** Starts a server on a free port. */
async function listening(t: Test, server: Server): Promise<Settings> {
  const port = await freePort();
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  t.teardown(() => server.close());
  return url(`redis://127.0.0.1:${port}`);
}

t.jobs = 4;

const SITUATIONS: readonly Situation[] = [
  {
    title: "a Redis that has reached its client limit",
    make: (t) => redisAfter(t, (client) => client.config("SET", "maxclients", "1")),
    sentence: /^Redis has reached its maxclients .*ERR max number of clients.*Raise maxclients/,
  },
  {
    title: "rediss:// with a port that does not use TLS",
    make: async (t) => url(`rediss://127.0.0.1:${(await startRedis(t)).port}`),
    sentence: /^redis\.url begins with rediss:\/\/, but.*Write redis:\/\//,
    lasts: true,
  },
  {
    title: "redis:// with a port that uses TLS",
    make: async (t) => url(`redis://127.0.0.1:${await startWithTls(t, "no")}`),
    sentence: /^redis\.url begins with redis:\/\/, but.*Write rediss:\/\//,
    lasts: true,
  },
  {
    title: "a certificate from an unknown authority",
    make: async (t) => url(`rediss://127.0.0.1:${await startWithTls(t, "no")}`),
    sentence: /^this node does not trust the certificate .*self-signed.*Set redis\.caFile/,
    lasts: true,
  },
  {
    title: "a certificate from a different authority",
    make: async (t) => ({
      ...url(`rediss://127.0.0.1:${await startWithTls(t, "no")}`),
      JINDOU_REDIS_CA_FILE: tlsFile("other-cert.pem"),
    }),
    sentence: /^this node does not trust the certificate .*Set redis\.caFile/,
    lasts: true,
  },
  {
    title: "a certificate for a different host",
    make: async (t) => ({
      ...url(`rediss://127.0.0.2:${await startWithTls(t, "no")}`),
      JINDOU_REDIS_CA_FILE: tlsFile("cert.pem"),
    }),
    sentence: /^the certificate of Redis does not cover the host name .*127\.0\.0\.2/,
    lasts: true,
  },
  {
    title: "a Redis that requires client certificates",
    make: async (t) => ({
      ...url(`rediss://127.0.0.1:${await startWithTls(t, "yes")}`),
      JINDOU_REDIS_CA_FILE: tlsFile("cert.pem"),
    }),
    sentence: /^Redis requires client certificates.*tls-auth-clients no/,
    lasts: true,
  },
  {
    title: "a certificate that has expired",
    make: (t) => startWithCertificate(t, "expired-cert.pem"),
    sentence: /^the certificate of Redis has expired .*Renew the certificate, and check the clock/,
    lasts: true,
  },
  {
    title: "a certificate that is not valid yet",
    make: (t) => startWithCertificate(t, "future-cert.pem"),
    sentence: /^the certificate of Redis is not valid yet .*Check that clock/,
  },
  {
    title: "a Redis in protected mode",
    make: async (t) => {
      const { port } = await startRedis(t, ["--bind", "*", "--protected-mode", "yes"]);
      return url(`redis://${ADDRESS}:${port}`);
    },
    sentence: /^Redis is in protected mode.*DENIED.*Set a password/,
    lasts: true,
    skip: ADDRESS === undefined && "this machine has no address other than loopback",
  },
  {
    title: "a Redis Cluster with a primary that is down",
    async make(t) {
      const { url: address, primaries } = await startRedisCluster(t);
      const clients = primaries.map((primary) => primary.client());
      for (const client of clients) {
        await client.config("SET", "cluster-require-full-coverage", "yes");
        await client.config("SET", "cluster-node-timeout", "500");
      }
      clients[2]?.disconnect();
      await primaries[2]?.stop("SIGKILL");
      await until(async () => /cluster_state:fail/.test(String(await clients[0]?.cluster("INFO"))));
      return url(address);
    },
    sentence: /^the Redis Cluster is down.*546\d of 16384 slots.*Start the failed server/,
  },
  {
    title: "a Redis Cluster with slots that no server serves",
    async make(t) {
      const { url: address, primaries } = await startRedisCluster(t);
      for (const primary of primaries) {
        const client = primary.client();
        await client.config("SET", "cluster-require-full-coverage", "yes");
        await client.cluster("DELSLOTS", 1, 2, 3);
      }
      return url(address);
    },
    sentence: /^the Redis Cluster is down.*3 of 16384 slots.*assign its slots/,
  },
  {
    title: "a Redis Cluster that is configured as one server",
    make: async (t) => {
      const { primaries } = await startRedisCluster(t);
      return url(primaries[0]?.url ?? "");
    },
    sentence: /^Redis is a Cluster\. Set redis\.cluster/,
    lasts: true,
  },
  {
    title: "one server that is configured as a Redis Cluster",
    make: async (t) => ({ ...url((await startRedis(t)).url), JINDOU_REDIS_CLUSTER: "true" }),
    sentence: /^Redis is not a Cluster .*Set redis\.cluster/,
    lasts: true,
  },
  {
    title: "a Sentinel that is configured as one server",
    async make(t) {
      const { url: address, password } = await startSentinels(t, 0);
      return url(address.replace("//", `//:${password}@`));
    },
    sentence: /^redis\.url is the address of a Sentinel.*Set it/,
    lasts: true,
  },
  {
    title: "a Sentinel that is configured as a Redis Cluster",
    async make(t) {
      const { url: address, password } = await startSentinels(t, 0);
      return { ...url(address.replace("//", `//:${password}@`)), JINDOU_REDIS_CLUSTER: "true" };
    },
    sentence: /^the server has no CLUSTER command.*redis\.sentinelName/,
    lasts: true,
  },
  {
    title: "one server that is configured as a Sentinel",
    make: async (t) => ({
      ...url((await startRedis(t)).url),
      JINDOU_REDIS_SENTINEL_NAME: "chat",
    }),
    sentence: /^redis\.sentinelName is set, but redis\.url is not/,
    lasts: true,
  },
  {
    title: "Sentinels that cannot be reached",
    make: async () => ({
      ...url(`redis://127.0.0.1:${await freePort()}`),
      JINDOU_REDIS_SENTINEL_NAME: "chat",
    }),
    sentence: /^no Sentinel in redis\.url can be reached .*redis\.url/,
  },
  {
    title: "a replica in place of the primary",
    make: (t) => redisAfter(t, async (client) => client.replicaof("127.0.0.1", await freePort())),
    sentence: /^the server is a replica.*Set redis\.url.*to the primary/,
  },
  {
    title: "a Redis with fewer replicas than its min-replicas-to-write",
    make: (t) => redisAfter(t, (client) => client.config("SET", "min-replicas-to-write", "1")),
    sentence: /^Redis has fewer replicas than its min-replicas-to-write .*NOREPLICAS.*Start/,
  },
  {
    title: "a Redis with fewer replicas than redis.minReplicas",
    make: async (t) => ({ ...url((await startRedis(t)).url), JINDOU_REDIS_MIN_REPLICAS: "2" }),
    sentence: /^Redis has fewer replicas than redis\.minReplicas .*0 connected, 2 required.*Start/,
  },
  {
    title: "a Redis that a script keeps busy",
    make: (t) =>
      redisAfter(t, async (client) => {
        await client.config("SET", "busy-reply-threshold", "1");
        client.on("error", () => {});
        client.eval("while true do end", 0).catch(() => {});
      }),
    sentence: /^a script or function has kept Redis busy .*BUSY.*SCRIPT KILL/,
  },
  {
    title: "a Redis that cannot write to its disk",
    async make(t) {
      const folder = await tempFolder(t);
      const breakDisk = async (client: Redis) => {
        await rm(folder, { recursive: true });
        await client.bgsave();
        await until(async () => /bgsave_status:err/.test(await client.info("persistence")));
      };
      return redisAfter(t, breakDisk, ["--dir", folder, "--save", "3600 1"]);
    },
    sentence: /^Redis cannot write its data to the disk.*MISCONF.*log of Redis/,
  },
  {
    title: "a Redis whose memory is full",
    make: (t) => redisAfter(t, (client) => client.config("SET", "maxmemory", "1")),
    sentence: /^Redis has used all the memory .*OOM.*Raise maxmemory/,
  },
  {
    title: "a wrong password",
    make: async (t) => {
      const { port } = await startRedis(t);
      return url(`redis://nobody:hunter2@127.0.0.1:${port}`);
    },
    sentence: /^Redis rejects the user or the password .*WRONGPASS.*redis\.url/,
    lasts: true,
  },
  {
    title: "a password that is missing",
    make: (t) => redisAfter(t, (client) => client.config("SET", "requirepass", "hunter2")),
    sentence: /^Redis requires a password .*NOAUTH.*redis\.url/,
    lasts: true,
  },
  {
    title: "a host name that does not resolve",
    make: async () => url("redis://no-such-host.invalid:6379"),
    sentence: /^(the host name of Redis is unknown .*ENOTFOUND|no name server .*EAI_AGAIN)/,
  },
  {
    title: "a host name whose addresses refuse connections",
    make: async () => url(`redis://localhost:${await freePort()}`),
    sentence: /^no server accepts connections .*ECONNREFUSED.*redis\.url/,
  },
  {
    title: "an HTTP server in place of Redis",
    make: (t) => listening(t, createHttpServer()),
    sentence: /^the server does not speak the Redis protocol.*redis\.url/,
    lasts: true,
  },
  {
    title: "a Redis that never replies",
    make: (t) =>
      listening(
        t,
        createServer(() => {}),
      ),
    sentence: /^Redis has not answered within redis\.timeoutMs/,
  },
];

for (const { title, make, sentence, lasts, skip = false } of SITUATIONS)
  t.test(`a starting node reports, in one sentence, ${title}`, { skip }, async (t) => {
    const settings = await make(t);
    const env = {
      JINDOU_API_LISTEN: "127.0.0.1:0",
      JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      JINDOU_ADMIN_PASSWORD: "right",
      JINDOU_REDIS_TIMEOUT_MS: "500",
      JINDOU_START_WAIT_FOR_STORE_S: "600",
      ...settings,
    };
    const { child, exit, loggedLine } = spawnJindou(t, [], { env });
    if (lasts) {
      const { code, stderr } = await exit;
      t.equal(code, 1);
      t.match(/^jindou: Redis cannot be used: ([^\n]*)\.\n$/.exec(stderr)?.[1], sentence);
      t.notMatch(stderr, /hunter2/);
      return;
    }
    const { msg } = await loggedLine(({ reason }) => sentence.test(String(reason)));
    t.equal(msg, "The node waits for its store");
    child.kill("SIGTERM");
    t.equal((await exit).code, 0);
  });

/** Program that uses up all free file descriptors after SIGUSR2. */
const TAKE_DESCRIPTORS = `
  import { openSync } from "node:fs";
  const take = () => {
    try {
      for (;;) openSync("/dev/null");
    } catch {}
  };
  process.on("SIGUSR2", () => setInterval(take, 5).unref());
`;

t.test("a node without free file descriptors reports that the limit must be raised", async (t) => {
  const env = {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    JINDOU_ADMIN_PASSWORD: "right",
    JINDOU_START_WAIT_FOR_STORE_S: "600",
    ...url(`redis://127.0.0.1:${await freePort()}`),
  };
  const prefix = ["prlimit", "--nofile=256"];
  const node = spawnJindou(t, [], { env, preload: TAKE_DESCRIPTORS, prefix });
  await node.logged("The node waits for its store");
  node.child.kill("SIGUSR2");
  const sentence = /^no file descriptor is free .*EMFILE.*Raise the limit/;
  await node.loggedLine(({ reason }) => sentence.test(String(reason)));
  node.child.kill("SIGTERM");
  t.equal((await node.exit).code, 0);
});

t.test(
  "a starting node waits while its Redis replica does not confirm writes, and logs redis.minReplicas every few seconds",
  async (t) => {
    const redis = await startRedis(t, ["--repl-diskless-sync-delay", "0"]);
    const replica = await startRedis(t, ["--replicaof", "127.0.0.1", `${redis.port}`]);
    await waitForReplication(redis.client(), replica.client());
    replica.signal("SIGSTOP");
    const env = {
      JINDOU_API_LISTEN: "127.0.0.1:0",
      JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
      JINDOU_START_WAIT_FOR_STORE_S: "600",
      JINDOU_REDIS_MIN_REPLICAS: "1",
      JINDOU_REDIS_TIMEOUT_MS: "60000",
      ...url(redis.url),
    };
    const node = spawnJindou(t, [], { env });
    const isNamed = ({ msg, reason }: LogLine) =>
      msg === "The node waits for its store" &&
      /redis\.minReplicas .*0 confirmed a write, 1 required.*Start the/.test(String(reason));
    const first = await node.loggedLine(isNamed);
    await node.loggedLine((line) => isNamed(line) && Number(line.waitedS) > Number(first.waitedS));
    replica.signal("SIGCONT");
    await node.logged("The node is ready");
    node.child.kill("SIGTERM");
    t.equal((await node.exit).code, 0);
  },
);
