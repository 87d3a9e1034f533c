// Helpers for the HTTP tests: routes, and calls to a listener.

import type { Test } from "tap";
import type { HttpEndpoint, HttpRequest, HttpRoute } from "../../src/transport/types.ts";
import { HOST, httpEndpoint, type Started, startListener } from "./support.ts";

export const post = (path: string, handle: HttpRoute["handle"]): HttpRoute => ({
  method: "POST",
  path,
  handle,
});
export const get = (path: string, handle: HttpRoute["handle"]): HttpRoute => ({
  method: "GET",
  path,
  handle,
});
export const bodyText = (request: HttpRequest): string => Buffer.from(request.body).toString();

/** Starts a listener with these routes. The returned `call` makes calls to the listener. */
export async function serve(
  t: Test,
  routes: readonly HttpRoute[],
  overrides: Partial<HttpEndpoint> = {},
): Promise<Started & { call(path: string, init?: RequestInit): Call }> {
  const http = httpEndpoint(routes, overrides);
  const started = await startListener(t, { http });
  const call = async (path: string, init: RequestInit = {}) => {
    const url = `http://${HOST}:${started.port}${path}`;
    const response = await fetch(url, init);
    const { status, headers } = response;
    return { status, headers, body: await response.text() };
  };
  return { ...started, call };
}
type Call = Promise<{ status: number; headers: Headers; body: string }>;
