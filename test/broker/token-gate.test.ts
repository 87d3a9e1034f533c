// The token gate with many concurrent attempts. The class is tested directly, because only then can
// a test delay the checks.

import type { Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { TokenGate } from "../../src/broker/token-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";
import { t } from "../support/suite.ts";

const LIMIT = 3;
const CROWD = 100;
/** Maximum numbers of concurrent checks of a network, and of attempts that wait for a slow turn. */
const [MAX_CHECKS, MAX_WAITING] = [32, 8];

/** Maximum number of users, and of signatures, that a gate remembers. */
const MAX_PAIRS = 10;

const succeed = async () => "in";

/** Creates a gate on which the checks of wrong tokens wait for `release`. */
function heldGate(maxPairs = 1000) {
  const gate = new TokenGate({
    throttle: new LocalThrottle(() => 0),
    limits: { attempts: LIMIT, windowS: 60 },
    clock: () => 0,
    maxPairs,
  });
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const attempt = (uid: string, check: () => Promise<string>, isSignature = false) =>
    gate.attempt({ address: "10.0.0.1", uid, isSignature }, check);
  const guess = (uid: string): Promise<string> =>
    attempt(uid, async () => {
      await released;
      throw new BrokerError("unauthorized");
    }).catch((error: BrokerError) => error.code);
  const crowd = (uid: (at: number) => string) =>
    Promise.all(Array.from({ length: CROWD }, (_, at) => guess(uid(at))));
  return { attempt, guess, crowd, release };
}

/** Asserts that only a few of the attempts were checked, and the others were rate limited. */
function assertFewChecked(t: Test, codes: readonly string[]): void {
  const count = (code: string) => codes.filter((outcome) => outcome === code).length;
  const checked = count("unauthorized");
  const maxChecked = LIMIT + MAX_CHECKS + MAX_WAITING;
  t.ok(checked >= LIMIT && checked <= maxChecked, `${checked} attempts were checked`);
  t.equal(count("rate_limited"), CROWD - checked, "the other attempts were rate limited");
}

t.test(
  "most of 100 concurrent wrong tokens from one network are refused without a check, and meanwhile a user who has already connected logs in without waiting",
  async (t) => {
    const { attempt, crowd, release } = heldGate();
    t.equal(await attempt("known", succeed), "in");
    const guesses = crowd((at) => `victim${at}`);
    t.equal(await attempt("known", succeed), "in", "the user connects while all other checks wait");
    release();
    assertFewChecked(t, await guesses);
  },
);

t.test(
  "most of 100 concurrent wrong tokens of a user who has already connected are refused without a check",
  async (t) => {
    const { attempt, crowd, release } = heldGate();
    t.equal(await attempt("known", succeed), "in");
    const guesses = crowd(() => "known");
    release();
    assertFewChecked(t, await guesses);
  },
);

t.test("100 concurrent logins with correct tokens from one network are all accepted", async (t) => {
  const { attempt } = heldGate();
  const attempts = Array.from({ length: CROWD }, (_, at) =>
    attempt(`user${at}`, async () => {
      await new Promise(setImmediate);
      return "in";
    }),
  );
  t.same(new Set(await Promise.all(attempts)), new Set(["in"]));
});

t.test(
  "a user who has already connected logs in without waiting, however many other users log in with signed tokens",
  async (t) => {
    const { attempt, guess, release } = heldGate(MAX_PAIRS);
    await attempt("known", succeed);
    for (let at = 0; at <= MAX_PAIRS; at++) await attempt(`#${at}`, succeed, true);
    const guesses = Array.from({ length: MAX_CHECKS }, (_, at) => guess(`victim${at}`));
    const waits = new Promise((resolve) => setImmediate(() => resolve("waits")));
    t.equal(await Promise.race([attempt("known", succeed), waits]), "in");
    release();
    await Promise.all(guesses);
  },
);
