// Guessing of clients' tokens. A network that guesses is slowed down, on sockets and at /stream,
// and valid tokens are still accepted. They are accepted at once from other networks, and also from
// the guessing network if the user connected from there before. Other users of the guessing network
// have to wait.

import { get } from "node:http";
import { openNative } from "../support/native-client.ts";
import type { NativeClientError } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { codeOf, endingOf, startWorld, TIMEOUT_MS } from "./world.ts";

const LIMIT = 3;
const GUESSER = "127.0.0.2";
const OTHER = "127.0.0.3";
/** Number of parallel guesses, more than the number of guesses that may wait for a check. */
const CROWD = 24;
/**
 * Limits of one network: tokens checked at once, tokens that wait for a slow check, and the time
 * between two slow checks.
 */
const [MAX_CHECKS, MAX_WAITING, SLOW_MS] = [32, 8, 500];

const world = await startWorld(t, {
  JINDOU_AUTH_TOKEN_ATTEMPTS: String(LIMIT),
  JINDOU_AUTH_TOKEN_WINDOW_S: "600",
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: String(TIMEOUT_MS),
});
/** Ports of a single node, because each node remembers the networks of a user by itself. */
const { apiPort, clientPort } = world;

interface Attempt {
  readonly uid: string;
  readonly token: string;
  readonly from: string;
}

const open = ({ uid, token, from }: Attempt) =>
  openNative(t, {
    ...{ port: clientPort, uid, token, localAddress: from },
    timeoutMs: TIMEOUT_MS,
  });

async function connect(attempt: Attempt, opening = open(attempt)) {
  const client = await opening;
  const error = await client.connect().then(
    () => undefined,
    (thrown: NativeClientError) => thrown,
  );
  return { client, code: error?.code ?? "ok", waitMs: error?.retryAfterMs };
}

function readStream({ uid, token, from }: Attempt) {
  const path = `/stream/2/none/none?uid=${uid}&token=${token}`;
  return new Promise<{ status: number; retryAfter: string }>((resolve, reject) => {
    get({ host: "127.0.0.1", port: apiPort, path, localAddress: from }, (response) => {
      response.resume();
      const { statusCode = 0, headers } = response;
      resolve({
        status: statusCode,
        retryAfter: headers["retry-after"] ?? "",
      });
    }).on("error", reject);
  });
}

const guess = (uid: string, from = GUESSER): Attempt => ({
  ...{ uid, token: "guess", from },
});
/** Returns the maximum number of tokens that can have been checked slowly since `startMs`. */
const maxSlowChecks = (startMs: number) => Math.ceil((performance.now() - startMs) / SLOW_MS) + 1;
const valid = (uid: string, from: string): Attempt => ({
  ...{ uid, token: `token-${uid}`, from },
});

// Covers [decisions: Failed credentials]
t.test(
  "guesses at tokens on sockets from one network are refused with rate_limited, while valid tokens are accepted",
  async (t) => {
    for (const uid of ["known", "new", "far"]) await world.register(uid);
    t.equal((await connect(valid("known", GUESSER))).code, "ok");
    for (let i = 0; i < LIMIT; i++) t.equal((await connect(guess("far"))).code, "unauthorized");
    const startMs = performance.now();
    const guesses = Array.from({ length: CROWD }, (_, at) => connect(guess(`victim${at}`)));
    t.equal((await connect(valid("far", OTHER))).code, "ok");
    t.equal((await connect(valid("known", GUESSER))).code, "ok");
    const results = await Promise.all(guesses);
    const codes = new Set(results.map(({ code }) => code));
    t.same([...codes].sort(), ["rate_limited", "unauthorized"]);
    const refused = results.find(({ code }) => code === "rate_limited");
    t.ok(Number(refused?.waitMs) >= 1000, `the time to wait is ${refused?.waitMs} ms`);
    if (refused !== undefined) t.equal(await endingOf(refused.client), "rate_limited 4100");
    const refusedCount = results.filter(({ code }) => code === "rate_limited").length;
    const checked = CROWD - refusedCount;
    t.ok(checked <= maxSlowChecks(startMs), `only ${checked} of ${CROWD} tokens were checked`);
    t.equal(
      (await connect(valid("new", GUESSER))).code,
      "ok",
      "a new user's valid token is served after waiting",
    );
    const own = await Promise.all(Array.from({ length: LIMIT }, () => connect(guess("known"))));
    t.equal(own.length, LIMIT, "all guesses at the token of the known user are answered");
    const after = Array.from({ length: CROWD }, () => connect(guess("known")));
    const last = (await Promise.all(after)).map(({ code }) => code);
    t.ok(last.includes("rate_limited"), "guesses for a known user are refused as well");
  },
);

