// Tests of who may use the streams at /v1/stream/: backends with a credential, bearers of signed
// URLs, and callers on this machine in protected mode.

import t, { type Test } from "tap";
import { type Broker, spawnBroker, startBroker } from "../support/broker.ts";
import { startRedis } from "../support/redis.ts";
import { type Call, callAt, type Reply } from "./http-client.ts";

const JSON_TYPE = { "content-type": "application/json" };
const TOKEN = { token: "0123456789abcdef" };
/** Each header that may carry a credential or name the user. */
const VARY = "authorization, token, origin, x-uid, x-uid*, x-token, x-token*, x-device-flag";
const LISTED = "https://app.example";
/** Number of wrong signatures after which a network is slowed down, by default. */
const MAX_GUESSES = 20;
/** Number of parallel guesses, more than the number of guesses that may wait for a check. */
const CROWD = 24;

type Caller = (path: string, call?: Call) => Promise<Reply>;

const at =
  (port: number): Caller =>
  (path, call) =>
    callAt(port, path, call);

const put = (headers: Call["headers"] = {}): Call => ({
  ...{ method: "PUT", body: "[1]" },
  headers: { ...JSON_TYPE, ...headers },
});
const append = (headers: Call["headers"] = {}): Call => ({
  ...{ method: "POST", body: "[2]" },
  headers: { ...JSON_TYPE, ...headers },
});

/** A broker in protected mode. Other machines can reach its client listener by default. */
const open = await startBroker(t, { JINDOU_CLIENT_ALLOWED_ORIGINS: LISTED });
/** A broker whose calls need a credential. */
const closed = await startBroker(t, { JINDOU_API_TOKEN: TOKEN.token });

/** Signs a path and returns the path with its signature. */
async function sign(
  { apiPort }: Broker,
  path: string,
  access: "read" | "write",
  more: object = {},
): Promise<string> {
  const body = JSON.stringify({ path, access, expires_in: 60, ...more });
  const reply = await callAt(apiPort, "/v1/sign", {
    ...{ method: "POST", body },
    headers: { ...JSON_TYPE, ...TOKEN },
  });
  if (reply.status !== 200) throw new Error(reply.text);
  const { pathname, search } = new URL(reply.json.url);
  return pathname + search;
}

/** Asserts the status and, for an error, its code. */
function isRefused(t: Test, { status, json }: Reply, expected: number, code: string): void {
  t.same([status, json?.code], [expected, code]);
}

t.test(
  "a backend with a credential can create, append to, read and delete streams on both listeners",
  async (t) => {
    for (const [name, port] of [
      ["api", closed.apiPort],
      ["client", closed.clientPort],
    ] as const) {
      const call = at(port);
      const path = `/v1/stream/backend/${name}`;
      isRefused(t, await call(path, put()), 401, "unauthorized");
      t.equal((await call(path, put(TOKEN))).status, 201);
      t.equal((await call(path, append({ authorization: `Bearer ${TOKEN.token}` }))).status, 204);
      isRefused(t, await call(path), 401, "unauthorized");
      isRefused(t, await call(path, { headers: { token: "wrong" } }), 401, "unauthorized");
      const read = await call(path, { headers: TOKEN });
      t.equal(read.text, "[1,2]");
      t.match(read.headers, {
        "cache-control": /^private, max-age=60/,
        vary: VARY,
      });
      const tail = await call(`${path}?offset=now`, { headers: TOKEN });
      t.equal(tail.headers["cache-control"], "private, no-store");
      t.equal((await call(path, { method: "DELETE", headers: TOKEN })).status, 204);
      isRefused(t, await call(path, { headers: TOKEN }), 404, "stream_unknown");
    }
  },
);

t.test(
  "a URL signed for reading allows GET and HEAD of its stream on both listeners",
  async (t) => {
    const path = "/v1/stream/signed/read me";
    const url = await sign(closed, "/v1/stream/signed/read%20me", "read");
    t.match(url, /^\/v1\/stream\/signed\/read%20me\?sig=\d{10}\.read\.\.[\w-]{43}$/);
    t.equal((await at(closed.apiPort)(encodeURI(path), put(TOKEN))).status, 201);
    for (const port of [closed.apiPort, closed.clientPort]) {
      const call = at(port);
      const read = await call(url);
      t.equal(read.text, "[1]");
      t.match(read.headers, {
        "cache-control": /^private, max-age=60/,
        vary: VARY,
        "access-control-allow-origin": "*",
      });
      t.equal((await call(url, { method: "HEAD" })).status, 200);
      t.equal((await call(`${url}&offset=now`)).headers["cache-control"], "private, no-store");
      for (const method of ["PUT", "POST", "DELETE"])
        isRefused(t, await call(url, { ...put(), method }), 403, "forbidden");
    }
  },
);

