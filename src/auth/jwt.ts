// Creates the verifier for clients' JWTs from the settings, and reads the key files.

import { isUtf8 } from "node:buffer";
import { readFile } from "node:fs/promises";
import type { JwtVerifier } from "../broker/credentials.ts";
import type { StoredKeySet } from "../broker/ports.ts";
import { textFault, trimFile } from "../lib/text-faults.ts";
import { type ClaimRules, type RefusalReason, TokenRefusal } from "./claims.ts";
import { KeyRefresher } from "./key-refresher.ts";
import { jwksKeys, type KeySet, publicKeys, secretFault, secretKeys } from "./key-set.ts";
import { fileSource, urlSource } from "./key-sources.ts";
import { createVerifier } from "./verifier.ts";

/** Settings of `auth.jwt`. A path or URL is "" if it is not set. */
interface JwtSettings extends ClaimRules {
  readonly algorithms: readonly string[];
  readonly secretFile: string;
  readonly previousSecretFile: string;
  readonly publicKeyFile: string;
  readonly jwksFile: string;
  readonly jwksUrl: string;
  readonly jwksRefreshS: number;
  readonly jwksMaxStaleS: number;
}

interface JwtPorts {
  readonly clock: () => number;
  /** Stores a provider's last key document. Used only with `jwksUrl`. */
  readonly store: {
    keySet(): Promise<StoredKeySet | undefined>;
    putKeySet(set: StoredKeySet): Promise<void>;
  };
  onRefused(reason: RefusalReason, detail: string): void;
  onKeysChanged(): void;
  /**
   * Called if the keys could not be read or stored. Keys that were read earlier stay valid for a
   * limited time.
   */
  onKeyFailure(error: unknown): void;
}

export interface Jwt {
  readonly verifier: JwtVerifier;
  /**
   * Seconds since the keys were last read successfully. 0 before the first read, and if the keys
   * are read only on startup.
   */
  readonly keyAgeS: number;
  /** Waits at most a few seconds for the keys. Must be called after the store has started. */
  start(): Promise<void>;
  close(): void;
}

/** Throws an error that names the setting if a file cannot be read or does not contain keys. */
export async function createJwt(settings: JwtSettings, ports: JwtPorts): Promise<Jwt> {
  const { jwksFile, jwksUrl } = settings;
  const keys = await readKeys(settings);
  const refresher = jwksFile === "" && jwksUrl === "" ? undefined : refresherOf(settings, ports);
  const fixed = {
    current: () => keys ?? secretKeys([]),
    missing: () => new TokenRefusal("key", "no key matches the token's header"),
  };
  return {
    verifier: createVerifier({ ...ports, rules: settings, keys: refresher ?? fixed }),
    get keyAgeS() {
      return refresher?.ageS ?? 0;
    },
    start: async () => refresher?.start(),
    close: () => refresher?.close(),
  };
}

function refresherOf(settings: JwtSettings, ports: JwtPorts): KeyRefresher {
  const { jwksFile, jwksUrl } = settings;
  const { clock, store } = ports;
  const isUrl = jwksUrl !== "";
  return new KeyRefresher({
    ...{ clock, refreshS: settings.jwksRefreshS, maxStaleS: settings.jwksMaxStaleS },
    read: isUrl ? urlSource(jwksUrl) : fileSource(jwksFile),
    parse: jwksKeys,
    copy: {
      async load() {
        const stored = isUrl ? await store.keySet() : undefined;
        // The stored keys must not be used if they were read from a different provider's URL.
        return stored?.url === jwksUrl ? stored : undefined;
      },
      save: async (document) => {
        if (isUrl) await store.putKeySet({ url: jwksUrl, ...document });
      },
    },
    onChanged: ports.onKeysChanged,
    onFailure: ports.onKeyFailure,
  });
}

/**
 * Returns the keys in the files that the settings name, or `undefined` if the settings name a URL.
 * Throws the same errors as `createJwt`.
 */
export async function readKeys(settings: JwtSettings): Promise<KeySet | undefined> {
  const { secretFile, previousSecretFile, publicKeyFile, jwksFile, jwksUrl } = settings;
  if (jwksUrl !== "") return undefined;
  if (jwksFile !== "")
    return named("jwksFile", jwksFile, async (path) => jwksKeys(await fileSource(path)()));
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

/**
 * Returns the secret in a file. Text is cleaned and checked like a setting, so that a byte-order
 * mark, quotes or spaces do not become part of the key. A file that is not UTF-8 is a binary key,
 * which is used unchanged.
 */
async function readSecret(path: string): Promise<Uint8Array> {
  const bytes = await readFile(path);
  const text = isUtf8(bytes) ? trimFile(bytes.toString("utf8")) : undefined;
  const flaw = text === undefined ? undefined : textFault(text);
  if (flaw !== undefined) throw new Error(`its text ${flaw}`);
  const secret = text === undefined ? bytes : Buffer.from(text);
  const fault = secretFault(secret);
  if (fault !== undefined) throw new Error(fault);
  return secret;
}