// Covers [decisions: Failed credentials]
t.test(
  "after a network has sent the permitted number of wrong tokens, its tokens are checked at least half a second apart",
  async (t) => {
    const networks = ["127.0.0.11", "127.0.0.12", "127.0.0.13"];
    const freeMs: number[] = [];
    for (const from of networks) {
      const attempts = Array.from({ length: LIMIT + 3 }, () => guess("nobody", from));
      const sockets = await Promise.all(attempts.map(open));
      const startsMs: number[] = [];
      for (const socket of sockets) {
        startsMs.push(performance.now());
        t.equal(await codeOf(socket.connect()), "unauthorized", "the token was checked");
      }
      const elapsed = (first: number, last: number) =>
        (startsMs[last + 1] ?? performance.now()) - (startsMs[first] ?? 0);
      // The first token after the limit is checked at once, because no slow check precedes it.
      freeMs.push(elapsed(LIMIT - 1, LIMIT));
      const slowMs = elapsed(LIMIT, LIMIT + 2);
      t.ok(slowMs >= 2 * SLOW_MS - 1, `the tokens after the limit took ${slowMs} ms`);
    }
    const leastMs = Math.min(...freeMs);
    t.ok(leastMs < SLOW_MS, `the last token within the limit and the next took ${leastMs} ms`);
  },
);

// Covers [decisions: Failed credentials]
t.test(
  "if 3 failures are allowed, most of 100 simultaneous CONNECTs with wrong tokens are refused without a check of the token",
  async (t) => {
    const attempts = Array.from({ length: 100 }, (_, at) => guess(`victim${at}`, "127.0.0.6"));
    const sockets = await Promise.all(attempts.map(open));
    const startMs = performance.now();
    const results = await Promise.all(
      attempts.map((attempt, at) =>
        connect(attempt, Promise.resolve(sockets[at] ?? open(attempt))),
      ),
    );
    const checked = results.filter(({ code }) => code === "unauthorized");
    const maxChecked = LIMIT + MAX_CHECKS + MAX_WAITING + maxSlowChecks(startMs);
    t.ok(checked.length <= maxChecked, `only ${checked.length} tokens were checked`);
    const limited = results.filter(({ code }) => code === "rate_limited");
    t.equal(limited.length, 100 - checked.length);
    t.ok(limited.length > 0, "some attempts were refused");
  },
);

// Covers [decisions: Failed credentials]
t.test(
  "a network that guesses tokens at /stream gets 429 with Retry-After, and other networks are served",
  async (t) => {
    const guesser = "127.0.0.4";
    await world.register("carol", { flag: 1 });
    for (let i = 0; i < LIMIT; i++)
      t.equal((await readStream(guess("carol", guesser))).status, 401);
    const startMs = performance.now();
    const guesses = Array.from({ length: CROWD }, (_, at) =>
      readStream(guess(`victim${at}`, guesser)),
    );
    t.equal((await readStream(valid("carol", OTHER))).status, 404);
    const responses = await Promise.all(guesses);
    const refused = responses.filter(({ status }) => status === 429);
    t.ok(refused.length > 0, "some requests were refused");
    const checked = CROWD - refused.length;
    t.ok(checked <= maxSlowChecks(startMs), `only ${checked} of ${CROWD} tokens were checked`);
    t.ok(refused.every(({ retryAfter }) => Number(retryAfter) >= 1));
    const others = responses.filter(({ status }) => status !== 429);
    t.ok(others.every(({ status }) => status === 401));
    t.equal(
      (await readStream(valid("carol", guesser))).status,
      404,
      "a valid token is served after waiting",
    );
  },
);

// Covers [decisions: Failed credentials]
t.test(
  "failed credentials from one network are counted together across all nodes, on sockets and at /stream",
  async (t) => {
    const from = "127.0.0.5";
    await world.register("dave");
    let checked = 0;
    for (let isLimited = false; !isLimited && checked < 60; ) {
      const attempts = Array.from({ length: 12 }, async () => {
        const socket = await openNative(t, {
          ...{ port: world.clientPort, uid: "dave", token: "guess" },
          ...{ localAddress: from, timeoutMs: TIMEOUT_MS },
        });
        return codeOf(socket.connect());
      });
      const codes = await Promise.all(attempts);
      checked += codes.filter((code) => code === "unauthorized").length;
      isLimited = codes.includes("rate_limited");
    }
    t.ok(checked < 60, `the network is refused after ${checked} guesses`);
    const startMs = performance.now();
    for (let i = 0; i < 4; i++) await readStream({ uid: "dave", token: "guess", from });
    t.ok(performance.now() - startMs >= 1000, "streams are slowed down as well");
  },
);
