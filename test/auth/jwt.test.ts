// Tests which JWTs the verifier accepts, with keys from files and a clock that the tests set.
// test/behaviour/jwt.test.ts tests the interfaces to which clients present tokens.

import { createHmac } from "node:crypto";
import type { Test } from "tap";
import type { Static } from "typebox";
import { createJwt } from "../../src/auth/jwt.ts";
import { ALGORITHMS, type jwtOptions } from "../../src/auth/options.ts";
import { BrokerError } from "../../src/broker/errors.ts";
import { loadConfig } from "../../src/config/load.ts";
import {
  HMAC_KEY,
  type IssuerKey,
  keyFile,
  mint,
  NO_PROVIDER,
  newKeyPair,
  SECRET,
} from "../support/mint.ts";
import { t } from "../support/suite.ts";

type Settings = Partial<Static<typeof jwtOptions>>;

const DEFAULTS = loadConfig().auth.jwt;
const START_MS = Date.now();
const TEXT = "kZ8+qv3J0tYw2mR7LxN5cB1uFh6sPdGe";

/** A verifier whose clock shows the start time of the test plus `offsetS`. */
class Verifier {
  offsetS = 0;
  readonly reasons: string[] = [];
  readonly details: string[] = [];
  readonly #jwt: ReturnType<typeof createJwt>;

  constructor(settings: Settings) {
    this.#jwt = createJwt(
      { ...DEFAULTS, ...settings },
      {
        ...NO_PROVIDER,
        clock: () => START_MS + this.offsetS * 1000,
        onRefused: (reason, detail) => {
          this.reasons.push(reason);
          this.details.push(detail);
        },
      },
    );
  }

  async claims(token: string) {
    return (await this.#jwt).verifier.verify(token);
  }

  /** Returns `ok`, or the code of the error and the reason that the operator sees. */
  async outcome(token: string): Promise<string> {
    try {
      await this.claims(token);
      return "ok";
    } catch (error) {
      if (error instanceof BrokerError) return `${error.code} ${this.reasons.at(-1)}`;
      throw error;
    }
  }
}

const secretFile = await keyFile(t, SECRET);
const withSecret = (settings: Settings = {}) =>
  new Verifier({ secretFile, algorithms: ["HS256"], ...settings });
const BAD_SIGNATURE = "unauthorized signature";

const ASYMMETRIC = ALGORITHMS.filter((alg) => !alg.startsWith("HS"));
const pairs = new Map(
  await Promise.all(ASYMMETRIC.map(async (alg) => [alg, await newKeyPair(alg)] as const)),
);

t.test("only tokens with the configured key and algorithm are accepted", async (t) => {
  for (const alg of ALGORITHMS) {
    const pair = pairs.get(alg);
    const verifier = new Verifier({
      algorithms: [alg],
      ...(pair === undefined ? { secretFile } : { publicKeyFile: await keyFile(t, pair.pem) }),
    });
    const own: IssuerKey = pair?.issuer ?? { alg, key: SECRET };
    t.match(await verifier.claims(await mint(own, { sub: "alice" })), { uid: "alice" }, alg);
    const other = pair === undefined ? { alg, key: Buffer.alloc(64, 7) } : await otherKey(alg);
    t.equal(await verifier.outcome(await mint(other, { sub: "alice" })), BAD_SIGNATURE, alg);
    for (const foreign of ALGORITHMS) {
      if (foreign === alg || isSameEdwards(alg, foreign)) continue;
      const key: IssuerKey = pairs.get(foreign)?.issuer ?? { alg: foreign, key: SECRET };
      t.equal(
        await verifier.outcome(await mint(key, { sub: "alice" })),
        "unauthorized algorithm",
        `${foreign} for ${alg}`,
      );
    }
  }
});

async function otherKey(alg: string): Promise<IssuerKey> {
  return (await newKeyPair(alg)).issuer;
}

const isSameEdwards = (a: string, b: string) => a.startsWith("Ed") && b.startsWith("Ed");