t.test("a signed URL of a personal channel must name both users in its path", async (t) => {
  const url = await sign(closed, "/v1/stream/channel/1/alice/answer", "read");
  const { json } = await at(closed.clientPort)(url);
  t.match(json, { status: 400, code: "bad_request", error: /name both in the path/ });
  t.notOk("details" in (json as object), "no parameter of the URL can name the user");
});

t.test("a URL is not signed for a sender whose id is too long", async (t) => {
  const fields = { access: "write", expires_in: 60, from_uid: "😀".repeat(65) };
  const reply = await callAt(closed.apiPort, "/v1/sign", {
    ...{ method: "POST", headers: { ...JSON_TYPE, ...TOKEN } },
    body: JSON.stringify({ path: "/v1/stream/channel/2/lab/answer", ...fields }),
  });
  isRefused(t, reply, 400, "bad_id");
});

t.test("a URL signed for writing allows all methods except DELETE", async (t) => {
  const url = await sign(closed, "/v1/stream/signed/write", "write");
  const call = at(closed.clientPort);
  t.equal((await call(url, put())).status, 201);
  t.equal((await call(url, append())).status, 204);
  t.equal((await call(url)).text, "[1,2]");
  t.equal((await call(url, { method: "HEAD" })).status, 200);
  isRefused(t, await call(url, { method: "DELETE" }), 403, "forbidden");
  const location = (await call(url, put())).headers.location ?? "";
  t.equal(location, `http://127.0.0.1:${closed.clientPort}/v1/stream/signed/write`);
});

t.test("a signature is valid only for its path, access, user and expiry time", async (t) => {
  const call = at(closed.apiPort);
  const url = await sign(closed, "/v1/stream/signed/own", "read", { from_uid: "zoë" });
  t.equal((await call("/v1/stream/signed/own", put(TOKEN))).status, 201);
  t.equal((await call(url)).status, 200);
  const [, expiry, access, uid, mac] = /sig=(\d+)\.(\w+)\.([\w-]*)\.(.*)$/.exec(url) ?? [];
  t.equal(Buffer.from(uid ?? "", "base64url").toString(), "zoë");
  const other = Buffer.from("eve").toString("base64url");
  for (const [name, signature] of Object.entries({
    "another access": `${expiry}.write.${uid}.${mac}`,
    "another user": `${expiry}.${access}.${other}.${mac}`,
    "another time": `${Number(expiry) + 1}.${access}.${uid}.${mac}`,
    "another code": `${expiry}.${access}.${uid}.${"A".repeat(43)}`,
    "too few parts": `${expiry}.${access}.${mac}`,
    "an empty text": "",
  }))
    t.equal((await call(`/v1/stream/signed/own?sig=${signature}`)).status, 401, name);
  const moved = url.replace("/own", "/other");
  isRefused(t, await call(moved), 401, "unauthorized");
  isRefused(t, await call(url.replace("/own", "/own/below")), 401, "unauthorized");
  const short = await sign(closed, "/v1/stream/signed/own", "read", { expires_in: 1 });
  while ((await call(short)).status === 200) await new Promise((done) => setTimeout(done, 50));
  isRefused(t, await call(short), 401, "unauthorized");
});

t.test("a signature can be made only for the path of one stream, for at most a week", async (t) => {
  const request = (body: object) =>
    callAt(closed.apiPort, "/v1/sign", {
      ...{ method: "POST", body: JSON.stringify(body) },
      headers: { ...JSON_TYPE, ...TOKEN },
    });
  const valid = { path: "/v1/stream/a", access: "read", expires_in: 604_800 };
  t.equal((await request(valid)).status, 200);
  for (const change of [
    { path: "/v1/sign" },
    { path: "/v1/stream/" },
    { path: "/v1/stream/a/" },
    { path: `/v1/stream/${"a/".repeat(8)}a` },
    { path: "/v1/stream/%ff" },
    { access: "delete" },
    { expires_in: 604_801 },
    { expires_in: 0 },
    { from_uid: "a@b" },
  ])
    t.equal((await request({ ...valid, ...change })).status, 400, JSON.stringify(change));
});

t.test("a signed URL stays valid after the signing key was rotated", async (t) => {
  const call = at(closed.apiPort);
  t.equal((await call("/v1/stream/rotated", put(TOKEN))).status, 201);
  const before = await sign(closed, "/v1/stream/rotated", "read");
  const rotation = await call("/v1/sign/rotate", { method: "POST", headers: TOKEN });
  t.equal(rotation.status, 200);
  const remainingS = rotation.json.earlier_valid_until - Date.now() / 1000;
  t.ok(remainingS > 86_000 && remainingS <= 86_401, "earlier URLs stay valid for a day");
  const after = await sign(closed, "/v1/stream/rotated", "read");
  t.not(before, after, "the new key signs URLs");
  t.equal((await call(before)).status, 200);
  t.equal((await call(after)).status, 200);
  isRefused(t, await call("/v1/sign/rotate", { method: "POST" }), 401, "unauthorized");
});

