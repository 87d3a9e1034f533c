// Checks TLS files before uWebSockets.js sees them, whose own failure says nothing. Owns nothing; keeps no secret.

import type { AppOptions } from "uWebSockets.js";
import { readFile } from "node:fs/promises";
import { createSecureContext } from "node:tls";
import type { TlsFiles } from "./types.ts";

/** What the native app is made with. Rejects with a sentence when a file cannot be read or the pair cannot be used. */
export async function tlsOptions(files: TlsFiles): Promise<AppOptions> {
  const { certFile, keyFile, caFile, passphrase } = files;
  const cert = await readPem(certFile, "TLS certificate");
  const key = await readPem(keyFile, "TLS key");
  const ca = caFile && (await readPem(caFile, "TLS CA certificate"));
  try {
    createSecureContext({
      cert,
      key,
      ...(ca ? { ca } : {}),
      ...(passphrase === undefined ? {} : { passphrase }),
    });
  } catch (cause) {
    const pair = `certificate ${certFile} with key ${keyFile}`;
    throw new Error(`TLS cannot use ${pair}: ${reason(cause)}`, { cause });
  }
  return {
    cert_file_name: certFile,
    key_file_name: keyFile,
    ...(caFile ? { ca_file_name: caFile } : {}),
    ...(passphrase === undefined ? {} : { passphrase }),
  };
}

async function readPem(file: string, what: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (cause) {
    throw new Error(`The ${what} cannot be read: ${reason(cause)}`, { cause });
  }
}

function reason(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