t.test("a token is refused if its algorithm does not match the configured key", async (t) => {
  const publicKeyFile = await keyFile(t, pairs.get("RS256")?.pem ?? "");
  const verifier = new Verifier({ algorithms: ["ES256", "RS256"], publicKeyFile });
  const token = await mint(pairs.get("ES256")?.issuer ?? HMAC_KEY, { sub: "alice" });
  t.equal(await verifier.outcome(token), "unauthorized key");
});

t.test("a public key is never used as an HMAC secret", async (t) => {
  const pem = pairs.get("RS256")?.pem ?? "";
  const publicKeyFile = await keyFile(t, pem);
  for (const algorithms of [["RS256"], ["RS256", "HS256"]] as const) {
    const verifier = new Verifier({ algorithms: [...algorithms], publicKeyFile });
    const token = await mint({ alg: "HS256", key: Buffer.from(pem) }, { sub: "alice" });
    t.match(await verifier.outcome(token), /^unauthorized (algorithm|key)$/);
  }
});

/** Returns a token with this header and an HS256 signature made with `SECRET`. */
function handmade(header: unknown, payload: unknown = { sub: "alice", exp: 2e9 }): string {
  const text = (part: unknown) =>
    Buffer.from(typeof part === "string" ? part : JSON.stringify(part)).toString("base64url");
  const input = `${text(header)}.${text(payload)}`;
  return `${input}.${createHmac("sha256", SECRET).update(input).digest("base64url")}`;
}

t.test("tokens with a forged or unreadable header are refused", async (t) => {
  const verifier = withSecret();
  for (const alg of ["none", "None", "nOnE", "", "hs256", "HS512", "toString", 1, null]) {
    t.match(await verifier.outcome(handmade({ alg })), /^unauthorized/, `alg ${alg}`);
    const [header, payload] = handmade({ alg }).split(".");
    t.match(await verifier.outcome(`${header}.${payload}.`), /^unauthorized/, `unsigned ${alg}`);
  }
  for (const header of ["", "{}", "[]", "null", "not json", '{"alg":"HS256"', "\u{1F600}"])
    t.match(await verifier.outcome(handmade(header)), /^unauthorized/, header);
  for (const header of [
    { alg: "HS256", crit: ["b64"], b64: false },
    { alg: "HS256", crit: ["exp"] },
    { alg: "HS256", crit: [] },
  ])
    t.equal(await verifier.outcome(handmade(header)), "unauthorized malformed");
  for (const token of ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "a.b.c.d.e", "….….…"])
    t.equal(await verifier.outcome(token), "unauthorized malformed", token);
});

t.test("kid, jku, x5u and jwk in a header cannot select another key or a file", async (t) => {
  const verifier = withSecret();
  const jwk = { kty: "oct", k: Buffer.alloc(48, 7).toString("base64url") };
  for (const member of [
    { kid: "../../etc/passwd" },
    { kid: "' or 1=1 --" },
    { kid: "x".repeat(2000) },
    { jku: "http://127.0.0.1:1/keys" },
    { x5u: "http://127.0.0.1:1/cert" },
    { jwk },
  ]) {
    const header = { alg: "HS256", ...member };
    t.equal(await verifier.outcome(handmade(header, { sub: "alice", exp: nowS() + 60 })), "ok");
    const forged = await mint({ alg: "HS256", key: Buffer.alloc(48, 7) }, {}, { header: member });
    t.equal(await verifier.outcome(forged), BAD_SIGNATURE);
  }
});

const nowS = () => Math.floor(START_MS / 1000);

t.test("a payload that is not a JSON object is refused", async (t) => {
  const verifier = withSecret();
  for (const payload of ["", "null", "[]", "1", '"text"', "{", '{"sub":'])
    t.equal(
      await verifier.outcome(handmade({ alg: "HS256" }, payload)),
      "unauthorized malformed",
      payload,
    );
});

