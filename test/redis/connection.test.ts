// Ways to Redis as docs/cluster.md shows them, each with real servers: TLS, a user with exactly the
// rights of that page, Sentinels and their fail-over; and what a node says when one of them is set
// up wrong.

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
const PATIENCE_MS = 120_000;
const USER = "jindou";
const PASSWORD = "hunter2";
/** The page's rights, in the order they are given. */
const RIGHTS = rightsOf(readPage("docs/cluster.md"));

function tlsFile(name: string): string {
  return fileURLToPath(new URL(`../support/tls/${name}`, import.meta.url));
}

function rightsOf(page: string): readonly string[] {
  const [block] = blocks(section(page, "### A user with few rights"));
  const words = (block?.text ?? "").split(/\s+/);
  return words.slice(words.indexOf("resetchannels"));
}

/** A Redis with a port for TLS beside the other one; that port. */
async function startWithTls(t: Test): Promise<number> {
  const port = await freePort();
  await startRedis(t, [
    ...["--tls-port", `${port}`, "--tls-auth-clients", "no"],
    ...["--tls-cert-file", TLS.cert, "--tls-key-file", TLS.key],
    ...["--tls-ca-cert-file", TLS.cert],
  ]);
  return port;
}

/** What a node that cannot start there says. */
async function refusal(t: Test, settings: Settings): Promise<string> {
  const quick = { JINDOU_REDIS_TIMEOUT_MS: "1000", JINDOU_LOG_LEVEL: "silent" };
  return startBroker(t, { ...quick, ...settings }).then(
    () => "it started",
    (error: Error) => error.message,
  );
}

function say(broker: Broker, no: string): Promise<ApiResponse> {
  return broker.call("/message/send", {
    ...{ from_uid: "alice", channel_id: "bob", channel_type: 1 },
    ...{ client_msg_no: no, payload: textPayload(no) },
  });
}

async function until(what: string, holds: () => Promise<boolean>) {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`not in time: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/**
 * A message to a client of the node and back out of history: commands, subscriptions and scripts
 * all go through.
 */
async function works(t: Test, broker: Broker): Promise<void> {
  const { clientPort: port } = broker;
  const bob = await connectNative(t, { port, uid: "bob" });
  // A Cluster that was just made, or is short of time, may refuse for a moment.
  await until("a send is taken", async () => (await say(broker, "hello")).status === 200);
  t.equal(textOf(await bob.nextMessage()), "hello");
  const { messages } = await bob.history({ id: "alice", type: 1 });
  t.same(messages.map(textOf), ["hello"]);
  t.equal((await broker.call("/readyz")).status, 200);
}

const OPEN = { JINDOU_AUTH_CLIENTS: "none" };

t.test("TLS, with the authority's certificate", async (t) => {
  const url = `rediss://127.0.0.1:${await startWithTls(t)}`;
  const settings = {
    JINDOU_REDIS_URL: url,
    JINDOU_REDIS_CA_FILE: TLS.cert,
  };
  await works(t, await startBroker(t, { ...OPEN, ...settings }));
});

t.test("a certificate that nobody vouches for is refused", async (t) => {
  const url = `rediss://127.0.0.1:${await startWithTls(t)}`;
  t.match(
    await refusal(t, { JINDOU_REDIS_URL: url }),
    /^Redis cannot be used: self-signed certificate; check redis\.url/,
  );
  const other = tlsFile("other-cert.pem");
  const settings = { JINDOU_REDIS_URL: url, JINDOU_REDIS_CA_FILE: other };
  t.match(await refusal(t, settings), /^Redis cannot be used: .*certificate/);
});

t.test("TLS to a port that speaks none is refused in time", async (t) => {
  const { port } = await startRedis(t);
  const url = `rediss://127.0.0.1:${port}`;
  t.match(await refusal(t, { JINDOU_REDIS_URL: url }), /^Redis cannot be used/);
});

/** Gives the page's user to the server. */
async function addUser(redis: RedisServer, rights = RIGHTS): Promise<void> {
  const client = redis.client();
  const words = ["reset", "on", `>${PASSWORD}`, ...rights];
  await client.call("ACL", "SETUSER", USER, ...words);
  await client.call("ACL", "LOG", "RESET");
}

const asUser = (url: string) => url.replaceAll("redis://", `redis://${USER}:${PASSWORD}@`);

/** What the servers refused to anybody, in their words. */
async function denied(servers: readonly RedisServer[]): Promise<unknown[]> {
  const logs = servers.map((one) => one.client().call("ACL", "LOG"));
  return (await Promise.all(logs)).flat();
}

