// Messages that wait for their SENDACK. Owns one queue per channel, in the order of the `send`
// calls. At most one message per channel is in flight, so that neither a refusal nor a lost
// connection can reorder the messages.

import { type ChannelKey, type ChannelRef, channelKey, messageTimeMs } from "../broker/model.ts";
import { type Deferred, deferred } from "../lib/deferred.ts";
import type { Sent } from "./api.ts";
import type { Connection, ConnectionEnd, Request } from "./connection.ts";
import { asJindouError, hasCode, JindouError } from "./errors.ts";
import { messageKey } from "./messages.ts";
import { now, Timer, timeLimit } from "./waiting.ts";

type Draft = Request<"send">;

interface OutboxPorts {
  readonly uid: string;
  readonly maxQueued: number;
  readonly sendMs: number;
  acked(draft: Draft, ack: Sent): void;
}

interface QueuedMessage {
  readonly id: string;
  readonly key: ChannelKey;
  readonly draft: Draft;
  readonly answer: Deferred<Sent>;
  readonly sent: Promise<Sent>;
  stopTimeout?: () => void;
  /**
   * Time at which the message was sent on the current connection, or 0 if it has not been sent on
   * that connection.
   */
  sentAt: number;
}

/**
 * Maximum number of messages in flight across all channels. Lower than the default of the server
 * setting `client.maxInFlightSends`.
 */
const MAX_IN_FLIGHT = 256;
const RETRY_MS = 1000;
/**
 * Close codes after which an unacknowledged message is suspect if it was sent at most `SUSPECT_MS`
 * before the close. The server or a proxy may have closed the connection because of the message's
 * frame.
 */
const SUSPECT_CODES: readonly number[] = [1002, 1006, 1007, 1009];
const SUSPECT_MS = 2000;

export class Outbox {
  readonly #ports: OutboxPorts;
  readonly #queues = new Map<ChannelKey, QueuedMessage[]>();
  readonly #entries = new Map<string, QueuedMessage>();
  readonly #ready = new Set<ChannelKey>();
  readonly #sending = new Set<ChannelKey>();
  /**
   * Suspect messages. Each suspect message is sent again alone, on a connection that has just
   * answered a ping.
   */
  readonly #suspects = new Set<QueuedMessage>();
  #connection: Connection | undefined;
  #closed: JindouError | undefined;
  /** Timer that a `rate_limited` refusal starts. Nothing is sent while the timer runs. */
  readonly #rateLimit = new Timer(() => this.#sendReady());

  constructor(ports: OutboxPorts) {
    this.#ports = ports;
  }

