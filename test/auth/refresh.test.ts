// Tests which tokens may replace the JWT of an open session. The tests of the wire formats cover
// the requests that replace it.

import { createJwt } from "../../src/auth/jwt.ts";
import { createCredentials } from "../../src/broker/credentials.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import type { SessionRecord } from "../../src/broker/model.ts";
import { createSessions } from "../../src/broker/sessions.ts";
import { loadConfig } from "../../src/config/load.ts";
import { HMAC_KEY, keyFile, mint, NO_PROVIDER, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";

const nowS = Math.floor(Date.now() / 1000);
const { verifier } = await createJwt(
  { ...loadConfig().auth.jwt, algorithms: ["HS256"], secretFile: await keyFile(t, SECRET) },
  NO_PROVIDER,
);
const directory = {
  login: async () => {
    throw new Error("a refresh is not a login");
  },
};
const sessions = createSessions({
  ...{ directory, credentials: createCredentials("token+jwt", verifier) },
  store: {
    device: async (uid, flag) => ({
      ...{ uid, flag, level: 0, tokenHash: new Uint8Array() },
      revokedS: nowS - 300,
    }),
  },
});
const record: SessionRecord = {
  ...{ sessionId: "s", nodeId: "n", uid: "alice", flag: 1, level: 0 },
  ...{ deviceId: "phone", tokenTag: "jwt" },
};
const expiresAtMs = (nowS + 60) * 1000;

async function outcome(claims: object, from: number | undefined = expiresAtMs): Promise<string> {
  const token = await mint(HMAC_KEY, { sub: "alice", ...claims });
  try {
    return String((await sessions.refresh({ record, expiresAtMs: from }, token)).expiresAtMs);
  } catch (error) {
    return error instanceof BrokerError ? error.code : String(error);
  }
}

t.test("a token of the same user and device replaces a token with an earlier exp", async (t) => {
  const exp = nowS + 600;
  for (const claims of [{ exp }, { exp, device_flag: 1, device_level: 0, device_id: "phone" }])
    t.equal(await outcome(claims), String(exp * 1000));
  t.equal(await outcome({ exp: nowS + 60 }), String(expiresAtMs), "a retry is accepted");
});

t.test("a token of another user or device, or with an earlier exp, is refused", async (t) => {
  for (const claims of [
    { sub: "bob" },
    { device_flag: 2 },
    { device_level: 1 },
    { device_id: "tablet" },
    { exp: nowS + 59 },
    { iat: nowS - 301 },
  ])
    t.equal(await outcome(claims), "unauthorized", JSON.stringify(claims));
  t.equal(await outcome({ iat: nowS - 120, exp: nowS - 60 }), "token_expired");
  const { refresh } = sessions;
  await t.rejects(refresh({ record, expiresAtMs }, "alice-secret"), { code: "unauthorized" });
});

t.test("a session that was not opened with a JWT cannot be refreshed", async (t) => {
  const token = await mint(HMAC_KEY, { sub: "alice" });
  await t.rejects(sessions.refresh({ record, expiresAtMs: undefined }, token), {
    code: "bad_request",
  });
});

t.test("after 1,000 refreshes, a session expires at the exp of the last token", async (t) => {
  let at = expiresAtMs;
  for (let step = 1; step <= 1000; step++) {
    const token = await mint(HMAC_KEY, { sub: "alice", exp: nowS + 60 + step });
    at = (await sessions.refresh({ record, expiresAtMs: at }, token)).expiresAtMs ?? 0;
  }
  t.equal(at, (nowS + 1060) * 1000);
});
