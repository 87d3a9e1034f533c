// Replaces find-socket.ts in bundles for browsers, which must not contain `ws`.

/** Rejects: there is no WebSocket class to load in a browser. */
export function findSocket(): Promise<unknown> {
  return Promise.reject();
}
