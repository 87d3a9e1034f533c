// Connections to Redis as docs/cluster.md describes them, each with real servers: TLS, a user with
// exactly the rights on that page, Sentinels and their fail-over. Also tests the error messages of
// a node whose connection is misconfigured.

import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { blocks, readPage, section } from "../docs/pages.ts";
import { openTerminal } from "../docs/terminal.ts";
import {
  type ApiResponse,
  type Broker,
  type Settings,
  startBroker,
  textPayload,
} from "../support/broker.ts";
import { connectNative } from "../support/native-client.ts";
import { textOf } from "../support/native-session.ts";
import { freePort, type RedisServer, startRedis, startRedisCluster } from "../support/redis.ts";
import { startSentinel, startSentinels } from "../support/sentinels.ts";

const TLS = { cert: tlsFile("cert.pem"), key: tlsFile("key.pem") };
const WAIT_LIMIT_MS = 120_000;
const USER = "jindou";
const PASSWORD = "hunter2";
/** The rights listed on the page, in their order. */
const RIGHTS = rightsOf(readPage("docs/cluster.md"));

function tlsFile(name: string): string {
  return fileURLToPath(new URL(`../support/tls/${name}`, import.meta.url));
}

function rightsOf(page: string): readonly string[] {
  const [block] = blocks(section(page, "### A user with few rights"));
  const words = (block?.text ?? "").split(/\s+/);
  return words.slice(words.indexOf("resetchannels"));
}

/** Starts a Redis with an additional port for TLS, and returns that port. */
async function startWithTls(t: Test): Promise<number> {
  const port = await freePort();
  await startRedis(t, [
    ...["--tls-port", `${port}`, "--tls-auth-clients", "no"],
    ...["--tls-cert-file", TLS.cert, "--tls-key-file", TLS.key],
    ...["--tls-ca-cert-file", TLS.cert],
  ]);
  return port;
}

/** Returns the message of the error with which a node fails to start, or "it started". */
async function startError(t: Test, settings: Settings): Promise<string> {
  const quick = {
    JINDOU_REDIS_TIMEOUT_MS: "1000",
    JINDOU_LOG_LEVEL: "silent",
    JINDOU_START_WAIT_FOR_STORE_S: "0",
  };
  return startBroker(t, { ...quick, ...settings }).then(
    () => "it started",
    (error: Error) => error.message,
  );
}

function sendText(broker: Broker, text: string): Promise<ApiResponse> {
  return broker.call("/message/send", {
    ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
    ...{ client_msg_no: text, payload: textPayload(text) },
  });
}

async function until(what: string, holds: () => Promise<boolean>) {
  const deadline = performance.now() + WAIT_LIMIT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`timed out waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/**
 * Sends a message to a client of the node and reads it back from history, which uses commands,
 * subscriptions and scripts.
 */
async function assertDelivers(t: Test, broker: Broker): Promise<void> {
  const { clientPort: port } = broker;
  const bob = await connectNative(t, { port, uid: "bob" });
  // A Cluster that was just created, or runs on a busy machine, may reject calls for a moment.
  await until("a send is accepted", async () => (await sendText(broker, "hello")).status === 200);
  t.equal(textOf(await bob.nextMessage()), "hello");
  const { messages } = await bob.history({ id: "alice", type: 1 });
  t.same(messages.map(textOf), ["hello"]);
  t.equal((await broker.call("/readyz")).status, 200);
}

const OPEN = { JINDOU_AUTH_CLIENTS: "none" };

t.test(
  "a node connects to Redis over TLS if redis.caFile contains the server's certificate",
  async (t) => {
    const url = `rediss://127.0.0.1:${await startWithTls(t)}`;
    const settings = {
      JINDOU_REDIS_URL: url,
      JINDOU_REDIS_CA_FILE: TLS.cert,
    };
    await assertDelivers(t, await startBroker(t, { ...OPEN, ...settings }));
  },
);

t.test("a node does not start if it does not trust the certificate of Redis", async (t) => {
  const url = `rediss://127.0.0.1:${await startWithTls(t)}`;
  t.match(
    await startError(t, { JINDOU_REDIS_URL: url }),
    /^Redis cannot be used: .*certificate.*self-signed certificate.*redis\.caFile/,
  );
  const otherCert = tlsFile("other-cert.pem");
  const settings = { JINDOU_REDIS_URL: url, JINDOU_REDIS_CA_FILE: otherCert };
  t.match(await startError(t, settings), /^Redis cannot be used: .*certificate/);
});

