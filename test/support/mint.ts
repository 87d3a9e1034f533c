// Signs JWTs as an issuer does, with the package `jose`, and writes the issuer's keys into files.

import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { type CryptoKey, exportSPKI, generateKeyPair, type JWTPayload, SignJWT } from "jose";
import type { Test } from "tap";
import { tempFolder } from "./broker.ts";

/** A key of an issuer. A secret is a `Uint8Array`. */
export interface IssuerKey {
  readonly alg: string;
  readonly key: CryptoKey | Uint8Array;
  readonly kid?: string | undefined;
}

export interface TokenOptions {
  /** Seconds from now to `exp`. `undefined` if the token has no `exp`. Default: 600. */
  readonly expiresInS?: number | undefined;
  /** Seconds from `iat` to now. `undefined` if the token has no `iat`. Default: 0. */
  readonly ageS?: number | undefined;
  /** Additional members of the header. */
  readonly header?: Readonly<Record<string, unknown>>;
}

export const SECRET = Buffer.from("a secret of the tests, 48 bytes long, not 47 nor");

export const HMAC_KEY: IssuerKey = { alg: "HS256", key: SECRET };

/** Signs a token. `claims` replace `iat` and `exp`. */
export async function mint(
  { alg, key, kid }: IssuerKey,
  claims: JWTPayload,
  options: TokenOptions = {},
): Promise<string> {
  const { expiresInS, ageS, header = {} } = { expiresInS: 600, ageS: 0, ...options };
  const nowS = Math.floor(Date.now() / 1000);
  return new SignJWT({
    ...(ageS === undefined ? {} : { iat: nowS - ageS }),
    ...(expiresInS === undefined ? {} : { exp: nowS + expiresInS }),
    ...claims,
  })
    .setProtectedHeader({ alg, ...(kid === undefined ? {} : { kid }), ...header })
    .sign(key);
}

/** Writes a file of keys into a folder that the test removes. Returns its path. */
export async function keyFile(t: Test, content: string | Uint8Array): Promise<string> {
  const path = join(await tempFolder(t), "key");
  await writeFile(path, content);
  return path;
}

/** Creates a key pair. `pem` is the public key. */
export async function newKeyPair(alg: string): Promise<{ issuer: IssuerKey; pem: string }> {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  return { issuer: { alg, key: privateKey }, pem: await exportSPKI(publicKey) };
}

/** Ports of `createJwt` for a test that has neither a store nor a provider. */
export const NO_PROVIDER = {
  clock: Date.now,
  store: { keySet: async () => undefined, putKeySet: async () => {} },
  onRefused: () => {},
  onKeysChanged: () => {},
  onKeyFailure: () => {},
};
