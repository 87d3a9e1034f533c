// Tracks whether the user is looking at the app, and reports it to the server. A new connection
// begins in the foreground.

import { isConnectionLost, type JindouError } from "./errors.ts";
import { sleep } from "./waiting.ts";

const RETRY_MS = 1000;

interface VisibilityPorts {
  send(foreground: boolean): Promise<unknown>;
}

export class Visibility {
  readonly #ports: VisibilityPorts;
  #isForeground = true;

  constructor(ports: VisibilityPorts) {
    this.#ports = ports;
  }

  set(isForeground: boolean): void {
    if (this.#isForeground === isForeground) return;
    this.#isForeground = isForeground;
    this.#send();
  }

  opened(): void {
    if (!this.#isForeground) this.#send();
  }

  #send(): void {
    this.#ports.send(this.#isForeground).catch(async (error: JindouError) => {
      // If the connection was lost, `opened` sends the state later.
      if (!error.retry || isConnectionLost(error)) return;
      await sleep(error.retryAfterMs || RETRY_MS);
      this.#send();
    });
  }
}

/** Tracks whether a browser's page is hidden. Returns a function that stops the tracking. */
export function followPage(visibility: Visibility): () => void {
  const page = (globalThis as { readonly document?: Partial<EventTarget> & { hidden?: boolean } })
    .document;
  const update = () => visibility.set(!page?.hidden);
  update();
  page?.addEventListener?.("visibilitychange", update);
  return () => page?.removeEventListener?.("visibilitychange", update);
}
