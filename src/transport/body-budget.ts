// What the half-received bodies of all calls may take together. State: how much they take now. Shared by the listeners of a node.

export class BodyBudget {
  readonly #maxBytes: number;
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Bytes they take now. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Takes all of `bytes` or, when there is no room, nothing and answers false. */
  take(bytes: number): boolean {
    if (this.#bytes + bytes > this.#maxBytes) return false;
    this.#bytes += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#bytes -= bytes;
  }
}
