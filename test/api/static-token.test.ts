// Tests which guesses of the static API token are slowed down. The tests run without a node,
// because from outside a node only the duration of a call shows whether it waited.

import { StaticToken } from "../../src/api/static-token.ts";
import type { HttpRequest } from "../../src/transport/types.ts";
import { t } from "../support/suite.ts";

const ATTEMPTS = 3;
const MAX_WAITING = 8;

const from = (remoteAddress: string): HttpRequest => ({
  ...{ method: "GET", path: "/", query: "", remoteAddress, isProxied: false, scheme: "http" },
  ...{ headers: {}, params: [], body: new Uint8Array(), onAborted() {} },
});
const GUESSER = from("192.0.2.1");
const OTHER = from("192.0.2.2");
const create = () => new StaticToken("right", { attempts: ATTEMPTS, windowS: 60 });

function guess(token: StaticToken, count: number): readonly (Promise<void> | undefined)[] {
  return Array.from({ length: count }, () => token.attempt(GUESSER, false));
}

t.test(
  "attempts with a token are not delayed while their network is below the failure limit",
  async (t) => {
    const token = create();
    t.ok(token.isRight("right"));
    t.notOk(token.isRight("Right"));
    t.same(guess(token, ATTEMPTS), Array(ATTEMPTS).fill(undefined));
    t.equal(token.attempt(OTHER, true), undefined);
  },
);

t.test(
  "a correct token that is refused because too many attempts wait does not exempt its network from delays",
  async (t) => {
    const token = create();
    guess(token, ATTEMPTS);
    const waiting = guess(token, MAX_WAITING);
    const refused = [1, 2].map(async () => token.attempt(GUESSER, true));
    for (const attempt of refused) await t.rejects(attempt, { code: "rate_limited" });
    t.equal(token.attempt(OTHER, true), undefined, "another network does not wait");
    await waiting[0];
    await token.attempt(GUESSER, true);
    t.equal(token.attempt(GUESSER, true), undefined, "the network does not wait after its turn");
    await Promise.all(waiting);
  },
);

t.test(
  "a network that has sent the correct token is not slowed down, however many wrong tokens it sends",
  async (t) => {
    const token = create();
    guess(token, 1);
    t.equal(token.attempt(GUESSER, true), undefined);
    guess(token, 10 * ATTEMPTS);
    t.equal(token.attempt(GUESSER, true), undefined);
  },
);

t.test("attempts are not delayed if no static token is configured", async (t) => {
  const token = new StaticToken("", { attempts: ATTEMPTS, windowS: 60 });
  t.notOk(token.exists);
  t.notOk(token.isRight(""));
  t.same(guess(token, 3 * ATTEMPTS), Array(3 * ATTEMPTS).fill(undefined));
});
