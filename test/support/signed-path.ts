// Paths of durable streams with a signature, as a backend passes them to a page.

import type { Broker } from "./broker.ts";

/** Returns the path with a signature that is valid for an hour. */
export async function signedPath(
  { call }: Pick<Broker, "call">,
  path: string,
  access: "read" | "write",
): Promise<string> {
  const { body } = await call("/v1/sign", { path, access, expires_in: 3600 });
  const { pathname, search } = new URL(body.url);
  return pathname + search;
}
