// Tests of the keys that a node reads from an identity provider: their rotation, and providers that
// hang, fail or return invalid documents.

import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import { exportJWK, generateKeyPair, type JWK } from "jose";
import type { Test } from "tap";
import { ALGORITHMS } from "../../src/auth/options.ts";
import { codeOf, eventually, startWorld, type World } from "../behaviour/world.ts";
import { openStore } from "../store/embedded/folder.ts";
import { type IssuerKey, keyFile, mint } from "../support/mint.ts";
import { connectNative } from "../support/native-client.ts";
import { spawnShifted } from "../support/shifted-clock.ts";
import { t } from "../support/suite.ts";
import { volume } from "../support/volume.ts";

const RANDOM_KIDS = volume(10_000, undefined, 300);
const ISSUER = { iss: "https://id.example/realms/chat" };

interface Pair {
  readonly issuer: IssuerKey;
  readonly jwk: JWK;
}

async function newPair(alg: string, kid?: string): Promise<Pair> {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  const jwk = await exportJWK(publicKey);
  const named = kid === undefined ? {} : { kid };
  return { issuer: { alg, key: privateKey, kid }, jwk: { ...jwk, ...named, alg, use: "sig" } };
}

/** An identity provider whose answer a test can replace. */
class Provider {
  requests = 0;
  keys: readonly JWK[] = [];
  answer: (response: ServerResponse) => void = (response) => {
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ keys: this.keys }));
  };
  url = "";
  readonly #server = createServer((_request, response) => {
    this.requests += 1;
    this.answer(response);
  });

  async listen(t: Test, port = 0): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(port, "127.0.0.1", resolve));
    const { port: bound } = this.#server.address() as AddressInfo;
    this.url = `http://127.0.0.1:${bound}/certs`;
    t.teardown(() => this.close());
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

const settingsOf = (url: string, algorithms = "ES256") => ({
  JINDOU_AUTH_CLIENTS: "jwt",
  JINDOU_AUTH_JWT_ALGORITHMS: algorithms,
  JINDOU_AUTH_JWT_JWKS_URL: url,
  JINDOU_AUTH_JWT_ISSUER: ISSUER.iss,
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
  JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "0",
  JINDOU_LOG_LEVEL: "silent",
});

const tokenOf = (issuer: IssuerKey, header: Readonly<Record<string, unknown>> = {}) =>
  mint(issuer, { ...ISSUER, sub: "alice" }, { header });

/** Returns the data folder of a node that has read the keys of the provider and has stopped. */
async function folderWithKeys(t: Test, { url }: Provider): Promise<string> {
  const node = await startWorld(t, settingsOf(url));
  t.equal(await outcome(t, node, await tokenOf(first.issuer)), "ok");
  await node.close();
  return node.dataPath;
}

/** Returns the number of failed reads of the keys. */
async function failedReads({ call }: World): Promise<number> {
  const { body } = await call("/metrics");
  return Number(/jwks_refresh_failures_total (\d+)/.exec(body)?.[1]);
}

const outcome = (t: Test, world: World, token: string) =>
  codeOf(world.connect(t, "alice", { token }));

const first = await newPair("ES256", "first");
const provider = new Provider();
provider.keys = [first.jwk];
await provider.listen(t);
const world = await startWorld(t, settingsOf(provider.url));

t.test(
  "tokens signed with any asymmetric algorithm are accepted with the keys of a JWKS",
  async (t) => {
    const algorithms = ALGORITHMS.filter((alg) => !alg.startsWith("HS") && alg !== "Ed25519");
    const pairs = await Promise.all(algorithms.map((alg) => newPair(alg, `key ${alg}`)));
    const encrypting = {
      ...(await newPair("RS256", "key RS256")).jwk,
      use: "enc",
      alg: "RSA-OAEP",
    };
    const keys = [encrypting, ...pairs.map(({ jwk }) => ({ ...jwk, x5c: ["bm90IGEgY2VydA=="] }))];
    const jwksFile = await keyFile(t, JSON.stringify({ keys }));
    const { JINDOU_AUTH_JWT_JWKS_URL: _url, ...settings } = settingsOf("", algorithms.join());
    const fromFile = await startWorld(t, { ...settings, JINDOU_AUTH_JWT_JWKS_FILE: jwksFile });
    for (const { issuer } of pairs) {
      t.equal(await outcome(t, fromFile, await tokenOf(issuer)), "ok", issuer.alg);
      const other = await newPair(issuer.alg, issuer.kid);
      t.equal(await outcome(t, fromFile, await tokenOf(other.issuer)), "unauthorized", issuer.alg);
      const withoutKid = { ...issuer, kid: undefined };
      t.equal(await outcome(t, fromFile, await tokenOf(withoutKid)), "ok", "without a kid");
    }
  },
);

