// Queue of clients whose frames must not delay other clients' frames: clients of users who have
// spent part of their burst, and clients with a large first frame. Each turn of the event loop
// processes a few of these frames, so that one user's burst does not block all other users. Users
// take turns.

import { LinkedMap } from "../lib/linked-map.ts";

/**
 * Maximum work (in frames) and duration of one turn. The remaining frames wait for the next turn.
 */
const TURN_WORK = 40;
const TURN_MS = 1;
const MAX_BYTES = 64 * 1024 * 1024;

interface WaitingClient {
  /** Processes the oldest waiting frame and returns its work in frames. Must not throw. */
  processNext(): number;
}

interface WaitingFrame {
  readonly client: WaitingClient;
  readonly bytes: number;
}

/** Waiting frames of one user or network. */
interface Queue {
  readonly frames: WaitingFrame[];
  bytes: number;
}

export class FrameTurns {
  /** Queues by user or network, in the order of their next turns. */
  readonly #queues = new LinkedMap<string, Queue>();
  #bytes = 0;
  #isRunning = false;

  /**
   * Adds a frame from a user or network (`key`). `MAX_BYTES` minus the bytes of all waiting frames
   * are free. Returns false, and adds nothing, if the key's waiting frames and the new frame
   * together have more bytes than are free.
   */
  add(key: string, client: WaitingClient, bytes: number): boolean {
    const queue = this.#queues.get(key) ?? { frames: [], bytes: 0 };
    if (queue.bytes + bytes > MAX_BYTES - this.#bytes) return false;
    this.#bytes += bytes;
    queue.bytes += bytes;
    queue.frames.push({ client, bytes });
    this.#queues.set(key, queue);
    if (!this.#isRunning) void this.#run();
    return true;
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    while (this.#queues.size > 0) {
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
    const { oldest } = this.#queues;
    if (oldest === undefined) return undefined;
    const { key, value: queue } = oldest;
    const frame = queue.frames.shift();
    if (queue.frames.length > 0) this.#queues.renew(key, queue);
    else this.#queues.delete(key);
    if (frame === undefined) return undefined;
    this.#bytes -= frame.bytes;
    queue.bytes -= frame.bytes;
    return frame.client;
  }
}
