// Clients' tokens under guessing: one network is held off, at sockets and at /stream, and right
// tokens are served: from other networks at once, from the guesser's own where the user connected
// before, and slowly where it did not.

import { get } from "node:http";
import { openNative } from "../support/native-client.ts";
import type { NativeClientError } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { codeOf, farewell, PATIENCE_MS, startWorld } from "./world.ts";

const LIMIT = 3;
const GUESSER = "127.0.0.2";
const OTHER = "127.0.0.3";
/** More than wait for their turn. */
const CROWD = 24;
/**
 * Of one network: what is checked at once, what waits for a slow turn, and the time between two of
 * these.
 */
const [MAX_CHECKS, MAX_WAITING, SLOW_MS] = [32, 8, 500];

const world = await startWorld(t, {
  JINDOU_AUTH_TOKEN_ATTEMPTS: String(LIMIT),
  JINDOU_AUTH_TOKEN_WINDOW_S: "600",
  JINDOU_CLIENT_AUTH_TIMEOUT_MS: String(PATIENCE_MS),
});
/** Of one node: what was known of a user is known there. */
const { apiPort, clientPort } = world;

interface Attempt {
  readonly uid: string;
  readonly token: string;
  readonly from: string;
}

const open = ({ uid, token, from }: Attempt) =>
  openNative(t, {
    ...{ port: clientPort, uid, token, localAddress: from },
    timeoutMs: PATIENCE_MS,
  });

async function connect(attempt: Attempt, opened = open(attempt)) {
  const client = await opened;
  const error = await client.connect().then(
    () => undefined,
    (thrown: NativeClientError) => thrown,
  );
  return { client, code: error?.code ?? "ok", waitMs: error?.retryAfterMs };
}

function follow({ uid, token, from }: Attempt) {
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
/** So many that are held off may have been checked since `startMs`. */
const mostTurns = (startMs: number) => Math.ceil((performance.now() - startMs) / SLOW_MS) + 1;
const right = (uid: string, from: string): Attempt => ({
  ...{ uid, token: `token-${uid}`, from },
});

t.test(
  "a network that guesses tokens is held off at sockets with rate_limited and 4100, and right tokens are served [decisions: Failed credentials]",
  async (t) => {
    for (const uid of ["known", "new", "far"]) await world.register(uid);
    t.equal((await connect(right("known", GUESSER))).code, "ok");
    for (let i = 0; i < LIMIT; i++) t.equal((await connect(guess("far"))).code, "unauthorized");
    const startMs = performance.now();
    const guesses = Array.from({ length: CROWD }, (_, at) => connect(guess(`victim${at}`)));
    t.equal((await connect(right("far", OTHER))).code, "ok");
    t.equal((await connect(right("known", GUESSER))).code, "ok");
    const answers = await Promise.all(guesses);
    const codes = new Set(answers.map(({ code }) => code));
    t.same([...codes].sort(), ["rate_limited", "unauthorized"]);
    const refused = answers.find(({ code }) => code === "rate_limited");
    t.ok(Number(refused?.waitMs) >= 1000, `${refused?.waitMs} ms`);
    if (refused !== undefined) t.equal(await farewell(refused.client), "rate_limited 4100");
    const held = answers.filter(({ code }) => code === "rate_limited").length;
    const checked = CROWD - held;
    t.ok(checked <= mostTurns(startMs), `${checked} of ${CROWD} were checked`);
    t.equal((await connect(right("new", GUESSER))).code, "ok", "in its turn");
    const own = await Promise.all(Array.from({ length: LIMIT }, () => connect(guess("known"))));
    t.equal(own.length, LIMIT, "its own room is used up");
    const after = Array.from({ length: CROWD }, () => connect(guess("known")));
    const last = (await Promise.all(after)).map(({ code }) => code);
    t.ok(last.includes("rate_limited"), "a known user's is held off too");
  },
);

t.test(
  "of 100 CONNECTs with wrong tokens at once at a limit of 3 most are held off [decisions: Failed credentials]",
  async (t) => {
    const attempts = Array.from({ length: 100 }, (_, at) => guess(`victim${at}`, "127.0.0.6"));
    const sockets = await Promise.all(attempts.map(open));
    const startMs = performance.now();
    const answers = await Promise.all(
      attempts.map((one, at) => connect(one, Promise.resolve(sockets[at] ?? open(one)))),
    );
    const checked = answers.filter(({ code }) => code === "unauthorized");
    const most = LIMIT + MAX_CHECKS + MAX_WAITING + mostTurns(startMs);
    t.ok(checked.length <= most, `${checked.length} were checked`);
    const rest = answers.filter(({ code }) => code === "rate_limited");
    t.equal(rest.length, 100 - checked.length);
    t.ok(rest.length > 0, "some were held off");
  },
);

t.test(
  "a network that guesses tokens at /stream gets 429 with Retry-After, another one is served [decisions: Failed credentials]",
  async (t) => {
    const guesser = "127.0.0.4";
    await world.register("carol", { flag: 1 });
    for (let i = 0; i < LIMIT; i++) t.equal((await follow(guess("carol", guesser))).status, 401);
    const startMs = performance.now();
    const guesses = Array.from({ length: CROWD }, (_, at) => follow(guess(`victim${at}`, guesser)));
    t.equal((await follow(right("carol", OTHER))).status, 404);
    const answers = await Promise.all(guesses);
    const held = answers.filter(({ status }) => status === 429);
    t.ok(held.length > 0, "some were held off");
    const checked = CROWD - held.length;
    t.ok(checked <= mostTurns(startMs), `${checked} of ${CROWD} were checked`);
    t.ok(held.every(({ retryAfter }) => Number(retryAfter) >= 1));
    const rest = answers.filter(({ status }) => status !== 429);
    t.ok(rest.every(({ status }) => status === 401));
    t.equal((await follow(right("carol", guesser))).status, 404, "in turn");
  },
);

t.test(
  "failures of one network are counted together by all nodes, sockets and streams [decisions: Failed credentials]",
  async (t) => {
    const from = "127.0.0.5";
    await world.register("dave");
    let checked = 0;
    for (let isHeld = false; !isHeld && checked < 60; ) {
      const attempts = Array.from({ length: 12 }, async () => {
        const socket = await openNative(t, {
          ...{ port: world.clientPort, uid: "dave", token: "guess" },
          ...{ localAddress: from, timeoutMs: PATIENCE_MS },
        });
        return codeOf(socket.connect());
      });
      const codes = await Promise.all(attempts);
      checked += codes.filter((code) => code === "unauthorized").length;
      isHeld = codes.includes("rate_limited");
    }
    t.ok(checked < 60, `held off after ${checked}`);
    const startMs = performance.now();
    for (let i = 0; i < 4; i++) await follow({ uid: "dave", token: "guess", from });
    t.ok(performance.now() - startMs >= 1000, "slowly at streams too");
  },
);