  /** Queues a message. Resolves when it is acknowledged. Throws if it cannot be queued. */
  send(draft: Draft): Promise<Sent> {
    const { uid, maxQueued, sendMs } = this.#ports;
    if (this.#closed !== undefined) throw this.#closed;
    const id = messageKey(uid, draft.channel, draft.clientMsgNo);
    const duplicate = this.#entries.get(id);
    if (duplicate?.draft.payload.join() === draft.payload.join()) return duplicate.sent;
    if (duplicate !== undefined) throw new JindouError("client_msg_no_reused");
    if (this.#entries.size >= maxQueued) throw new JindouError("queue_full");
    const key = channelKey(draft.channel, uid);
    const answer = deferred<Sent>();
    // a separate promise, so that a rejection that the app does not handle is reported as unhandled
    const sent = answer.promise.then((ack) => ack);
    const queued: QueuedMessage = { id, key, draft, answer, sent, sentAt: 0 };
    if (sendMs > 0)
      queued.stopTimeout = timeLimit(sendMs, () =>
        this.#reject(queued, new JindouError("timeout")),
      );
    this.#entries.set(id, queued);
    const queue = this.#queues.get(key);
    if (queue !== undefined) queue.push(queued);
    else {
      this.#queues.set(key, [queued]);
      this.#ready.add(key);
    }
    this.#sendReady();
    return sent;
  }

  has(channel: ChannelRef, clientMsgNo: string): boolean {
    return this.#entries.has(messageKey(this.#ports.uid, channel, clientMsgNo));
  }

  isSending(channel: ChannelRef): boolean {
    return this.#sending.has(channelKey(channel, this.#ports.uid));
  }

  opened(connection: Connection): void {
    this.#connection = connection;
    for (const key of this.#queues.keys()) this.#ready.add(key);
    this.#sendReady();
  }

  lost({ code, error }: Pick<ConnectionEnd, "code" | "error">): void {
    this.#connection = undefined;
    const { navigator } = globalThis as { readonly navigator?: { readonly onLine?: boolean } };
    const isSuspect =
      error === undefined && SUSPECT_CODES.includes(code) && navigator?.onLine !== false;
    for (const key of this.#sending) {
      const queued = this.#queues.get(key)?.[0];
      if (queued === undefined) continue;
      const isRecent = queued.sentAt > 0 && now() - queued.sentAt <= SUSPECT_MS;
      queued.sentAt = 0;
      if (!isSuspect || !isRecent) continue;
      if (this.#suspects.has(queued)) this.#reject(queued, new JindouError("not_delivered"));
      else this.#suspects.add(queued);
    }
    this.#sending.clear();
    this.#rateLimit.stop();
  }

  close(error: JindouError): void {
    this.lost({ code: 0, error });
    this.#closed = error;
    for (const queued of this.#entries.values()) {
      // the rejection must not end a Node.js process if the app does not await the message
      queued.sent.catch(() => undefined);
      this.#reject(queued, error);
    }
  }

  #sendReady(): void {
    const [suspect] = this.#suspects;
    if (suspect !== undefined) return void this.#sendAlone(suspect);
    for (const key of this.#ready) {
      const isFull = this.#sending.size >= MAX_IN_FLIGHT;
      if (this.#connection === undefined || this.#rateLimit.isRunning || isFull) return;
      this.#ready.delete(key);
      const queued = this.#queues.get(key)?.[0];
      if (queued === undefined || this.#sending.has(key)) continue;
      this.#sending.add(key);
      void this.#transmit(queued, this.#connection);
    }
  }

  async #sendAlone(queued: QueuedMessage): Promise<void> {
    const connection = this.#connection;
    if (connection === undefined || this.#rateLimit.isRunning || this.#sending.size > 0) return;
    this.#sending.add(queued.key);
    try {
      await connection.request({ kind: "ping" });
    } catch (error) {
      // a refusal also shows that the connection works
      if (hasCode(error, "timeout")) connection.fail(error);
    }
    if (connection !== this.#connection) return;
    if (this.#suspects.has(queued)) await this.#transmit(queued, connection);
    else this.#release(queued.key, connection); // the message was rejected during the ping
  }

  async #transmit(queued: QueuedMessage, connection: Connection): Promise<void> {
    const { key, draft, answer } = queued;
    let waitMs = 0;
    queued.sentAt = now();
    try {
      await connection.request(draft, (ack) => {
        this.#remove(queued);
        const { messageId, messageSeq, clientMsgNo } = ack;
        const sent = { messageId, messageSeq, clientMsgNo, timestampMs: messageTimeMs(messageId) };
        answer.resolve(sent);
        this.#ports.acked(draft, sent);
      });
    } catch (error) {
      const refusal = asJindouError(error, "connection_lost");
      if (connection !== this.#connection) return; // the next connection sends the message again
      if (refusal.code === "timeout") return connection.fail(refusal);
      this.#suspects.delete(queued); // the server has answered
      if (!refusal.retry) this.#reject(queued, refusal);
      else waitMs = refusal.retryAfterMs || RETRY_MS;
      if (refusal.code === "rate_limited") this.#rateLimit.start(waitMs);
    }
    if (waitMs === 0) this.#release(key, connection);
    else setTimeout(() => this.#release(key, connection), waitMs);
  }

  #release(key: ChannelKey, connection: Connection): void {
    if (connection !== this.#connection) return;
    this.#sending.delete(key);
    if (this.#queues.has(key)) this.#ready.add(key);
    this.#sendReady();
  }

  #reject(queued: QueuedMessage, error: JindouError): void {
    this.#remove(queued);
    queued.answer.reject(error);
  }

  #remove(queued: QueuedMessage): void {
    const { id, key, stopTimeout } = queued;
    stopTimeout?.();
    this.#suspects.delete(queued);
    if (this.#entries.get(id) === queued) this.#entries.delete(id);
    const remaining = (this.#queues.get(key) ?? []).filter((message) => message !== queued);
    if (remaining.length > 0) this.#queues.set(key, remaining);
    else this.#queues.delete(key);
  }
}
