// Checks with Node.js what uWebSockets.js rejects without giving a reason: the TLS files and the
// address to listen on. State: none; no secret is kept.

import type { AppOptions } from "uWebSockets.js";
import { readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { createSecureContext } from "node:tls";
import type { TlsFiles } from "./types.ts";

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: "another process listens there",
  EADDRNOTAVAIL: "this machine does not have that address",
  EACCES: "this process may not use that port",
  ENOTFOUND: "the host name is unknown",
};

export async function whyCannotListen(host: string, port: number): Promise<Error> {
  const refusal = await probeAddress(host, port);
  const where = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  const reason = refusal?.reason ?? "the system does not allow it";
  return new Error(`Cannot listen on ${where}: ${reason}`);
}

/**
 * Returns `undefined` if listening succeeds, otherwise the error code of the system and a reason.
 */
export async function probeAddress(
  host: string,
  port: number,
): Promise<{ readonly code: string; readonly reason: string } | undefined> {
  const error = await tryListening(host.replace(/^\[(.*)\]$/, "$1"), port);
  if (error === undefined) return undefined;
  const code = error.code ?? "";
  return { code, reason: REASONS[code] ?? error.message };
}

function tryListening(host: string, port: number): Promise<NodeJS.ErrnoException | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", resolve);
    server.listen({ host, port, exclusive: true }, () => server.close(() => resolve(undefined)));
  });
}

/** Rejects if a file cannot be read, or if Node.js does not accept the files. */
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
    const pair = `the TLS certificate ${certFile} with the key ${keyFile}`;
    throw new Error(`Cannot use ${pair}: ${messageOf(cause)}`, { cause });
  }
  return {
    cert_file_name: certFile,
    key_file_name: keyFile,
    ...(caFile ? { ca_file_name: caFile } : {}),
    ...(passphrase === undefined ? {} : { passphrase }),
  };
}

async function readPem(file: string, kind: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (cause) {
    throw new Error(`Cannot read the ${kind}: ${messageOf(cause)}`, {
      cause,
    });
  }
}

function messageOf(cause: unknown): string {
  return cause instanceof Error ? cause.message : String(cause);
}
