// What bundles for browsers have instead of find-socket.ts: nothing of Node comes along. No state.

export async function findSocket(): Promise<unknown> {
  throw new Error("The platform has no WebSocket");
}
