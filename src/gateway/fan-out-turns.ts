// Splits a delivery to many sessions if it would block the event loop, because its frames are large
// or are encrypted for each session. Frames are sent to the first sessions at once, and to the
// others in later event-loop turns. Groups and users with such deliveries take turns. The frames of
// a session stay in order, because a session sends its deferred pushes before every other frame.

import { LinkedMap } from "../lib/linked-map.ts";
import type { DeferredPush, Session } from "./session.ts";

/** Minimum and maximum duration of a turn. The remaining deliveries wait for the next turn. */
const MIN_TURN_MS = 1;
const MAX_TURN_MS = 4;
/**
 * Duration of a turn, as a fraction of the time since the previous turn. At least `MIN_TURN_MS` and
 * at most `MAX_TURN_MS`.
 */
const TURN_SHARE = 1 / 4;
/**
 * Number of sessions that receive their frames before the next key (a group or a user) has its
 * turn.
 */
const SESSIONS_AT_ONCE = 4;
/**
 * Number of bytes after which the remaining frames of a delivery are deferred. The same limit
 * applies to all large or encrypted deliveries of a turn together.
 */
const BYTES_AT_ONCE = 512 * 1024;
/** Fixed cost of sending one frame, as a number of bytes. */
const COPY_BYTES = 2048;
/** Factor by which sending an encrypted copy takes longer than sending a shared frame. */
const ENCRYPTION_FACTOR = 4;
const ENCRYPTION_BYTES = 4096;
/** Limits on all deferred deliveries together. A delivery beyond these limits is sent at once. */
const MAX_COPIES = 100_000;
const MAX_BYTES = 64 * 1024 * 1024;

/**
 * Minimum size at which uWebSockets.js writes a published frame to each subscriber immediately. For
 * such a frame, publishing to a topic saves no work compared with sending it to each subscriber.
 */
const LARGE_FRAME_BYTES = 16 * 1024;

interface Delivery {
  readonly sessions: readonly Session[];
  readonly bytes: number;
  readonly onDone: (() => void) | undefined;
  next: number;
}

export class FanOutTurns {
  readonly #onError: (error: unknown, context: string) => void;
  /** Deferred deliveries by key, in the order of the keys' next turns. */
  readonly #waiting = new LinkedMap<string, Delivery[]>();
  /** Callbacks of the deliveries that ended in the last turn. */
  #done: (() => void)[] = [];
  #copies = 0;
  #bytes = 0;
  #isRunning = false;
  /** Number of bytes that may still be sent at once in this turn. */
  #remaining = BYTES_AT_ONCE;

  constructor(onError: (error: unknown, context: string) => void) {
    this.#onError = onError;
  }

  /** Begins a delivery. `bytes` is the size of its payload. */
  begin(key: string, bytes: number): FanOut {
    return new FanOut(this, key, bytes);
  }