t.test("keys and URLs in the header of a token are not used", async (t) => {
  const listener = new Provider();
  const forged = await newPair("ES256", "first");
  listener.keys = [forged.jwk];
  await listener.listen(t);
  for (const header of [{ jku: listener.url }, { jwk: forged.jwk }, { x5u: listener.url }])
    t.equal(await outcome(t, world, await tokenOf(forged.issuer, header)), "unauthorized");
  t.equal(listener.requests, 0, "no key was requested from the address in the token");
});

t.test(
  "while the provider hangs, tokens with random kids cause at most two requests to it, and tokens with a known kid are accepted",
  async (t) => {
    provider.answer = () => {}; // hangs
    const before = provider.requests;
    t.equal(await outcome(t, world, await tokenOf(first.issuer)), "ok");
    const guess = await newPair("ES256");
    const slowestMs: number[] = [];
    for (let at = 0; at < RANDOM_KIDS; at += 20) {
      const tokens = await Promise.all(
        Array.from({ length: 20 }, (_, i) => tokenOf({ ...guess.issuer, kid: `random ${at + i}` })),
      );
      const codes = await Promise.all(tokens.map((token) => outcome(t, world, token)));
      t.same(new Set(codes), new Set(["unavailable"]), "the client may try again");
      const startMs = performance.now();
      t.equal(await outcome(t, world, await tokenOf(first.issuer)), "ok", "a known kid");
      slowestMs.push(performance.now() - startMs);
    }
    t.ok(provider.requests - before <= 2, `${provider.requests - before} requests`);
    if (process.env.JINDOU_TEST_QUIET) t.ok(Math.max(...slowestMs) < 50, `${slowestMs}`);
  },
);

t.test(
  "after a rotation of the keys, a new key is accepted and a removed key is refused",
  async (t) => {
    const rotating = new Provider();
    const [old, next] = [await newPair("ES256", "old"), await newPair("ES256", "next")];
    rotating.keys = [old.jwk];
    await rotating.listen(t);
    const world = await startWorld(t, settingsOf(rotating.url));
    const oldToken = await tokenOf(old.issuer);
    t.equal(await outcome(t, world, oldToken), "ok");
    rotating.keys = [next.jwk];
    const nextToken = await tokenOf(next.issuer);
    t.equal(await outcome(t, world, nextToken), "unavailable", "the key is read in the background");
    await eventually(async () => (await outcome(t, world, nextToken)) === "ok");
    t.match(
      await outcome(t, world, oldToken),
      /^un/,
      "a token that was signed with the removed key is refused",
    );
  },
);

t.test(
  "a node keeps its keys, even across a restart, while the provider fails or returns invalid documents",
  async (t) => {
    const failing = new Provider();
    failing.keys = [first.jwk];
    await failing.listen(t);
    const dataPath = await folderWithKeys(t, failing);
    const token = await tokenOf(first.issuer);
    for (const answer of [
      (response: ServerResponse) => response.writeHead(500).end("no"),
      (response: ServerResponse) => response.writeHead(302, { location: provider.url }).end(),
      (response: ServerResponse) => response.end("x".repeat(1_048_576)),
      (response: ServerResponse) => response.end('{"keys":"none"}'),
      (response: ServerResponse) => response.end('{"keys":[1]}'),
      (response: ServerResponse) => response.destroy(),
    ]) {
      failing.answer = answer;
      const { requests } = failing;
      const again = await startWorld(t, settingsOf(failing.url), dataPath);
      await eventually(() => failing.requests > requests);
      t.equal(await outcome(t, again, token), "ok", String(answer));
      await eventually(async () => (await failedReads(again)) >= 1);
      await again.close();
    }
    const elsewhere = settingsOf(`${failing.url}?other`);
    const other = await startWorld(t, elsewhere, dataPath);
    t.equal(await outcome(t, other, token), "unavailable", "keys of another URL are not used");
  },
);