t.test(
  "a node whose rediss:// URL names a port without TLS fails to start instead of waiting forever",
  async (t) => {
    const { port } = await startRedis(t);
    const url = `rediss://127.0.0.1:${port}`;
    t.match(await startError(t, { JINDOU_REDIS_URL: url }), /^Redis cannot be used/);
  },
);

/** Creates the page's ACL user on the server. */
async function addUser(redis: RedisServer, rights = RIGHTS): Promise<void> {
  const client = redis.client();
  const words = ["reset", "on", `>${PASSWORD}`, ...rights];
  await client.call("ACL", "SETUSER", USER, ...words);
  await client.call("ACL", "LOG", "RESET");
}

const asUser = (url: string) => url.replaceAll("redis://", `redis://${USER}:${PASSWORD}@`);

/** A right that a node does not need, but uses if its ACL user has it. */
const OPTIONAL_RIGHT = "function|list";

/** Returns the denied commands in the ACL logs of the servers, except uses of `OPTIONAL_RIGHT`. */
async function denied(servers: readonly RedisServer[]): Promise<unknown[]> {
  const logs = servers.map((server) => server.client().call("ACL", "LOG"));
  const entries = (await Promise.all(logs)).flat();
  return entries.filter((entry) => !(entry as readonly unknown[]).includes(OPTIONAL_RIGHT));
}

