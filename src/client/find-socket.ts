// Loads the WebSocket class of the package `ws`. Bundles for browsers contain no-socket.ts instead
// (`browser` in the package.json of `jindou-client`).

export async function findSocket(): Promise<unknown> {
  const { WebSocket } = await import("ws");
  return WebSocket;
}
