// Tokens and webhooks of the package `jindou-server`, checked with the package `jose` and with
// published test vectors.

import {
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  generateKeyPairSync,
} from "node:crypto";
import { jwtVerify } from "jose";
import {
  mintToken,
  type TokenAlgorithm,
  verifyWebhook,
  WebhookError,
} from "../../src/backend/backend.ts";
import { startWorld } from "../behaviour/world.ts";
import { keyFile, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";

const PEM = { type: "pkcs8", format: "pem" } as const;

/** Returns a private key in PEM for the algorithm. */
function privateKeyFor(algorithm: TokenAlgorithm): string {
  if (algorithm === "EdDSA") return generateKeyPairSync("ed25519").privateKey.export(PEM) as string;
  if (!algorithm.startsWith("ES"))
    return generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export(PEM) as string;
  const curves = { ES256: "P-256", ES384: "P-384", ES512: "P-521" } as const;
  const namedCurve = curves[algorithm as keyof typeof curves];
  return generateKeyPairSync("ec", { namedCurve }).privateKey.export(PEM) as string;
}

t.test("the package jose verifies tokens that mintToken signs with any algorithm", async (t) => {
  for (const algorithm of ["HS256", "HS384", "HS512"] as const) {
    for (const key of [SECRET, createSecretKey(SECRET)]) {
      const token = mintToken({ uid: "ann" }, { algorithm, key });
      const { protectedHeader, payload } = await jwtVerify(token, SECRET, {
        algorithms: [algorithm],
      });
      t.match([protectedHeader, payload], [{ alg: algorithm, typ: "JWT" }, { sub: "ann" }]);
    }
  }
  for (const algorithm of [
    ...(["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"] as const),
    ...(["ES256", "ES384", "ES512", "EdDSA"] as const),
  ]) {
    const key = privateKeyFor(algorithm);
    for (const form of [key, Buffer.from(key), createPrivateKey(key)]) {
      const token = mintToken({ uid: "ann" }, { algorithm, key: form, keyId: "k-1" });
      const { protectedHeader } = await jwtVerify(token, createPublicKey(key), {
        algorithms: [algorithm],
      });
      t.match(protectedHeader, { alg: algorithm, kid: "k-1" }, algorithm);
    }
  }
});

t.test("mintToken writes the claims that the broker reads", async (t) => {
  const token = mintToken(
    {
      ...{ uid: "ann", deviceFlag: 2, deviceLevel: 1, deviceId: "laptop" },
      ...{ expiresInS: 60, issuer: "https://id.example/", audience: "chat" },
      claims: { team: "red", sub: "eve" },
    },
    { algorithm: "HS256", key: SECRET.toString() },
  );
  const { payload } = await jwtVerify(token, SECRET, {
    ...{ issuer: "https://id.example/", audience: "chat" },
  });
  t.match(payload, {
    sub: "ann",
    device_flag: 2,
    device_level: 1,
    device_id: "laptop",
    team: "red",
  });
  t.equal((payload.exp ?? 0) - (payload.iat ?? 0), 60);
  const bare = await jwtVerify(
    mintToken({ uid: "ann" }, { algorithm: "HS256", key: SECRET }),
    SECRET,
  );
  t.same(Object.keys(bare.payload).sort(), ["exp", "iat", "sub"]);
});

t.test("a key that is too short or does not fit the algorithm is refused", async (t) => {
  const key = privateKeyFor("ES256");
  for (const secret of ["short", createSecretKey(Buffer.from("short"))])
    t.throws(() => mintToken({ uid: "ann" }, { algorithm: "HS256", key: secret }), /32 bytes/);
  for (const pair of [createPrivateKey(key), createPublicKey(key)])
    t.throws(() => mintToken({ uid: "ann" }, { algorithm: "HS256", key: pair }), /Use a secret/);
  const secret = { algorithm: "RS256", key: createSecretKey(SECRET) } as const;
  t.throws(
    () => mintToken({ uid: "ann" }, secret),
    /RS256 cannot be used with a key of type secret$/,
  );
  t.throws(() => mintToken({ uid: "ann" }, { algorithm: "EdDSA", key: "no PEM" }));
  for (const algorithm of ["PS256", "RS256", "EdDSA", "ES384"] as const)
    t.throws(() => mintToken({ uid: "ann" }, { algorithm, key }), TypeError, algorithm);
});

t.test("a client can log in with a token from mintToken", async (t) => {
  const world = await startWorld(t, {
    JINDOU_AUTH_CLIENTS: "jwt",
    JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
    JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
  });
  const token = mintToken({ uid: "ann", deviceFlag: 0 }, { algorithm: "HS256", key: SECRET });
  const client = await world.connect(t, "ann", { token });
  t.ok((client.connack.expiresInS ?? 0) > 500);
});

const SPEC = {
  secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
  body: '{"test": 2432232314}',
  headers: {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
  },
};
const NOW = { nowMs: 1_614_265_330_000 };
const OWN_SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

function codeOf(verify: () => unknown): string {
  try {
    verify();
    return "ok";
  } catch (error) {
    return error instanceof WebhookError ? error.code : String(error);
  }
}

t.test("verifyWebhook accepts the test vectors of Standard Webhooks", async (t) => {
  const { secret, body, headers } = SPEC;
  t.same(verifyWebhook(body, headers, secret, NOW), { test: 2432232314 });
  t.same(verifyWebhook(Buffer.from(body), new Headers(headers), secret, NOW), { test: 2432232314 });
  const event =
    '{"type":"message.stored","timestamp":"2026-11-24T00:00:00.000Z","data":{"message_seq":1}}';
  const ownHeaders = {
    "webhook-id": "evt_42",
    "webhook-timestamp": "1795478400",
    "webhook-signature": "v1,bqV+yzZx4lxWCbC8lPqaafudswwF99xsh0iymvT5gIc=",
  };
  const at = { nowMs: 1_795_478_400_000 };
  t.match(verifyWebhook(event, ownHeaders, OWN_SECRET, at), { type: "message.stored" });
});

t.test("a webhook is accepted if any secret matches any signature", async (t) => {
  const { secret, body, headers } = SPEC;
  const two = { ...headers, "webhook-signature": `v1,AAAA v2,x ${headers["webhook-signature"]}` };
  t.equal(
    codeOf(() => verifyWebhook(body, two, [OWN_SECRET, secret], NOW)),
    "ok",
  );
});

t.test("a webhook that was changed, is old or has no signature is refused", async (t) => {
  const { secret, body, headers } = SPEC;
  const code = (changes: object, at = NOW.nowMs, changedBody = body) =>
    codeOf(() => verifyWebhook(changedBody, { ...headers, ...changes }, secret, { nowMs: at }));
  t.equal(code({}, NOW.nowMs, `${body} `), "bad_signature");
  t.equal(code({ "webhook-id": "msg_2" }), "bad_signature");
  t.equal(code({ "webhook-signature": "v1," }), "bad_signature");
  t.equal(code({ "webhook-signature": headers["webhook-signature"].slice(3) }), "bad_signature");
  t.equal(
    codeOf(() => verifyWebhook(body, headers, OWN_SECRET, NOW)),
    "bad_signature",
  );
  for (const name of Object.keys(headers)) t.equal(code({ [name]: undefined }), "missing_header");
  t.equal(code({}, NOW.nowMs + 301_000), "bad_timestamp");
  t.equal(code({}, NOW.nowMs - 301_000), "bad_timestamp");
  t.equal(code({}, NOW.nowMs + 299_000), "ok");
  t.equal(code({ "webhook-timestamp": "soon" }), "bad_timestamp");
  t.throws(() => verifyWebhook(body, headers, "secret", NOW), TypeError);
});
