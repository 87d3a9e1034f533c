// Tokens that third-party packages have signed, presented to a running node: every algorithm with
// the right and with wrong keys, tokens without a signature, unusual kids, and times and claims
// within and beyond their limits.

import { generateKeyPairSync, type KeyObject } from "node:crypto";
import { ALGORITHMS } from "../../src/auth/options.ts";
import { codeOf, startWorld } from "../behaviour/world.ts";
import { keyFile, SECRET } from "../support/mint.ts";
import { t } from "../support/suite.ts";
import { ISSUERS, type SignRequest } from "./issuers.ts";

interface Pair {
  readonly publicKey: KeyObject;
  readonly privateKey: KeyObject;
}

/** A token to sign, and the code that the reply to a CONNECT with the token must have. */
interface Case extends SignRequest {
  readonly code: string | RegExp;
  readonly title: string;
}

const CURVES: Readonly<Record<string, string>> = {
  ES256: "P-256",
  ES384: "P-384",
  ES512: "P-521",
};

function newPair(alg: string): Pair {
  const curve = CURVES[alg];
  if (curve !== undefined) return generateKeyPairSync("ec", { namedCurve: curve });
  return alg.startsWith("Ed")
    ? generateKeyPairSync("ed25519")
    : generateKeyPairSync("rsa", { modulusLength: 2048 });
}

/** Returns a function that creates one pair per algorithm. The RSA algorithms share a pair. */
function pairs(): (alg: string) => Pair {
  const byKind = new Map<string, Pair>();
  return (alg) => {
    const kind = /^[RP]S/.test(alg) ? "RSA" : alg;
    const pair = byKind.get(kind) ?? newPair(alg);
    byKind.set(kind, pair);
    return pair;
  };
}

const right = pairs();
const wrong = pairs();
const second = newPair("ES256");
const ASYMMETRIC = ALGORITHMS.filter((alg) => !alg.startsWith("HS"));
const jwkOf = (alg: string, { publicKey }: Pair) => ({
  ...publicKey.export({ format: "jwk" }),
  ...{ kid: alg, alg, use: "sig", x5c: ["bm90IGEgY2VydA=="] },
});
const keys = [
  { ...jwkOf("RS256", wrong("RS256")), use: "enc", alg: "RSA-OAEP" },
  ...ASYMMETRIC.map((alg) => jwkOf(alg, right(alg))),
  jwkOf("ES256", second), // two keys with one kid
];

const SETTINGS = {
  JINDOU_AUTH_CLIENTS: "jwt",
  JINDOU_AUTH_JWT_ISSUER: "https://id.example/realms/chat",
  JINDOU_AUTH_JWT_AUDIENCE: "chat",
  JINDOU_AUTH_TOKEN_ATTEMPTS: "1000000",
  JINDOU_CLIENT_MAX_CONNECTIONS_PER_USER: "0",
  JINDOU_LOG_LEVEL: "silent",
};
const byKeys = await startWorld(t, {
  ...SETTINGS,
  JINDOU_AUTH_JWT_ALGORITHMS: ASYMMETRIC.join(),
  JINDOU_AUTH_JWT_JWKS_FILE: await keyFile(t, JSON.stringify({ keys })),
});
const bySecret = await startWorld(t, {
  ...SETTINGS,
  JINDOU_AUTH_JWT_ALGORITHMS: "HS256,HS384,HS512",
  JINDOU_AUTH_JWT_SECRET_FILE: await keyFile(t, SECRET),
});

const isSymmetric = (alg: string) => alg.startsWith("HS");
const pemOf = ({ privateKey }: Pair) => String(privateKey.export({ type: "pkcs8", format: "pem" }));
const keyOf = (alg: string, isRight = true) => {
  if (!isSymmetric(alg)) return pemOf((isRight ? right : wrong)(alg));
  return isRight ? SECRET.toString() : SECRET.toString().toUpperCase();
};
const nowS = Math.floor(Date.now() / 1000);
const CLAIMS = {
  ...{ iss: SETTINGS.JINDOU_AUTH_JWT_ISSUER, aud: "chat", sub: "alice" },
  ...{ iat: nowS - 60, exp: nowS + 3600 },
};

