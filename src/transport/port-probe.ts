// Why an address cannot be listened on: uWebSockets.js only says that it cannot, so Node tries the same. Owns nothing for long.

import { createServer } from "node:net";

const REASONS: Readonly<Record<string, string>> = {
  EADDRINUSE: "another process listens there",
  EADDRNOTAVAIL: "this machine does not have that address",
  EACCES: "this process may not use that port",
  ENOTFOUND: "the host name is unknown",
};

/** The error to start with, a sentence. Call it after listening failed. */
export async function whyCannotListen(
  host: string,
  port: number,
): Promise<Error> {
  const refusal = await probeAddress(host, port);
  const where = `${host.includes(":") ? `[${host}]` : host}:${port}`;
  const reason = refusal?.reason ?? "the system refused it";
  return new Error(`Cannot listen on ${where}: ${reason}`);
}

/** Listens for a moment and stops; undefined: it could. `code` is the system's, for example EADDRINUSE. */
export async function probeAddress(
  host: string,
  port: number,
): Promise<{ readonly code: string; readonly reason: string } | undefined> {
  const error = await tryListening(host.replace(/^\[(.*)\]$/, "$1"), port);
  if (error === undefined) return undefined;
  const code = error.code ?? "";
  return { code, reason: REASONS[code] ?? error.message };
}

function tryListening(
  host: string,
  port: number,
): Promise<NodeJS.ErrnoException | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once("error", resolve);
    server.listen({ host, port, exclusive: true }, () =>
      server.close(() => resolve(undefined)),
    );
  });
}
