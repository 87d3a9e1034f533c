// Guessing of the static API token. A network that guesses is slowed down. Calls with the correct
// token are served at once from other networks, and from the same network if it has sent the
// correct token before.

import { randomBytes } from "node:crypto";
import { get } from "node:http";
import type { Test } from "tap";
import { DRIVER } from "../support/driver.ts";
import { t } from "../support/suite.ts";
import { startWorld } from "./world.ts";

const LIMIT = 3;
const TOKEN = "static-token-of-tests";
const GUESSER = "127.0.0.2";
const OTHER = "127.0.0.3";
const SHARED = "127.0.0.4";
const MONITOR = "127.0.0.5";
const OTHER_MONITOR = "127.0.0.7";
const OTHER_GUESSER = "127.0.0.6";
/** Number of parallel guesses, more than the 8 guesses that may wait for a check. */
const CROWD = 16;

const SETTINGS = {
  JINDOU_API_TOKEN: TOKEN,
  JINDOU_ADMIN_PASSWORD: "right",
  JINDOU_AUTH_TOKEN_ATTEMPTS: String(LIMIT),
  JINDOU_AUTH_TOKEN_WINDOW_S: "600",
};
const DAYS_MS = 2 * 86_400_000;

const world = await startWorld(t, SETTINGS);
/** Port of a single node, because each node counts wrong tokens by itself. */
const { apiPort } = world;

type Headers = Readonly<Record<string, string>>;

function call(
  from: string,
  headers: Headers,
  port = apiPort,
): Promise<{ status: number; retryAfter: number }> {
  return new Promise((resolve, reject) => {
    const target = { host: "127.0.0.1", port, path: "/migrate/result" };
    get({ ...target, localAddress: from, headers, agent: false }, (response) => {
      response.resume();
      const retryAfter = Number(response.headers["retry-after"] ?? 0);
      resolve({ status: response.statusCode ?? 0, retryAfter });
    }).on("error", reject);
  });
}

const inHeader = (token: string): Headers => ({ token });
const asBearer = (token: string): Headers => ({ authorization: `Bearer ${token}` });

async function login(): Promise<string> {
  const { body } = await world.call("/manager/login", { username: "admin", password: "right" });
  return body.token;
}

/** Logs in with the clock set back so far that the returned token has already expired by now. */
async function loginLongAgo(): Promise<string> {
  const { now } = Date;
  Date.now = () => now() - DAYS_MS;
  try {
    return await login();
  } finally {
    Date.now = now;
  }
}

async function statuses(
  count: number,
  from: string,
  headers: Headers,
  port = apiPort,
): Promise<number[]> {
  const replies = await Promise.all(Array.from({ length: count }, () => call(from, headers, port)));
  for (const { status, retryAfter } of replies)
    if (status === 429) t.ok(retryAfter > 0, "a 429 has Retry-After");
  return replies.map(({ status }) => status);
}

// Covers [decisions: Failed credentials]
t.test(
  "a network that guesses the API token is slowed down, and calls with the right token from another network are served at once",
  async (t) => {
    for (const credential of [inHeader, asBearer, inHeader])
      t.same(await statuses(1, GUESSER, credential("wrong")), [401]);
    const guesses = [
      statuses(CROWD, GUESSER, inHeader("wrong")),
      statuses(CROWD, GUESSER, asBearer("wrong")),
    ];
    for (const credential of [inHeader, asBearer])
      t.same(await statuses(CROWD, OTHER, credential(TOKEN)), Array(CROWD).fill(200));
    const results = (await Promise.all(guesses)).flat();
    t.ok(results.includes(429), "guesses are refused with 429");
    t.same(await statuses(1, GUESSER, inHeader(TOKEN)), [200], "the correct token is served");
  },
);

t.test(
  "a backend is served at once while another host in its network guesses tokens, and calls with access tokens are not slowed down",
  async (t) => {
    await statuses(1, SHARED, inHeader("wrong"));
    t.same(await statuses(1, SHARED, inHeader(TOKEN)), [200]);
    await statuses(LIMIT, SHARED, inHeader("wrong"));
    const guesses = statuses(CROWD, SHARED, inHeader("wrong"));
    t.same(await statuses(CROWD, SHARED, inHeader(TOKEN)), Array(CROWD).fill(200));
    t.same(await statuses(CROWD, SHARED, asBearer(TOKEN)), Array(CROWD).fill(200));
    await guesses;
    t.same(await statuses(CROWD, GUESSER, asBearer(await login())), Array(CROWD).fill(200));
  },
);

/** Asserts that the token is refused and that only guesses in another form are limited. */
async function isNoGuess(t: Test, token: string, from: string): Promise<void> {
  for (let round = 0; round < 2; round++)
    t.same(await statuses(CROWD, from, asBearer(token)), Array(CROWD).fill(401));
  await statuses(LIMIT, from, asBearer("wrong"));
  const guesses = await statuses(CROWD, from, asBearer("wrong"));
  t.ok(guesses.includes(429), "guesses in another form are refused with 429");
}

// Covers [decisions: Values that clients really send]
t.test("a revoked access token does not count as a guess of the API token", async (t) => {
  const token = await login();
  t.same(await statuses(1, MONITOR, asBearer(token)), [200]);
  await world.call("/manager/logout", {}, { authorization: `Bearer ${token}` });
  await isNoGuess(t, token, MONITOR);
});

// Covers [decisions: Values that clients really send]
t.test(
  "an expired access token does not count as a guess of the API token",
  { skip: DRIVER === "embedded" ? false : "a test cannot set the clock of Redis" },
  async (t) => isNoGuess(t, await loginLongAgo(), OTHER_MONITOR),
);

t.test(
  "if the API token has the form of an access token, guesses in that form are limited too",
  async (t) => {
    const newToken = () => randomBytes(32).toString("base64url");
    const token = newToken();
    const { apiPort: port } = await startWorld(t, { ...SETTINGS, JINDOU_API_TOKEN: token });
    await statuses(LIMIT, OTHER_GUESSER, asBearer(newToken()), port);
    const guesses = await statuses(CROWD, OTHER_GUESSER, asBearer(newToken()), port);
    t.ok(guesses.includes(429), "guesses are refused with 429");
    t.same(await statuses(1, OTHER, asBearer(token), port), [200]);
  },
);