t.test(
  "a URL that one node signed is valid on another node, before and after the key was rotated",
  async (t) => {
    const { url } = await startRedis(t);
    const settings = { JINDOU_REDIS_URL: url, JINDOU_API_TOKEN: TOKEN.token };
    const [a, b] = await Promise.all([spawnBroker(t, settings), spawnBroker(t, settings)]);
    const path = "/v1/stream/shared";
    t.equal((await callAt(a.apiPort, path, put(TOKEN))).status, 201);
    const statusOn = async (node: Broker, signed: string, call?: Call) =>
      (await callAt(node.clientPort, signed, call)).status;
    // The first two signatures also create the first key, on both nodes at once.
    const [byA, byB] = await Promise.all([sign(a, path, "read"), sign(b, path, "write")]);
    t.same([await statusOn(b, byA), await statusOn(a, byB)], [200, 200]);
    t.equal(await statusOn(a, byB, append()), 204);
    for (const [rotating, other] of [
      [a, b],
      [b, a],
    ] as const) {
      const rotation = { method: "POST", headers: TOKEN };
      t.equal((await callAt(rotating.apiPort, "/v1/sign/rotate", rotation)).status, 200);
      const after = await sign(rotating, path, "read");
      t.equal(await statusOn(other, after), 200, "the other node reads the new key");
      t.same([await statusOn(a, byB), await statusOn(b, byA)], [200, 200], "earlier URLs");
      const byOther = await sign(other, path, "write");
      t.equal(await statusOn(rotating, byOther, append()), 204);
      const forged = `${after.slice(0, -43)}${"A".repeat(43)}`;
      t.equal(await statusOn(other, forged), 401);
      const moved = after.replace("/shared", "/other");
      t.equal(await statusOn(other, moved), 401);
    }
    t.equal((await callAt(b.apiPort, path, { headers: TOKEN })).text, "[1,2,2,2]");
  },
);

t.test("a fork requires permission to read its source", async (t) => {
  const call = at(closed.clientPort);
  const source = "/v1/stream/source";
  t.equal((await call(source, put(TOKEN))).status, 201);
  const from = { "stream-forked-from": source };
  const url = (name: string) => sign(closed, `/v1/stream/fork/${name}`, "write");
  const fork = (target: string, headers: Call["headers"] = {}) =>
    call(target, { ...put({ ...from, ...headers }), body: "" });
  isRefused(t, await fork(await url("a")), 404, "stream_unknown");
  const other = new URL(await sign(closed, "/v1/stream/other", "read"), "http://x");
  const wrong = { "jindou-fork-sig": other.searchParams.get("sig") ?? "" };
  isRefused(t, await fork(await url("b"), wrong), 404, "stream_unknown");
  const right = new URL(await sign(closed, source, "read"), "http://x");
  const signature = { "jindou-fork-sig": right.searchParams.get("sig") ?? "" };
  t.equal((await fork(await url("c"), signature)).status, 201);
  t.equal((await fork("/v1/stream/fork/d", TOKEN)).status, 201);
  t.equal((await call("/v1/stream/fork/d", { headers: TOKEN })).text, "[1]");
});

t.test("a client's token does not grant access to a stream without a channel", async (t) => {
  const call = at(closed.clientPort);
  t.equal((await call("/v1/stream/free", put(TOKEN))).status, 201);
  isRefused(t, await call("/v1/stream/free?uid=alice&token=secret"), 403, "forbidden");
  const headers = { "x-uid": "alice", "x-token": "secret" };
  isRefused(t, await call("/v1/stream/free", { headers }), 403, "forbidden");
});

t.test(
  "in protected mode, a caller on this machine needs a credential on the client listener, but not on the API listener",
  async (t) => {
    const api = at(open.apiPort);
    const path = "/v1/stream/anonymous";
    t.equal((await api(path, put())).status, 201);
    const read = await api(path);
    t.equal(read.status, 200);
    t.match(read.headers, {
      "cache-control": "public, max-age=60, stale-while-revalidate=300",
      "cross-origin-resource-policy": "cross-origin",
    });
    const client = at(open.clientPort);
    isRefused(t, await client(path), 401, "unauthorized");
    isRefused(t, await client(path, put()), 401, "unauthorized");
  },
);

t.test(
  "a request without a credential is refused if its Host header does not name this machine",
  async (t) => {
    const call = at(open.apiPort);
    for (const host of ["evil.example", "127.0.0.1.evil.example", "192.0.2.1:5001"])
      isRefused(t, await call("/v1/stream/host", put({ host })), 403, "forbidden");
    for (const host of ["localhost", "127.0.0.1:1", "[::1]:5001"])
      t.ok((await call("/v1/stream/host", put({ host }))).status < 300, host);
  },
);

