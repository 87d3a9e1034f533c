// The token gate: attempts that came before the limit was reached are judged again in their turn.
// At the class, where checks that take long can be held.

import type { Test } from "tap";
import { BrokerError } from "../../src/broker/errors.ts";
import { TokenGate } from "../../src/broker/token-gate.ts";
import { LocalThrottle } from "../../src/cluster/single.ts";
import { t } from "../support/suite.ts";

const LIMIT = 3;
const CROWD = 100;
/** Of one network: checks at once, and attempts that wait for a slow turn. */
const [MAX_CHECKS, MAX_WAITING] = [32, 8];

const isIn = async () => "in";

/** A gate whose wrong tokens are all checked for as long as the test wants. */
function heldGate() {
  const gate = new TokenGate({
    throttle: new LocalThrottle(() => 0),
    limits: { attempts: LIMIT, windowS: 60 },
    clock: () => 0,
  });
  let release = () => {};
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  const attempt = (uid: string, check: () => Promise<string>) =>
    gate.attempt({ address: "10.0.0.1", uid }, check);
  const guess = (uid: string): Promise<string> =>
    attempt(uid, async () => {
      await released;
      throw new BrokerError("unauthorized");
    }).catch((error: BrokerError) => error.code);
  const crowd = (uid: (at: number) => string) =>
    Promise.all(Array.from({ length: CROWD }, (_, at) => guess(uid(at))));
  return { attempt, crowd, release };
}

/** Of the crowd few were checked, and the others were held. */
function fewAreChecked(t: Test, codes: readonly string[]): void {
  const count = (code: string) => codes.filter((one) => one === code).length;
  const checked = count("unauthorized");
  const most = LIMIT + MAX_CHECKS + MAX_WAITING;
  t.ok(checked >= LIMIT && checked <= most, `${checked} were checked`);
  t.equal(count("rate_limited"), CROWD - checked, "the others were held");
}

t.test(
  "of 100 wrong tokens under way at once at a limit of 3 no more than 43 are checked, and a known user does not wait for them",
  async (t) => {
    const { attempt, crowd, release } = heldGate();
    t.equal(await attempt("known", isIn), "in");
    const guesses = crowd((at) => `victim${at}`);
    t.equal(await attempt("known", isIn), "in", "while all others are held");
    release();
    fewAreChecked(t, await guesses);
  },
);

t.test(
  "100 wrong tokens of a known user at once use up its own room, no more than 43 are checked",
  async (t) => {
    const { attempt, crowd, release } = heldGate();
    t.equal(await attempt("known", isIn), "in");
    const guesses = crowd(() => "known");
    release();
    fewAreChecked(t, await guesses);
  },
);

t.test(
  "100 right tokens at once from one network are all accepted: attempts under way are no failures",
  async (t) => {
    const { attempt } = heldGate();
    const all = Array.from({ length: CROWD }, (_, at) =>
      attempt(`user${at}`, async () => {
        await new Promise(setImmediate);
        return "in";
      }),
    );
    t.same(new Set(await Promise.all(all)), new Set(["in"]));
  },
);