t.test("the page's user may do all that a node does", async (t) => {
  t.ok(RIGHTS.length > 5, RIGHTS.join(" "));
  const redis = await startRedis(t);
  await addUser(redis);
  const settings = {
    JINDOU_ADMIN_PASSWORD: "correct horse",
    JINDOU_REDIS_URL: asUser(redis.url),
  };
  const broker = await startBroker(t, { ...OPEN, ...settings });
  await works(t, broker);
  const terminal = openTerminal(t, process.cwd());
  const { apiPort } = broker;
  for (const { language, text } of blocks(readPage("docs/http.md")))
    if (language === "sh")
      await terminal.run(text.replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`));
  t.notMatch(terminal.screen(), /"(internal|unavailable)"/);
  await broker.close();
  t.same(await denied([redis]), []);
});

t.test("and on a Redis Cluster", async (t) => {
  const { url, primaries } = await startRedisCluster(t);
  await Promise.all(primaries.map((one) => addUser(one)));
  const settings = { JINDOU_REDIS_URL: asUser(url) };
  const broker = await startBroker(t, { ...OPEN, ...settings });
  await works(t, broker);
  await broker.close();
  t.same(await denied(primaries), []);
});

t.test("what the user may not: other keys, topics, commands", async (t) => {
  const redis = await startRedis(t);
  await addUser(redis);
  const settings = { JINDOU_REDIS_URL: asUser(redis.url) };
  const elsewhere = { ...settings, JINDOU_REDIS_PREFIX: "other" };
  t.match(await refusal(t, elsewhere), /^Redis cannot be used: .*NOPERM/);
  for (const words of [
    "GET other",
    "SPUBLISH other x",
    "FLUSHALL",
    "KEYS *",
    "CONFIG GET *",
    "EVAL x 0",
  ])
    t.match(await dryRun(redis, words), /no permissions/, words);
});

/** For each right of the page a command that needs it. */
const NEEDED: Readonly<Record<string, string>> = {
  "+@read": "GET jd:x",
  "+@write": "SET jd:x 1",
  "+@pubsub": "SSUBSCRIBE jd:x",
  "+@connection": "WAIT 1 100",
  "+evalsha": "EVALSHA x 1 jd:x",
  "+script|load": "SCRIPT LOAD x",
  "+info": "INFO",
  "+time": "TIME",
  "+cluster|slots": "CLUSTER SLOTS",
  "+cluster|info": "CLUSTER INFO",
};

t.test("no right is one too many", async (t) => {
  const given = RIGHTS.filter((right) => right.startsWith("+"));
  t.same([...given].sort(), Object.keys(NEEDED).sort());
  const redis = await startRedis(t);
  for (const [right, words] of Object.entries(NEEDED)) {
    await addUser(redis);
    t.equal(await dryRun(redis, words), "OK", words);
    const others = RIGHTS.filter((one) => one !== right);
    await addUser(redis, others);
    t.match(await dryRun(redis, words), /no permissions/, `not ${right}`);
  }
});

/** Whether the user may: `OK`, or a sentence. */
function dryRun(redis: RedisServer, words: string): Promise<unknown> {
  return redis.client().call("ACL", "DRYRUN", USER, ...words.split(" "));
}

t.test("a wrong password is said in a sentence, without it", async (t) => {
  const redis = await startRedis(t);
  await addUser(redis);
  const url = asUser(redis.url).replace(PASSWORD, "guessed");
  const words = await refusal(t, { JINDOU_REDIS_URL: url });
  t.match(words, /^Redis cannot be used: WRONGPASS .*; check redis\.url/);
  t.notMatch(words, /guessed/);
});

t.test("Sentinels: what a replica has is there after their fail-over", async (t) => {
  const watched = await startSentinels(t, 2);
  const gone = `redis://127.0.0.1:${await freePort()}`;
  const settings = {
    JINDOU_REDIS_URL: `${gone},${watched.url}`,
    JINDOU_REDIS_SENTINEL_NAME: watched.name,
    JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
    JINDOU_REDIS_MIN_REPLICAS: "1",
    JINDOU_REDIS_TIMEOUT_MS: "1000",
    JINDOU_LOG_LEVEL: "silent",
  };
  const broker = await startBroker(t, { ...OPEN, ...settings });
  const { clientPort: port } = broker;
  const bob = await connectNative(t, {
    ...{ port, uid: "bob", timeoutMs: PATIENCE_MS },
  });
  const sent: string[] = [];
  const insist = async (no: string) => {
    await until(no, async () => (await say(broker, no)).status === 200);
    sent.push(no);
  };
  for (let n = 0; n < 20; n++) await insist(`before ${n}`);
  await watched.primary.stop("SIGKILL");
  const { status, headers } = await say(broker, "refused");
  t.equal(status, 503);
  t.ok(Number(headers.get("retry-after")) >= 1);
  for (let n = 0; n < 20; n++) await insist(`after ${n}`);
  const told = () => bob.pushes.filter(({ kind }) => kind === "message");
  await bob.waitFor(() => told().length >= sent.length);
  const { messages } = await bob.history({ id: "alice", type: 1 });
  t.same(messages.map(textOf), sent, "acknowledged once, in order");
  t.same(
    told().map((push) => push.kind === "message" && textOf(push.message)),
    sent,
    "and so the session that stayed was told",
  );
  await until("ready", async () => (await broker.call("/readyz")).status === 200);
});

t.test("Sentinels with TLS, and the primary with it as well", async (t) => {
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
  await works(t, await startBroker(t, { ...OPEN, ...settings }));
});

t.test("Sentinels that know no such primary are said", async (t) => {
  const watched = await startSentinels(t, 0);
  const settings = {
    JINDOU_REDIS_URL: watched.url,
    JINDOU_REDIS_SENTINEL_PASSWORD: watched.password,
  };
  const unknown = { ...settings, JINDOU_REDIS_SENTINEL_NAME: "nobody" };
  t.match(await refusal(t, unknown), /^Redis cannot be used: .* no primary .*redis\.sentinelName/);
  const wrong = {
    ...settings,
    JINDOU_REDIS_SENTINEL_NAME: watched.name,
    JINDOU_REDIS_SENTINEL_PASSWORD: "guessed",
  };
  t.match(await refusal(t, wrong), /^Redis cannot be used: .* redis\.sentinelPassword: WRONGPASS/);
});
