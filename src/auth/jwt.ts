// Creates the verifier of clients' JWTs from the settings, and reads the files of the keys.

import { readFile } from "node:fs/promises";
import type { JwtVerifier } from "../broker/credentials.ts";
import type { ClaimRules, RefusalReason } from "./claims.ts";
import { type KeySet, publicKeys, secretFault, secretKeys } from "./key-set.ts";
import { createVerifier } from "./verifier.ts";

/** Settings of `auth.jwt`. A path is "" if it is not set. */
interface JwtSettings extends ClaimRules {
  readonly algorithms: readonly string[];
  readonly secretFile: string;
  readonly previousSecretFile: string;
  readonly publicKeyFile: string;
}

interface JwtPorts {
  readonly clock: () => number;
  onRefused(reason: RefusalReason, detail: string): void;
}

/** Throws an error that names the setting if a file cannot be read or does not contain a key. */
export async function createJwt(settings: JwtSettings, ports: JwtPorts): Promise<JwtVerifier> {
  const keys = await readKeys(settings);
  return createVerifier({ ...ports, rules: settings, keys: { current: () => keys } });
}

/** Reads the keys that the settings name. Throws like `createJwt`. */
export async function readKeys(settings: JwtSettings): Promise<KeySet> {
  const { secretFile, previousSecretFile, publicKeyFile } = settings;
  if (publicKeyFile !== "")
    return named("publicKeyFile", publicKeyFile, async (path) =>
      publicKeys(await readFile(path, "utf8")),
    );
  const secrets = [await named("secretFile", secretFile, readSecret)];
  if (previousSecretFile !== "")
    secrets.push(await named("previousSecretFile", previousSecretFile, readSecret));
  return secretKeys(secrets);
}

async function named<T>(
  name: string,
  path: string,
  read: (path: string) => Promise<T>,
): Promise<T> {
  try {
    return await read(path);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new Error(`auth.jwt.${name}: the file ${path} cannot be used: ${reason}`);
  }
}

const LINE_FEED = 0x0a;
const CARRIAGE_RETURN = 0x0d;

async function readSecret(path: string): Promise<Uint8Array> {
  const bytes = await readFile(path);
  let end = bytes.length;
  while (bytes[end - 1] === LINE_FEED || bytes[end - 1] === CARRIAGE_RETURN) end -= 1;
  const secret = bytes.subarray(0, end);
  const fault = secretFault(secret);
  if (fault !== undefined) throw new Error(fault);
  return secret;
}
