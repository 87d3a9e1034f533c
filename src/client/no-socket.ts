// Replaces find-socket.ts in bundles for browsers, which must not contain `ws`.

export function findSocket(): Promise<unknown> {
  return Promise.reject();
}
