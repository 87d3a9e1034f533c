// The WebSocket class of the package `ws`, for where the platform has none. Bundles for browsers have no-socket.ts in its place (`browser`
// in package.json). No state.

/** Loaded only when asked for; rejects where it is not installed. */
export async function findSocket(): Promise<unknown> {
  const { WebSocket } = await import("ws");
  return WebSocket;
}