t.test("a token that was changed after it was signed is refused", async (t) => {
  const verifier = withSecret();
  const token = await mint(HMAC_KEY, { sub: "alice" });
  t.equal(await verifier.outcome(token), "ok");
  const [header, , signature] = token.split(".");
  const payload = Buffer.from(JSON.stringify({ sub: "bob", exp: nowS() + 60 }));
  t.equal(
    await verifier.outcome(`${header}.${payload.toString("base64url")}.${signature}`),
    BAD_SIGNATURE,
  );
  for (const changed of [`${token}\n`, ` ${token}`, `${token}=`, token.replace(".", ". ")])
    t.equal(await verifier.outcome(changed), "unauthorized malformed", JSON.stringify(changed));
  for (const kid of [["k1"], 5, false, {}])
    t.equal(
      await verifier.outcome(handmade({ alg: "HS256", kid }, { sub: "bob", exp: nowS() + 60 })),
      "unauthorized malformed",
      "a kid that is not a string is refused",
    );
  t.match(await verifier.outcome(`${token}A`), /^unauthorized/);
  t.match(await verifier.outcome(token.slice(0, -1)), /^unauthorized/);
});

t.test("exp, nbf and iat are checked with clockToleranceS whenever a token is used", async (t) => {
  const verifier = withSecret({ clockToleranceS: 30 });
  const token = await mint(HMAC_KEY, { sub: "alice", iat: nowS(), exp: nowS() + 60 });
  for (const [offsetS, outcome] of [
    [0, "ok"],
    [61, "ok"],
    [89, "ok"],
    [91, "token_expired expired"],
    [0, "ok"],
  ] as const) {
    verifier.offsetS = offsetS;
    t.equal(await verifier.outcome(token), outcome, `${offsetS} seconds later`);
  }
  verifier.offsetS = 0;
  for (const [nbf, outcome] of [
    [nowS() + 29, "ok"],
    [nowS() + 32, "unauthorized not_yet_valid"],
  ] as const)
    t.equal(await verifier.outcome(await mint(HMAC_KEY, { sub: "alice", nbf })), outcome);
  const early = { sub: "alice", iat: nowS() + 40, exp: nowS() + 60 };
  t.equal(await verifier.outcome(await mint(HMAC_KEY, early)), "unauthorized not_yet_valid");
});

t.test("only a token that is otherwise valid is reported as expired", async (t) => {
  const verifier = withSecret({ audience: "chat" });
  const expired = { expiresInS: -100, ageS: 200 };
  const right = await mint(HMAC_KEY, { sub: "alice", aud: "chat" }, expired);
  t.equal(await verifier.outcome(right), "token_expired expired");
  const elsewhere = await mint(HMAC_KEY, { sub: "alice", aud: "mail" }, expired);
  t.equal(await verifier.outcome(elsewhere), "unauthorized audience");
  const forged = await mint({ alg: "HS256", key: Buffer.alloc(48, 7) }, { sub: "alice" }, expired);
  t.equal(await verifier.outcome(forged), BAD_SIGNATURE);
});

t.test("a token whose lifetime exceeds auth.jwt.maxAgeS is refused", async (t) => {
  const verifier = withSecret({ maxAgeS: 3600 });
  const outcome = async (claims: object, options: object) =>
    verifier.outcome(await mint(HMAC_KEY, { sub: "alice", ...claims }, options));
  t.equal(await outcome({ iat: nowS(), exp: nowS() + 3600 }, {}), "ok");
  t.equal(await outcome({ iat: nowS(), exp: nowS() + 3601 }, {}), "unauthorized lifetime");
  t.equal(await outcome({ exp: nowS() + 3600 }, { ageS: undefined }), "ok");
  t.equal(await outcome({ exp: nowS() + 3700 }, { ageS: undefined }), "unauthorized lifetime");
  t.equal(await outcome({}, { expiresInS: undefined }), "unauthorized lifetime", "without exp");
});

t.test("a token without iat counts as older than every other valid token", async (t) => {
  const verifier = withSecret({ maxAgeS: 3600, clockToleranceS: 30 });
  const token = await mint(HMAC_KEY, { sub: "alice" }, { ageS: undefined });
  const startS = Math.floor(START_MS / 1000);
  t.equal((await verifier.claims(token)).issuedS, startS - 3660);
  verifier.offsetS = 60;
  t.equal((await verifier.claims(token)).issuedS, startS - 3600);
});

