// Loads the WebSocket class of the `ws` package. Browser bundles contain no-socket.ts instead
// (`browser` in the package.json of `jindou-client`).

export async function findSocket(): Promise<unknown> {
  const { WebSocket } = await import("ws");
  return WebSocket;
}
