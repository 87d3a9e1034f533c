// Tracks whether the user is looking at the app, and reports it to the server. A new connection
// begins in the foreground.

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
    // without a connection, `opened` sends the state
    this.#ports.send(this.#isForeground).catch(() => undefined);
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