  /** Charges a frame to this turn. Returns false if it must be deferred. */
  takeBytes(bytes: number): boolean {
    if (this.#remaining <= 0) return false;
    if (this.#remaining === BYTES_AT_ONCE) setImmediate(this.#beginTurn);
    this.#remaining -= bytes;
    return true;
  }

  /**
   * Charges a large frame that is published to a topic. Returns false if the copies for all
   * receivers do not fit in this turn. A small frame always fits and is not charged.
   */
  takePublish(receivers: number, bytes: number): boolean {
    return (
      bytes < LARGE_FRAME_BYTES ||
      (receivers * bytes <= this.#remaining && this.takeBytes(receivers * bytes))
    );
  }

  readonly #beginTurn = (): void => {
    this.#remaining = BYTES_AT_ONCE;
  };

  /**
   * Adds a delivery. Returns false, and adds nothing, if the delivery would exceed `MAX_COPIES` or
   * `MAX_BYTES`.
   */
  add(key: string, { sessions, bytes, onDone }: Omit<Delivery, "next">): boolean {
    if (this.#copies + sessions.length > MAX_COPIES || this.#bytes + bytes > MAX_BYTES)
      return false;
    this.#copies += sessions.length;
    this.#bytes += bytes;
    const delivery = { sessions, bytes, onDone, next: 0 };
    const deliveries = this.#waiting.get(key);
    if (deliveries === undefined) this.#waiting.set(key, [delivery]);
    else deliveries.push(delivery);
    if (!this.#isRunning) void this.#run();
    return true;
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    let endMs = performance.now();
    while (this.#waiting.size > 0 || this.#done.length > 0) {
      await new Promise<void>((resolve) => setImmediate(resolve));
      // The connections have written the last turn's frames by now.
      for (const done of this.#done.splice(0)) done();
      const startMs = performance.now();
      const turnMs = Math.min(Math.max(MIN_TURN_MS, (startMs - endMs) * TURN_SHARE), MAX_TURN_MS);
      while (this.#waiting.size > 0 && performance.now() - startMs < turnMs) this.#continue();
      endMs = performance.now();
    }
    this.#isRunning = false;
  }

  #continue(): void {
    const { oldest } = this.#waiting;
    if (oldest === undefined) return;
    const { key, value: deliveries } = oldest;
    this.#waiting.delete(key);
    const [delivery] = deliveries;
    if (delivery !== undefined && this.#sendNext(delivery)) deliveries.shift();
    if (deliveries.length > 0) this.#waiting.set(key, deliveries); // moves the key to the end
  }

  /** Sends the next frames of the delivery. Returns true if the delivery has ended. */
  #sendNext(delivery: Delivery): boolean {
    const { sessions, bytes, onDone } = delivery;
    const end = Math.min(delivery.next + SESSIONS_AT_ONCE, sessions.length);
    while (delivery.next < end) {
      const session = sessions[delivery.next++];
      this.#copies -= 1;
      try {
        session?.pushDeferred();
      } catch (error) {
        this.#onError(error, "Could not send a deferred push to a client; ending its session");
        session?.end("unavailable");
      }
    }
    if (end < sessions.length) return false;
    this.#bytes -= bytes;
    if (onDone !== undefined) this.#done.push(onDone);
    return true;
  }
}

/** One delivery. Must not be used after `end`. */
export class FanOut {
  readonly #turns: FanOutTurns;
  readonly #key: string;
  readonly #bytes: number;
  #remaining = BYTES_AT_ONCE;
  #deferred: Session[] | undefined;

  constructor(turns: FanOutTurns, key: string, bytes: number) {
    this.#turns = turns;
    this.#key = key;
    this.#bytes = bytes;
  }

  send(session: Session, push: DeferredPush): void {
    if (this.#charge(session)) return push(session);
    session.defer(push);
    if (this.#deferred === undefined) this.#deferred = [session];
    else this.#deferred.push(session);
  }

  /** Charges the frame for one session. Returns false if the frame must be deferred. */
  #charge({ codec }: Session): boolean {
    if (this.#remaining <= 0) return false;
    const { isPrivate } = codec;
    const bytes = isPrivate
      ? ENCRYPTION_FACTOR * (this.#bytes + ENCRYPTION_BYTES)
      : this.#bytes + COPY_BYTES;
    // A small frame is not charged to the turn, so that a busy node does not defer small messages.
    const isSmall = !isPrivate && this.#bytes < LARGE_FRAME_BYTES;
    if (!isSmall && !this.#turns.takeBytes(bytes)) return false;
    this.#remaining -= bytes;
    return true;
  }

  /**
   * Queues the deferred pushes, or sends them now if the queue has no room. `onDone` is called in a
   * later event-loop turn than the last push.
   */
  end(onDone?: () => void): void {
    const sessions = this.#deferred ?? [];
    const delivery = { sessions, bytes: this.#bytes, onDone };
    if (sessions.length === 0 && onDone === undefined) return;
    if (this.#turns.add(this.#key, delivery)) return;
    for (const session of sessions) session.pushDeferred();
    this.#turns.add(this.#key, { sessions: [], bytes: 0, onDone });
  }
}
