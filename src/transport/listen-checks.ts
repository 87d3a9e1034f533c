// Uses Node.js to check the TLS files and the address to listen on, because uWebSockets.js rejects
// them without reporting the reason. Keeps no state and no secrets.

import { readFile } from "node:fs/promises";
import { createServer } from "node:net";
import { createSecureContext } from "node:tls";
import type { Tls, TlsFiles } from "./driver.ts";

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: "another process is already listening there",
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
 * Tries to listen. Returns the system's error code and a reason, or `undefined` if the address can
 * be used.
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

/**
 * Reads the TLS files. Rejects if a file cannot be read, or if Node.js does not accept the files.
 */
export async function readTls(files: TlsFiles): Promise<Tls> {
  const { certFile, keyFile, caFile } = files;
  const tls = {
    files,
    cert: await readPem(certFile, "TLS certificate"),
    key: await readPem(keyFile, "TLS key"),
    ca: caFile === undefined ? undefined : await readPem(caFile, "TLS CA certificate"),
  };
  try {
    const { passphrase } = files;
    createSecureContext({
      cert: tls.cert,
      key: tls.key,
      ...(tls.ca === undefined ? {} : { ca: tls.ca }),
      ...(passphrase === undefined ? {} : { passphrase }),
    });
  } catch (cause) {
    const pair = `the TLS certificate ${certFile} with the key ${keyFile}`;
    throw new Error(`Cannot use ${pair}: ${messageOf(cause)}`, { cause });
  }
  return tls;
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