t.test(
  "in protected mode, calls from web pages of the API's own host and port or of allowed origins need no credential",
  async (t) => {
    const call = at(open.apiPort);
    const host = `localhost:${open.apiPort}`;
    for (const origin of [`http://${host}`, `https://${host}`, LISTED])
      t.ok((await call("/v1/stream/page", put({ host, origin }))).status < 300, origin);
    for (const origin of ["https://evil.example", "null", "http://localhost:1", `${LISTED}.evil`])
      isRefused(t, await call("/v1/stream/page", put({ host, origin })), 403, "forbidden");
    const rebound = { host: "evil.example", origin: LISTED };
    isRefused(t, await call("/v1/stream/page", put(rebound)), 403, "forbidden");
    const forwarded = { "x-forwarded-for": "192.0.2.1" };
    isRefused(t, await call("/v1/stream/page", put(forwarded)), 403, "forbidden");
  },
);

t.test("if client.allowedOrigins is empty, pages of other origins need a credential", async (t) => {
  const broker = await startBroker(t);
  const call = at(broker.apiPort);
  isRefused(t, await call("/v1/stream/page", put({ origin: LISTED })), 403, "forbidden");
});

t.test("preflight requests from web pages to paths below /v1/ are answered", async (t) => {
  for (const port of [open.apiPort, open.clientPort]) {
    const origin = "https://any.example";
    const reply = await callAt(port, "/v1/stream/a/b", { method: "OPTIONS", headers: { origin } });
    t.equal(reply.status, 204);
    t.equal(reply.headers["access-control-allow-origin"], "*");
    t.equal(reply.headers["access-control-allow-methods"], "GET,HEAD,PUT,POST,DELETE");
    const allowed = reply.headers["access-control-allow-headers"] ?? "";
    for (const name of ["authorization", "if-none-match", "producer-id", "stream-seq", "x-token"])
      t.ok(allowed.split(",").includes(name), name);
  }
  const sign = await callAt(open.apiPort, "/v1/sign", { method: "OPTIONS" });
  t.equal(sign.status, 204);
});

t.test("the log output contains no signatures", async (t) => {
  const broker = await spawnBroker(t, {
    JINDOU_LOG_LEVEL: "trace",
    JINDOU_API_TOKEN: TOKEN.token,
  });
  const url = await sign(broker, "/v1/stream/logged", "write");
  const call = at(broker.apiPort);
  t.equal((await call(url, put())).status, 201);
  t.equal((await call(url, { method: "DELETE" })).status, 403);
  t.equal((await call(`${url}x`)).status, 401);
  const mac = url.slice(-43);
  t.notOk(broker.output().includes(mac), "the log has no signature of an accepted or refused call");
});

t.test("the bearer of one signed URL cannot keep other readers out", async (t) => {
  const broker = await startBroker(t, { JINDOU_API_MAX_FOLLOWERS: "8" });
  const path = "/v1/stream/crowded";
  await callAt(broker.apiPort, path, put());
  const [greedy, other] = [
    await sign(broker, path, "read"),
    await sign(broker, path, "read", { from_uid: "bob" }),
  ];
  const leaving = new AbortController();
  t.teardown(() => leaving.abort());
  const follow = async (url: string) => {
    const target = `http://127.0.0.1:${broker.clientPort}${url}&offset=-1&live=sse`;
    const { status } = await fetch(target, { signal: leaving.signal });
    return status;
  };
  const statuses = [await follow(greedy), await follow(greedy), await follow(greedy)];
  t.strictSame(statuses, [200, 200, 503], "one URL has at most a quarter of the node's readers");
  t.equal(await follow(other), 200);
});

t.test(
  "a network that guesses signatures is slowed down, but its requests with a signature that it has used before are served",
  async (t) => {
    const [guesser, other] = ["127.0.0.71", "127.0.0.72"];
    const call = at(closed.clientPort);
    const path = "/v1/stream/guessed";
    t.equal((await call(path, put(TOKEN))).status, 201);
    const used = await sign(closed, path, "read");
    t.equal((await call(used, { from: guesser })).status, 200);
    const wrong = () => call(`${used.slice(0, -43)}${"A".repeat(43)}`, { from: guesser });
    for (let i = 0; i < MAX_GUESSES; i++) t.equal((await wrong()).status, 401);
    const guesses = Array.from({ length: CROWD }, wrong);
    t.equal((await call(used, { from: guesser })).status, 200);
    t.equal((await call(used, { from: other })).status, 200);
    const refused = (await Promise.all(guesses)).filter(({ status }) => status === 429);
    t.ok(refused.length > 0, "guesses are refused without a check");
    t.ok(Number(refused[0]?.headers["retry-after"]) > 0);
  },
);
