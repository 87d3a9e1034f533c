// What is to be sent and has no receipt yet. State: one lane per channel, in the order of the calls, and which lanes wait for a receipt.
// One message of a channel is under way at a time: the next one leaves with the receipt, so no refusal or lost connection can turn their
// order round. A message keeps its clientMsgNo, so repeating it is harmless.

import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
} from "../broker/model.ts";
import type { Sent } from "./api.ts";
import type { Connection, Request } from "./connection.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { messageKey } from "./messages.ts";
import { type Deferred, deferred } from "./waiting.ts";

type Draft = Request<"send">;

export interface OutboxParts {
  readonly uid: string;
  /** Most messages without a receipt. */
  readonly maxQueued: number;
  /** Time for each; 0: as long as it takes. */
  readonly sendMs: number;
  /** The receipt of a message. */
  acked(channel: ChannelRef, ack: Sent): void;
}

interface Entry {
  readonly id: string;
  readonly draft: Draft;
  readonly answer: Deferred<Sent>;
  timer: ReturnType<typeof setTimeout> | undefined;
}

/** Messages under way at a time, over all channels: well below what a server takes. */
const MAX_UNDER_WAY = 256;
const RETRY_MS = 1000;

export class Outbox {
  readonly #parts: OutboxParts;
  readonly #lanes = new Map<ChannelKey, Entry[]>();
  /** All entries, by channel and clientMsgNo. */
  readonly #entries = new Map<string, Entry>();
  /** Lanes whose first message may leave. */
  readonly #ready = new Set<ChannelKey>();
  /** Lanes whose first message is under way. */
  readonly #sending = new Set<ChannelKey>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  /** Nothing leaves until then: the server asked for it. */
  #pause: ReturnType<typeof setTimeout> | undefined;

  constructor(parts: OutboxParts) {
    this.#parts = parts;
  }

  /** Rejects with `queue_full`, `timeout`, what the server refuses, what the client was closed with. */
  async send(draft: Draft): Promise<Sent> {
    const { maxQueued, sendMs } = this.#parts;
    if (this.#closed !== undefined) throw this.#closed;
    const id = this.#idOf(draft.channel, draft.clientMsgNo);
    const same = this.#entries.get(id);
    if (same !== undefined) return same.answer.promise;
    if (this.#entries.size >= maxQueued) throw new JindouError("queue_full");
    const answer = deferred<Sent>();
    const entry: Entry = { id, draft, answer, timer: undefined };
    if (sendMs > 0)
      entry.timer = setTimeout(
        () => this.#reject(entry, new JindouError("timeout")),
        sendMs,
      );
    this.#entries.set(id, entry);
    this.#enqueue(entry);
    this.#leave();
    return answer.promise;
  }

  /** It waits here for its receipt. */
  has(channel: ChannelRef, clientMsgNo: string): boolean {
    return this.#entries.has(this.#idOf(channel, clientMsgNo));
  }

  isSending(channel: ChannelRef): boolean {
    return this.#sending.has(channelKey(channel, this.#parts.uid));
  }

  opened(connection: Connection): void {
    this.#connection = connection;
    for (const key of this.#lanes.keys()) this.#ready.add(key);
    this.#leave();
  }

  lost(): void {
    this.#connection = undefined;
    this.#sending.clear();
    clearTimeout(this.#pause);
    this.#pause = undefined;
  }

  close(error: JindouError): void {
    this.lost();
    this.#closed = error;
    for (const entry of this.#entries.values()) this.#reject(entry, error);
  }

  #enqueue(entry: Entry): void {
    const key = channelKey(entry.draft.channel, this.#parts.uid);
    const lane = this.#lanes.get(key);
    if (lane !== undefined) lane.push(entry);
    else {
      this.#lanes.set(key, [entry]);
      this.#ready.add(key);
    }
  }

  /** Sends what may leave. */
  #leave(): void {
    for (const key of this.#ready) {
      const isFull = this.#sending.size >= MAX_UNDER_WAY;
      if (this.#connection === undefined || this.#pause !== undefined || isFull)
        return;
      this.#ready.delete(key);
      const entry = this.#lanes.get(key)?.[0];
      if (entry === undefined || this.#sending.has(key)) continue;
      this.#sending.add(key);
      void this.#transmit(key, entry, this.#connection);
    }
  }

  async #transmit(
    key: ChannelKey,
    entry: Entry,
    connection: Connection,
  ): Promise<void> {
    const { draft } = entry;
    let waitMs = 0;
    try {
      await connection.request(draft, (ack) => {
        this.#remove(entry);
        this.#parts.acked(draft.channel, ack);
        const { messageId, messageSeq, clientMsgNo } = ack;
        entry.answer.resolve({ messageId, messageSeq, clientMsgNo });
      });
    } catch (error) {
      const refusal = asJindouError(error, "connection_lost");
      if (connection !== this.#connection) return; // the next connection repeats it
      if (refusal.code === "timeout") return connection.fail(refusal);
      if (!refusal.retry) this.#reject(entry, refusal);
      else waitMs = refusal.retryAfterMs || RETRY_MS;
      if (refusal.code === "rate_limited") this.#hold(waitMs);
    }
    if (waitMs === 0) this.#free(key, connection);
    else setTimeout(() => this.#free(key, connection), waitMs);
  }

  /** The lane may go on, if the connection is still the same. */
  #free(key: ChannelKey, connection: Connection): void {
    if (connection !== this.#connection) return;
    this.#sending.delete(key);
    if (this.#lanes.has(key)) this.#ready.add(key);
    this.#leave();
  }

  #hold(ms: number): void {
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => {
      this.#pause = undefined;
      this.#leave();
    }, ms);
  }

  #reject(entry: Entry, error: JindouError): void {
    this.#remove(entry);
    entry.answer.reject(error);
  }

  #remove(entry: Entry): void {
    clearTimeout(entry.timer);
    if (this.#entries.get(entry.id) === entry) this.#entries.delete(entry.id);
    const key = channelKey(entry.draft.channel, this.#parts.uid);
    const left = (this.#lanes.get(key) ?? []).filter((one) => one !== entry);
    if (left.length > 0) this.#lanes.set(key, left);
    else this.#lanes.delete(key);
  }

  #idOf(channel: ChannelRef, clientMsgNo: string): string {
    return messageKey(this.#parts.uid, channel, clientMsgNo);
  }
}