function caseOf(
  title: string,
  code: Case["code"],
  { alg = "ES256", kid = alg, claims = {}, ...rest }: Partial<SignRequest> & { kid?: unknown },
): Case {
  const header = isSymmetric(alg) || kid === undefined ? {} : { kid };
  return {
    ...{ title, code, alg, key: rest.key ?? keyOf(alg), claims: { ...CLAIMS, ...claims } },
    header: rest.header ?? header,
  };
}

const casesOf = (algorithms: readonly string[]): readonly Case[] => [
  ...algorithms.flatMap((alg) => {
    const foreign = alg === "ES256" ? "RS256" : "ES256";
    return [
      caseOf(`${alg}, the right key`, "ok", { alg }),
      caseOf(`${alg}, another key`, "unauthorized", { alg, key: keyOf(alg, false) }),
      ...(isSymmetric(alg)
        ? []
        : [caseOf(`${alg}, the kid of a key for ${foreign}`, /^un/, { alg, kid: foreign })]),
    ];
  }),
  caseOf("no signature", "unauthorized", { alg: "none", key: "" }),
  caseOf("no kid", "ok", { alg: "ES384", header: {} }),
  caseOf("a kid that two keys have", "ok", { key: pemOf(second) }),
  caseOf("the kid of an encryption key", "unauthorized", {
    alg: "RS256",
    key: pemOf(wrong("RS256")),
  }),
  caseOf("a path as the kid", /^un/, { kid: "../../../etc/passwd" }),
  caseOf("a query as the kid", /^un/, { kid: "' OR 1=1 --" }),
  caseOf("an empty kid", /^un/, { kid: "" }),
  caseOf("a kid of 2,500 characters", "unauthorized", { kid: "k".repeat(2500) }),
  caseOf("a kid of 10 KB", "bad_request", { kid: "k".repeat(10_000) }),
  caseOf("expired for 1 s", "ok", { claims: { exp: nowS - 1 } }),
  caseOf("expired for longer than the tolerance", "token_expired", { claims: { exp: nowS - 31 } }),
  caseOf("valid in a moment", "ok", { claims: { nbf: nowS + 15 } }),
  caseOf("valid later", "unauthorized", { claims: { nbf: nowS + 3000 } }),
  caseOf("issued in the future", "unauthorized", { claims: { iat: nowS + 3000 } }),
  caseOf("a list of audiences", "ok", { claims: { aud: ["mail", "chat"] } }),
  caseOf("other audiences", "unauthorized", { claims: { aud: ["mail", "chats"] } }),
  caseOf("another issuer", "unauthorized", { claims: { iss: "https://id.example/realms/CHAT" } }),
  caseOf("a number as sub", "unauthorized", { claims: { sub: 42 } }),
  caseOf("a long sub", "unauthorized", { claims: { sub: "a".repeat(300) } }),
  caseOf("a lifetime beyond the maximum", "unauthorized", { claims: { exp: nowS + 90_000 } }),
  caseOf("the sub of Auth0", "ok", { claims: { sub: "auth0|65f0" } }),
];

t.test(
  "JWTs signed by third-party packages are accepted if valid, and refused if invalid",
  async (t) => {
    for (const { name, algorithms, sign } of ISSUERS)
      await t.test(name, async (t) => {
        const cases = casesOf(algorithms);
        const tokens = await sign(cases);
        for (const [at, { title, alg, code, claims }] of cases.entries()) {
          const world = isSymmetric(alg) ? bySecret : byKeys;
          const isUid = typeof claims.sub === "string" && claims.sub.length < 100;
          const uid = isUid ? String(claims.sub) : "alice";
          const outcome = await codeOf(world.connect(t, uid, { token: tokens[at] ?? "" }));
          if (typeof code === "string") t.equal(outcome, code, title);
          else t.match(outcome, code, title);
        }
        const [own = ""] = await sign([caseOf("", "", { alg: "HS256" })]);
        t.equal(await codeOf(byKeys.connect(t, "alice", { token: own })), "unauthorized", "HS256");
      });
  },
);

if (ISSUERS.length < 3)
  t.test("valid tokens from PyJWT are accepted", { skip: "pip is missing" }, async () => {});
