// Messages without a SENDACK. State: a queue per channel, in the order of the calls. One message of
// a channel is in flight at a time, so that no refusal or lost connection can reorder them. A
// message keeps its clientMsgNo, so that repeating it is harmless.

import { type ChannelKey, type ChannelRef, channelKey } from "../broker/model.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import type { Sent } from "./api.ts";
import type { Connection, Request } from "./connection.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { messageKey } from "./messages.ts";
import { Timer } from "./waiting.ts";

type Draft = Request<"send">;

interface OutboxParts {
  readonly uid: string;
  /** Limit of messages without a SENDACK. */
  readonly maxQueued: number;
  /** Time limit of each; 0: none. */
  readonly sendMs: number;
  acked(channel: ChannelRef, ack: Sent): void;
}

interface Entry {
  readonly id: string;
  readonly key: ChannelKey;
  readonly draft: Draft;
  readonly answer: Deferred<Sent>;
  timer?: ReturnType<typeof setTimeout>;
}

/** Over all channels; well below the server's limit. */
const MAX_IN_FLIGHT = 256;
const RETRY_MS = 1000;

export class Outbox {
  readonly #parts: OutboxParts;
  readonly #queues = new Map<ChannelKey, Entry[]>();
  /** All messages, by `messageKey`. */
  readonly #entries = new Map<string, Entry>();
  /** Channels whose first message may be sent. */
  readonly #ready = new Set<ChannelKey>();
  /** Channels whose first message is in flight, or waits for its retry. */
  readonly #sending = new Set<ChannelKey>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  /** While it runs nothing is sent: the server asked for it. */
  readonly #hold = new Timer(() => this.#sendReady());

  constructor(parts: OutboxParts) {
    this.#parts = parts;
  }

  /** Rejects with `queue_full`, `timeout`, the refusal, or the reason the client was closed. */
  async send(draft: Draft): Promise<Sent> {
    const { uid, maxQueued, sendMs } = this.#parts;
    if (this.#closed !== undefined) throw this.#closed;
    const id = messageKey(uid, draft.channel, draft.clientMsgNo);
    const same = this.#entries.get(id);
    if (same !== undefined) return same.answer.promise;
    if (this.#entries.size >= maxQueued) throw new JindouError("queue_full");
    const key = channelKey(draft.channel, uid);
    const answer = deferred<Sent>();
    const entry: Entry = { id, key, draft, answer };
    if (sendMs > 0)
      entry.timer = setTimeout(() => this.#reject(entry, new JindouError("timeout")), sendMs);
    this.#entries.set(id, entry);
    const queue = this.#queues.get(key);
    if (queue !== undefined) queue.push(entry);
    else {
      this.#queues.set(key, [entry]);
      this.#ready.add(key);
    }
    this.#sendReady();
    return answer.promise;
  }

  /** Whether this message waits for its SENDACK. */
  has(channel: ChannelRef, clientMsgNo: string): boolean {
    return this.#entries.has(messageKey(this.#parts.uid, channel, clientMsgNo));
  }

  isSending(channel: ChannelRef): boolean {
    return this.#sending.has(channelKey(channel, this.#parts.uid));
  }

  opened(connection: Connection): void {
    this.#connection = connection;
    for (const key of this.#queues.keys()) this.#ready.add(key);
    this.#sendReady();
  }

  lost(): void {
    this.#connection = undefined;
    this.#sending.clear();
    this.#hold.stop();
  }

  close(error: JindouError): void {
    this.lost();
    this.#closed = error;
    for (const entry of this.#entries.values()) this.#reject(entry, error);
  }

  #sendReady(): void {
    for (const key of this.#ready) {
      const isFull = this.#sending.size >= MAX_IN_FLIGHT;
      if (this.#connection === undefined || this.#hold.isRunning || isFull) return;
      this.#ready.delete(key);
      const entry = this.#queues.get(key)?.[0];
      if (entry === undefined || this.#sending.has(key)) continue;
      this.#sending.add(key);
      void this.#transmit(entry, this.#connection);
    }
  }

  async #transmit(entry: Entry, connection: Connection): Promise<void> {
    const { key, draft, answer } = entry;
    let waitMs = 0;
    try {
      await connection.request(draft, (ack) => {
        this.#remove(entry);
        this.#parts.acked(draft.channel, ack);
        const { messageId, messageSeq, clientMsgNo } = ack;
        answer.resolve({ messageId, messageSeq, clientMsgNo });
      });
    } catch (error) {
      const refusal = asJindouError(error, "connection_lost");
      if (connection !== this.#connection) return; // the next connection repeats it
      if (refusal.code === "timeout") return connection.fail(refusal);
      if (!refusal.retry) this.#reject(entry, refusal);
      else waitMs = refusal.retryAfterMs || RETRY_MS;
      if (refusal.code === "rate_limited") this.#hold.start(waitMs);
    }
    if (waitMs === 0) this.#release(key, connection);
    else setTimeout(() => this.#release(key, connection), waitMs);
  }

  /** The channel's next message may be sent, unless the connection was lost meanwhile. */
  #release(key: ChannelKey, connection: Connection): void {
    if (connection !== this.#connection) return;
    this.#sending.delete(key);
    if (this.#queues.has(key)) this.#ready.add(key);
    this.#sendReady();
  }

  #reject(entry: Entry, error: JindouError): void {
    this.#remove(entry);
    entry.answer.reject(error);
  }

  #remove(entry: Entry): void {
    const { id, key, timer } = entry;
    clearTimeout(timer);
    if (this.#entries.get(id) === entry) this.#entries.delete(id);
    const left = (this.#queues.get(key) ?? []).filter((one) => one !== entry);
    if (left.length > 0) this.#queues.set(key, left);
    else this.#queues.delete(key);
  }
}
