// The WebSocket class of the package `ws`, for a Node without one. In bundles for browsers
// no-socket.ts takes its place (`browser` in the package.json of `jindou-client`). No state.

/** Loads `ws` on demand. */
export async function findSocket(): Promise<unknown> {
  const { WebSocket } = await import("ws");
  return WebSocket;
}