t.test(
  "the ACL user of docs/cluster.md has all rights that a node needs on a single Redis server",
  async (t) => {
    t.ok(RIGHTS.length > 5, RIGHTS.join(" "));
    const redis = await startRedis(t);
    await addUser(redis);
    const settings = {
      JINDOU_ADMIN_PASSWORD: "correct horse",
      JINDOU_REDIS_URL: asUser(redis.url),
    };
    const broker = await startBroker(t, { ...OPEN, ...settings });
    await assertDelivers(t, broker);
    const terminal = openTerminal(t, process.cwd());
    const { apiPort } = broker;
    for (const { language, text } of blocks(readPage("docs/http.md")))
      if (language === "sh")
        await terminal.run(text.replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`));
    t.notMatch(terminal.screen(), /"(internal|unavailable)"/);
    await broker.close();
    t.same(await denied([redis]), []);
  },
);

t.test(
  "the ACL user of docs/cluster.md has all rights that a node on a Redis Cluster needs",
  async (t) => {
    const { url, primaries } = await startRedisCluster(t);
    await Promise.all(primaries.map((primary) => addUser(primary)));
    const settings = { JINDOU_REDIS_URL: asUser(url) };
    const broker = await startBroker(t, { ...OPEN, ...settings });
    await assertDelivers(t, broker);
    await broker.close();
    t.same(await denied(primaries), []);
  },
);

t.test(
  "the ACL user of docs/cluster.md can use neither keys and topics with another prefix nor administrative commands",
  async (t) => {
    const redis = await startRedis(t);
    await addUser(redis);
    const settings = { JINDOU_REDIS_URL: asUser(redis.url) };
    const elsewhere = { ...settings, JINDOU_REDIS_PREFIX: "other" };
    t.match(
      await startError(t, elsewhere),
      /^Redis cannot be used: its user jindou may not use keys that begin with other:/,
    );
    for (const words of [
      "GET other",
      "SPUBLISH other x",
      "FLUSHALL",
      "KEYS *",
      "CONFIG GET *",
      "EVAL x 0",
    ])
      t.match(await dryRun(redis, words), /no permissions/, words);
  },
);

/** For each right of the page, a command that needs it. */
const NEEDED: Readonly<Record<string, string>> = {
  "+@read": "GET jd:x",
  "+@write": "SET jd:x 1",
  "+@pubsub": "SSUBSCRIBE jd:x",
  "+@connection": "WAIT 1 100",
  "+evalsha": "EVALSHA x 1 jd:x",
  "+script|load": "SCRIPT LOAD x",
  "+fcall": "FCALL x 1 jd:x",
  "+info": "INFO",
  "+time": "TIME",
  "+cluster|slots": "CLUSTER SLOTS",
  "+cluster|info": "CLUSTER INFO",
};

t.test("a node needs every right that docs/cluster.md grants the ACL user", async (t) => {
  const commandRights = RIGHTS.filter((right) => right.startsWith("+"));
  t.same([...commandRights].sort(), Object.keys(NEEDED).sort());
  const redis = await startRedis(t);
  for (const [right, command] of Object.entries(NEEDED)) {
    await addUser(redis);
    t.equal(await dryRun(redis, command), "OK", command);
    const others = RIGHTS.filter((other) => other !== right);
    await addUser(redis, others);
    t.match(
      await dryRun(redis, command),
      /no permissions/,
      `a call is refused without the right ${right}`,
    );
  }
});

/** Returns `OK` if the user may run the command, else an error message. */
function dryRun(redis: RedisServer, words: string): Promise<unknown> {
  return redis.client().call("ACL", "DRYRUN", USER, ...words.split(" "));
}

t.test("the error about a wrong Redis password does not contain the password", async (t) => {
  const redis = await startRedis(t);
  await addUser(redis);
  const url = asUser(redis.url).replace(PASSWORD, "guessed");
  const message = await startError(t, { JINDOU_REDIS_URL: url });
  t.match(message, /^Redis cannot be used: .*WRONGPASS .*\. Check .* redis\.url/);
  t.notMatch(message, /guessed/);
});

t.test("messages acknowledged by a replica survive a fail-over by Sentinels", async (t) => {
  const watched = await startSentinels(t, 2);
  const unusedUrl = `redis://127.0.0.1:${await freePort()}`;
  const settings = {
    JINDOU_REDIS_URL: `${unusedUrl},${watched.url}`,
    JINDOU_REDIS_SENTINEL_NAME: watched.name,
    JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
    JINDOU_REDIS_MIN_REPLICAS: "1",
    JINDOU_REDIS_TIMEOUT_MS: "1000",
    JINDOU_LOG_LEVEL: "silent",
  };
  const broker = await startBroker(t, { ...OPEN, ...settings });
  const { clientPort: port } = broker;
  const bob = await connectNative(t, {
    ...{ port, uid: "bob", timeoutMs: WAIT_LIMIT_MS },
  });
  const sent: string[] = [];
  const sendUntilAccepted = async (text: string) => {
    await until(`${text} is accepted`, async () => (await sendText(broker, text)).status === 200);
    sent.push(text);
  };
  for (let n = 0; n < 20; n++) await sendUntilAccepted(`before ${n}`);
  await watched.primary.stop("SIGKILL");
  const { status, headers } = await sendText(broker, "refused");
  t.equal(status, 503);
  t.ok(Number(headers.get("retry-after")) >= 1);
  for (let n = 0; n < 20; n++) await sendUntilAccepted(`after ${n}`);
  const messagePushes = () => bob.pushes.filter(({ kind }) => kind === "message");
  await bob.waitFor(() => messagePushes().length >= sent.length);
  const { messages } = await bob.history({ id: "alice", type: 1 });
  t.same(messages.map(textOf), sent, "history contains each acknowledged message once, in order");
  t.same(
    messagePushes().map((push) => push.kind === "message" && textOf(push.message)),
    sent,
    "the session that stayed connected received the same messages",
  );
  await until("the node is ready", async () => (await broker.call("/readyz")).status === 200);
});

t.test("a node connects to Sentinels and their primary over TLS", async (t) => {
  const primary = await startWithTls(t);
  const watched = { name: "chat", password: "sentinels-only" };
  const port = await startSentinel(t, {
    ...{ ...watched, port: primary, replicas: 0, tls: TLS },
  });
  const settings = {
    JINDOU_REDIS_URL: `rediss://127.0.0.1:${port}`,
    JINDOU_REDIS_CA_FILE: TLS.cert,
    JINDOU_REDIS_SENTINEL_NAME: watched.name,
    JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
  };
  await assertDelivers(t, await startBroker(t, { ...OPEN, ...settings }));
});

t.test(
  "the error names redis.sentinelName or redis.sentinelPassword if Sentinels reject that setting",
  async (t) => {
    const watched = await startSentinels(t, 0);
    const settings = {
      JINDOU_REDIS_URL: watched.url,
      JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
    };
    const unknown = { ...settings, JINDOU_REDIS_SENTINEL_NAME: "nobody" };
    t.match(
      await startError(t, unknown),
      /^Redis cannot be used: .* not monitor a primary .*redis\.sentinelName/,
    );
    const wrong = {
      ...settings,
      JINDOU_REDIS_SENTINEL_NAME: watched.name,
      JINDOU_REDIS_SENTINEL_PASSWORD: "guessed",
    };
    t.match(
      await startError(t, wrong),
      /^Redis cannot be used: .* redis\.sentinelPassword .*WRONGPASS/,
    );
  },
);