t.test(
  "without requireExp, a token without exp expires auth.jwt.maxAgeS seconds after iat",
  async (t) => {
    const verifier = withSecret({ requireExp: false, maxAgeS: 3600 });
    const token = await mint(HMAC_KEY, { sub: "alice", iat: nowS() }, { expiresInS: undefined });
    t.match(await verifier.claims(token), { expiresAtMs: (nowS() + 3600) * 1000 });
    verifier.offsetS = 3640;
    t.equal(await verifier.outcome(token), "token_expired expired");
    verifier.offsetS = 0;
    const timeless = await mint(HMAC_KEY, { sub: "a" }, { expiresInS: undefined, ageS: undefined });
    t.equal(await verifier.outcome(timeless), "unauthorized lifetime");
  },
);

t.test("iss and aud must match if they are configured, and aud may be a list", async (t) => {
  const verifier = withSecret({ issuer: "https://id.example/", audience: "chat" });
  for (const [iss, aud, outcome] of [
    ["https://id.example/", "chat", "ok"],
    ["https://id.example/", ["mail", "chat"], "ok"],
    ["https://id.example", "chat", "unauthorized issuer"],
    [undefined, "chat", "unauthorized issuer"],
    ["https://id.example/", "mail", "unauthorized audience"],
    ["https://id.example/", [], "unauthorized audience"],
    ["https://id.example/", "chatroom", "unauthorized audience"],
    ["https://id.example/", undefined, "unauthorized audience"],
  ] as const) {
    const claims = JSON.parse(JSON.stringify({ sub: "alice", iss, aud }));
    t.equal(await verifier.outcome(await mint(HMAC_KEY, claims)), outcome, `${iss} ${aud}`);
  }
  const anyAudience = withSecret({ audience: "*" });
  t.equal(await anyAudience.outcome(await mint(HMAC_KEY, { sub: "alice", aud: "x" })), "ok");
});

t.test(
  "a token without sub or with an invalid claim is refused, and the log names the claim",
  async (t) => {
    const verifier = withSecret();
    for (const claims of [
      {},
      { sub: "" },
      { sub: 7 },
      { sub: "alice@example.com" },
      { sub: "x".repeat(300) },
      { sub: "a\nb" },
      { sub: "alice", device_flag: 3 },
      { sub: "alice", device_flag: "1" },
      { sub: "alice", device_level: 2 },
      { sub: "alice", device_level: true },
      { sub: "alice", device_id: 1 },
      { sub: "alice", exp: "2099-01-01" },
      { sub: "alice", iat: false },
      { sub: "alice", nbf: [] },
    ]) {
      // `jose` does not sign claims of the wrong type.
      const token = handmade({ alg: "HS256" }, { exp: nowS() + 60, ...claims });
      t.equal(await verifier.outcome(token), "unauthorized claims", JSON.stringify(claims));
      const name = Object.keys(claims).at(-1) ?? "sub";
      const detail = verifier.details.at(-1) ?? "";
      t.ok(detail.startsWith(name), detail);
      t.notOk(detail.includes(token.split(".")[2] ?? token), "the token is not in the log");
    }
  },
);

t.test("claims and a kid that are null are treated as missing", async (t) => {
  const unset = { device_flag: null, device_level: null, device_id: null, jd: null };
  const header = { alg: "HS256", kid: null };
  const outcome = (claims: object, rules = {}) =>
    withSecret(rules).outcome(handmade(header, { sub: "alice", ...unset, ...claims }));
  t.equal(await outcome({ exp: nowS() + 60, nbf: null, iat: null }), "ok");
  t.equal(await outcome({ exp: null, iat: nowS() }), "unauthorized lifetime", "exp is required");
  t.equal(await outcome({ exp: null, nbf: null, iat: nowS() }, { requireExp: false }), "ok");
  const endless = await outcome({ exp: null, iat: null }, { requireExp: false });
  t.equal(endless, "unauthorized lifetime");
});

t.test("claims are read under configured names, and the device level has a default", async (t) => {
  const verifier = withSecret({
    deviceLevelDefault: 1,
    claims: {
      uid: "https://chat.example/uid",
      deviceFlag: "flag",
      deviceLevel: "level",
      deviceId: "device",
    },
  });
  const claims = { sub: "auth0|1", "https://chat.example/uid": "auth0|1", flag: 2, device: "d1" };
  t.match(await verifier.claims(await mint(HMAC_KEY, claims)), {
    ...{ uid: "auth0|1", flag: 2, level: 1, deviceId: "d1" },
  });
  const withLevel = await mint(HMAC_KEY, { ...claims, level: 0 });
  t.match(await verifier.claims(withLevel), { level: 0 });
});

