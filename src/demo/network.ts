// The network of one user, which a switch can cut. The SDK opens its sockets with a class that the
// app passes to it. The sockets of the class in this file fail when the network is cut.

import type { SocketConstructor, SocketLike } from "jindou-client";

/** Event for a connection that was lost without a close frame. */
const LOST = new CloseEvent("close", { code: 1006 });
/** Time until a connection attempt without a network fails. */
const FAIL_MS = 300;

export class Network {
  readonly #sockets = new Set<WebSocket>();
  /** Start and end of the last cut. The end is `Infinity` while the network is cut. */
  away = { fromMs: 0, toMs: 0 };

  /** Class of the sockets in this network. */
  readonly socketClass: SocketConstructor = new Proxy(WebSocket, {
    construct: (_, [url, protocols]) => (this.isCut ? deadSocket() : this.#open(url, protocols)),
  });

  get isCut(): boolean {
    return this.away.toMs === Infinity;
  }

  toggle(): void {
    if (this.isCut) {
      this.away = { ...this.away, toMs: Date.now() };
      window.dispatchEvent(new Event("online")); // the SDK then connects without a delay
      return;
    }
    this.away = { fromMs: Date.now(), toMs: Infinity };
    for (const socket of this.#sockets) {
      socket.onclose?.(LOST);
      socket.onmessage = null;
      socket.onclose = null;
      socket.close();
    }
  }

  #open(url: string, protocols: string[]): WebSocket {
    const socket = new WebSocket(url, protocols);
    this.#sockets.add(socket);
    socket.addEventListener("close", () => this.#sockets.delete(socket));
    return socket;
  }
}

function deadSocket(): SocketLike {
  const handlers = { onopen: null, onmessage: null, onclose: null, onerror: null };
  const socket: SocketLike = { binaryType: "", ...handlers, send() {}, close() {} };
  setTimeout(() => socket.onclose?.(LOST), FAIL_MS);
  return socket;
}
