// The WebSocket class of the package `ws`, for platforms without one. In bundles for browsers
// no-socket.ts takes its place (`browser` in package.json). No state.

/** Loads `ws` on demand; rejects when it is not installed. */
export async function findSocket(): Promise<unknown> {
  const { WebSocket } = await import("ws");
  return WebSocket;
}