t.test(
  "tokens signed with the previous secret are accepted as well as tokens signed with the new secret",
  async (t) => {
    const previousSecretFile = await keyFile(t, "the secret that was used until yesterday\n");
    const verifier = withSecret({ previousSecretFile });
    const former = Buffer.from("the secret that was used until yesterday");
    t.equal(await verifier.outcome(await mint({ alg: "HS256", key: former }, { sub: "a" })), "ok");
    t.equal(await verifier.outcome(await mint(HMAC_KEY, { sub: "a" })), "ok");
    const other = { alg: "HS256", key: Buffer.alloc(48, 7) };
    t.equal(await verifier.outcome(await mint(other, { sub: "a" })), BAD_SIGNATURE);
  },
);

t.test(
  "a byte-order mark and line breaks around a secret are not part of it, and a binary key is used as it is",
  async (t) => {
    const key = Buffer.from(TEXT);
    for (const content of [TEXT, `${TEXT}\n`, `${TEXT}\r\n\n`, `\uFEFF${TEXT}\r\n`]) {
      const verifier = withSecret({ secretFile: await keyFile(t, content) });
      const token = await mint({ alg: "HS256", key }, { sub: "a" });
      t.equal(await verifier.outcome(token), "ok", JSON.stringify(content));
    }
    const start = Buffer.from(Array.from({ length: 40 }, (_, at) => 255 - at));
    for (const end of ["", "\n", "\r\n", " "]) {
      const binary = Buffer.concat([start, Buffer.from(end)]);
      const verifier = withSecret({ secretFile: await keyFile(t, binary) });
      const token = await mint({ alg: "HS256", key: binary }, { sub: "a" });
      t.equal(
        await verifier.outcome(token),
        "ok",
        `a binary key that ends with ${JSON.stringify(end)}`,
      );
    }
  },
);

async function refusalToRead(t: Test, settings: Settings): Promise<string> {
  try {
    await createJwt({ ...DEFAULTS, ...settings }, NO_PROVIDER);
  } catch (error) {
    return (error as Error).message;
  }
  t.fail("the file was accepted");
  return "";
}

t.test(
  "a file that does not contain a usable key is refused with an error that names the setting",
  async (t) => {
    for (const [content, expected] of [
      [
        "short",
        /^auth\.jwt\.secretFile: the file .* cannot be used: it has 5 bytes, but needs at least 32/,
      ],
      ["x".repeat(64), /is easy to guess/],
      ["a-string-secret-at-least-256-bits-long", /is easy to guess/],
      [` ${TEXT}`, /its text begins with a space\. Remove it$/],
      [`${TEXT}\t\n`, /its text ends with a tab/],
      [`"${TEXT}"\n`, /its text has quotes around it/],
      [`\uFEFF'${TEXT}'`, /its text has quotes around it/],
      [`${TEXT}\n${TEXT}`, /its text contains a line break/],
      [`\u200B${TEXT}`, /its text begins with the invisible character U\+200B/],
    ] as const)
      t.match(await refusalToRead(t, { secretFile: await keyFile(t, content) }), expected);
    const previousSecretFile = await keyFile(t, `${TEXT} `);
    const secretFile = await keyFile(t, TEXT);
    t.match(
      await refusalToRead(t, { secretFile, previousSecretFile }),
      /^auth\.jwt\.previousSecretFile: .*ends with a space/,
    );
    t.match(await refusalToRead(t, { secretFile: "/nowhere" }), /^auth\.jwt\.secretFile: .*ENOENT/);
    for (const content of ["", "not a key", "-----BEGIN PRIVATE KEY-----"])
      t.match(
        await refusalToRead(t, { publicKeyFile: await keyFile(t, content) }),
        /^auth\.jwt\.publicKeyFile: the file .* it (does not contain a public|contains a private) key/,
      );
  },
);
