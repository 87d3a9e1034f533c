// Queue of the clients whose frames must not delay those of others: clients of users who have spent
// a part of their burst, and clients with a large first frame. Each turn of the event loop
// processes a few of these frames, so that the burst of one user does not stop all others. Users
// take turns.

/** Maximum work (in frames) and time of one turn. The rest waits for the next turn. */
const TURN_WORK = 40;
const TURN_MS = 1;
const MAX_BYTES = 64 * 1024 * 1024;

interface WaitingClient {
  /** Processes the oldest waiting frame and returns its work in frames. Must not throw. */
  processNext(): number;
}

export class FrameTurns {
  /** Waiting clients by user or network, in the order of turns, once for each waiting frame. */
  readonly #waiting = new Map<string, WaitingClient[]>();
  #bytes = 0;
  #isRunning = false;

  /** Returns false, and adds nothing, if there is no room for the frame. */
  add(key: string, client: WaitingClient, bytes: number): boolean {
    if (this.#bytes + bytes > MAX_BYTES) return false;
    this.#bytes += bytes;
    const clients = this.#waiting.get(key);
    if (clients === undefined) this.#waiting.set(key, [client]);
    else clients.push(client);
    if (!this.#isRunning) void this.#run();
    return true;
  }

  /** Counts an added frame as no longer waiting. Must be called once for each. */
  remove(bytes: number): void {
    this.#bytes -= bytes;
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    while (this.#waiting.size > 0) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      const startMs = performance.now();
      let work = 0;
      while (work < TURN_WORK && performance.now() - startMs < TURN_MS) {
        const client = this.#next();
        if (client === undefined) break;
        work += client.processNext();
        await undefined; // so that the measured time includes work that continues without I/O
      }
    }
    this.#isRunning = false;
  }

  #next(): WaitingClient | undefined {
    const next = this.#waiting.entries().next();
    if (next.done) return undefined;
    const [key, clients] = next.value;
    const client = clients.shift();
    this.#waiting.delete(key);
    if (clients.length > 0) this.#waiting.set(key, clients); // moves the key to the end
    return client;
  }
}