t.test("a repeated read of the same invalid key document fails again", async (t) => {
  const provider = new Provider();
  provider.keys = [first.jwk];
  await provider.listen(t);
  const dataPath = await folderWithKeys(t, provider);
  provider.answer = (response) => {
    if (response.req.headers["if-none-match"] === undefined)
      response.writeHead(200, { etag: '"invalid"' }).end('{"keys":"none"}');
    else response.writeHead(304).end();
  };
  const world = await startWorld(t, settingsOf(provider.url), dataPath);
  await eventually(async () => (await failedReads(world)) >= 2);
});

t.test(
  "a node that starts without its provider serves logins when the provider is back",
  async (t) => {
    const late = new Provider();
    await late.listen(t);
    const { port } = new URL(late.url);
    await late.close();
    const world = await startWorld(t, settingsOf(late.url));
    const token = await tokenOf(first.issuer);
    t.equal(await outcome(t, world, token), "unavailable");
    const back = new Provider();
    back.keys = [first.jwk];
    await back.listen(t, Number(port));
    await eventually(async () => (await outcome(t, world, token)) === "ok");
  },
);

t.test(
  "a regular read of the keys that becomes due during another read runs after the other read has failed",
  async (t) => {
    const provider = new Provider();
    provider.keys = [first.jwk];
    await provider.listen(t);
    const dataPath = await folderWithKeys(t, provider);
    const { answer } = provider;
    const fail = (response: ServerResponse) => response.writeHead(500).end("no");
    provider.answer = fail; // the next regular read is due about 1 s later
    const world = await startWorld(t, settingsOf(provider.url), dataPath);
    await eventually(async () => (await failedReads(world)) === 1);
    const hanging: ServerResponse[] = [];
    provider.answer = (response) => hanging.push(response);
    const next = await newPair("ES256", "next");
    const token = await tokenOf(next.issuer);
    t.equal(await outcome(t, world, token), "unavailable");
    await eventually(() => hanging.length === 1);
    await pause(1500);
    t.equal(hanging.length, 1, "only one read is in progress");
    provider.keys = [first.jwk, next.jwk];
    provider.answer = answer;
    const { requests } = provider;
    hanging.forEach(fail);
    await eventually(() => provider.requests > requests);
    await eventually(async () => (await outcome(t, world, token)) === "ok");
  },
);

t.test("a clock step does not make keys count as too old", async (t) => {
  const away = new Provider();
  away.keys = [first.jwk];
  await away.listen(t);
  const settings = {
    ...settingsOf(away.url),
    JINDOU_LOG_LEVEL: "info", // the ports are read from the log
    JINDOU_AUTH_JWT_JWKS_MAX_STALE_S: "60",
  };
  const node = await spawnShifted(t, settings);
  await away.close();
  for (const stepS of [600, -600]) {
    await node.shiftTo(stepS * 1000);
    const iat = Math.floor(Date.now() / 1000) + stepS;
    const token = await mint(first.issuer, { ...ISSUER, sub: "alice", iat, exp: iat + 600 });
    const login = connectNative(t, { port: node.broker.clientPort, uid: "alice", token });
    await t.resolves(login, `a login after a step of ${stepS} s`);
  }
});

t.test("a node whose copy of the keys is too old waits for the provider's keys", async (t) => {
  const slow = new Provider();
  slow.keys = [first.jwk];
  await slow.listen(t);
  const dataPath = await folderWithKeys(t, slow);
  const store = await openStore(t, dataPath);
  const copy = await store.keySet();
  if (copy === undefined) throw new Error("the store has no copy of the keys");
  await store.putKeySet({ ...copy, readAtMs: Date.now() - 2 * 86_400_000 });
  await store.close();
  const { answer } = slow;
  slow.answer = (response) => setTimeout(() => answer(response), 1000);
  const node = await startWorld(t, settingsOf(slow.url), dataPath);
  t.equal(await outcome(t, node, await tokenOf(first.issuer)), "ok");
});
