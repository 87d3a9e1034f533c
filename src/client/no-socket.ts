// Replaces find-socket.ts in bundles for browsers, which must not contain `ws`. No state.

export async function findSocket(): Promise<unknown> {
  throw new Error("The platform has no WebSocket");
}
