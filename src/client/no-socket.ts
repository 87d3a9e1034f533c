// Replaces find-socket.ts in browser bundles, which must not contain `ws`.

export function findSocket(): Promise<unknown> {
  return Promise.reject();
}
