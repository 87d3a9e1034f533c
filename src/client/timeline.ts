// One channel as this client sees it: gives its messages on in the order of their seq, each once, and asks history for what is missing.
// State: how far it came, its own messages ahead of that, what waits behind a gap. Must never skip a message that can still be had.

import type { ChannelRef, Message } from "../broker/model.ts";
import type { Push } from "../protocol/protocol.ts";
import type { Cursor } from "./api.ts";
import type { Ask } from "./connection.ts";
import { isLost, JindouError } from "./errors.ts";
import { sleep } from "./waiting.ts";

export type Run = Extract<Push, { readonly kind: "messages" }>;

/** Where a message is in its channel, and which one it is. */
export type Place = Pick<Message, "messageSeq" | "messageId">;

export interface TimelineParts {
  /** Repeats what fails for the moment. */
  readonly ask: Ask;
  deliver(message: Message): void;
  /** Whether this client sent it and waits for its receipt, or just had it: `send` answers, not a message. */
  isOwn(message: Message): boolean;
  /** Own messages are under way: a gap may be theirs. */
  isSending(channel: ChannelRef): boolean;
  /** Something went wrong that no call can be rejected with. */
  trouble(error: JindouError): void;
}

/** Behind a gap so many messages are kept; further ones come from history. */
const MAX_HELD = 500;
/** Own receipts kept while nothing else of the channel was seen, or nothing tells from where seqs were given out again. */
const MAX_OWN = 100;
/** A receipt may come just behind the messages that follow it, or before those it follows; then there is nothing to ask for. */
const RECEIPT_PATIENCE_MS = 100;
const PAGE_MESSAGES = 200;
/** A page that brings nothing new is asked for again after 0.5 s, 1 s, 2 s …, at the longest 32 s … */
const RETRY_MS = 500;
const MAX_DOUBLINGS = 6;
/** … and told the third time. */
const TELL_AFTER = 3;

export class Timeline {
  readonly channel: ChannelRef;
  /** Server time of the last message given on. */
  lastTimestampMs = 0;
  readonly #parts: TimelineParts;
  /** Everything through it was given on, or is known to be gone. Undefined: nothing was seen yet. */
  #cursor: number | undefined;
  /** The highest id of a message that the cursor passed; 0: not known. Ids grow with seqs, those given out again get greater ones. */
  #lastId: number;
  /** There is something through this seq. */
  #headSeen = 0;
  /** The ids of own messages that the cursor is yet to pass, by seq: ahead, or where the server lost what was there. */
  readonly #own = new Map<number, number>();
  readonly #held = new Map<number, Message>();
  /** Nothing is given on before the beginning is known. */
  #isWaiting = false;
  #isFilling = false;
  /** Counts connections: what was asked on an old one is void. */
  #epoch = 0;

  constructor(channel: ChannelRef, parts: TimelineParts, cursor?: Cursor) {
    this.channel = channel;
    this.#parts = parts;
    this.#cursor = cursor?.lastSeq;
    this.#lastId = cursor?.lastId ?? 0;
  }

  /** From where to resume; undefined: nothing is known of it. */
  get cursor(): Cursor | undefined {
    const { channel } = this;
    const lastSeq = this.#cursor ?? Math.min(...this.#own.keys()) - 1;
    const lastId = this.#lastId || Math.max(0, ...this.#own.values());
    return lastSeq < Infinity ? { channel, lastSeq, lastId } : undefined;
  }

  /** The channel had been seen before this connection. */
  get isKnown(): boolean {
    return this.#cursor !== undefined;
  }

  /** A message of the server's, live or from a run. */
  take(message: Message): void {
    const { messageSeq } = message;
    if (messageSeq === 0) return this.#parts.deliver(message); // has no place to wait for
    if (this.#isBehind(message)) return;
    this.#headSeen = Math.max(this.#headSeen, messageSeq);
    if (this.#held.size < MAX_HELD) this.#held.set(messageSeq, message);
    this.#advance();
  }

  /** All there is of the channel after `afterSeq` through `throughSeq`. */
  run({ afterSeq, throughSeq, messages }: Run): void {
    this.#cursor ??= afterSeq;
    if (afterSeq > this.#cursor) {
      for (const message of messages) this.take(message);
      return this.reach(throughSeq);
    }
    for (const message of messages) this.#give(message);
    this.#passed(throughSeq);
    this.#advance();
  }

  /** The server has messages through `headSeq`. */
  reach(headSeq: number): void {
    this.#headSeen = Math.max(this.#headSeen, headSeq);
    this.#advance();
  }

  /**
   * The receipt of an own message. Where it took the place of a lost one, others may have done so before it: it can overtake them, so they decide
   * where to go on.
   */
  acked(ack: Place): void {
    if (this.#isPassed(ack)) return;
    const { messageSeq, messageId } = ack;
    this.#own.set(messageSeq, messageId);
    const isMany = this.#own.size > MAX_OWN;
    if (isMany) this.#cursor ??= this.cursor?.lastSeq;
    const first = Math.min(...this.#own.keys());
    if (isMany || first > (this.#cursor ?? first)) this.reach(messageSeq);
  }

  /** Holds everything until `begin`, where nothing is known of the channel. */
  wait(): void {
    this.#isWaiting = this.#cursor === undefined;
  }

  /** Ends the waiting: the first message to give on is the one behind `afterSeq`; undefined: the first that came. */
  begin(afterSeq: number | undefined): void {
    this.#isWaiting = false;
    this.#cursor ??= afterSeq;
    this.#advance();
  }

  /** A new connection is open. A server that has less than was seen, or shares less of it, was set back: what it says is true. */
  resumed(headSeq: number): void {
    if (this.#cursor !== undefined)
      this.#cursor = Math.min(this.#cursor, headSeq);
  }

  /** The connection is gone: what waits comes again with the next one. */
  lost(): void {
    this.#epoch += 1;
    this.#held.clear();
    this.#headSeen = 0;
    this.#isFilling = false;
    this.#isWaiting = false;
  }

  #isPassed({ messageSeq, messageId }: Place): boolean {
    if (messageSeq > (this.#cursor ?? 0)) return false;
    return this.#lastId === 0 || messageId <= this.#lastId;
  }

  /** Whether the message was passed. Where a new one has a place that was, the server lost what was there: what it says is true. */
  #isBehind(message: Message): boolean {
    if (this.#isPassed(message)) return true;
    if (message.messageSeq <= (this.#cursor ?? 0)) {
      this.lost();
      this.#cursor = message.messageSeq - 1;
    }
    return false;
  }

  /** Gives on what is next, as far as it is there; what is missing before the rest is asked for. */
  #advance(): void {
    if (this.#isWaiting) return;
    this.#cursor ??= this.#beginning();
    if (this.#cursor === undefined) return;
    let next = this.#next();
    while (next !== undefined) {
      this.#held.delete(this.#cursor + 1);
      if (next === "own") this.#passed(this.#cursor + 1);
      else this.#give(next);
      next = this.#next();
    }
    if (this.#headSeen > this.#cursor && !this.#isFilling) void this.#fill();
  }

  /** What comes right behind the cursor. */
  #next(): Message | "own" | undefined {
    const seq = (this.#cursor ?? 0) + 1;
    return this.#held.get(seq) ?? (this.#own.has(seq) ? "own" : undefined);
  }

  /** Just before the first message that came; own receipts alone tell nothing, an earlier message may be on its way. */
  #beginning(): number | undefined {
    if (this.#headSeen === 0) return undefined;
    return (
      Math.min(...this.#held.keys(), ...this.#own.keys(), this.#headSeen) - 1
    );
  }

  #give(message: Message): void {
    if (this.#isBehind(message)) return;
    const { messageSeq, messageId } = message;
    const isOwn =
      this.#own.get(messageSeq) === messageId || this.#parts.isOwn(message);
    this.#lastId = Math.max(this.#lastId, messageId);
    this.#passed(messageSeq);
    this.lastTimestampMs = message.timestampMs;
    if (!isOwn) this.#parts.deliver(message);
  }

  /** Everything through `seq` is done with. */
  #passed(seq: number): void {
    if (seq <= (this.#cursor ?? -1)) return;
    this.#cursor = seq;
    this.#lastId = Math.max(this.#lastId, this.#own.get(seq) ?? 0);
    for (const [at, id] of this.#own)
      if (at <= seq || id <= this.#lastId) this.#own.delete(at); // or lost: ids grow
    for (const at of this.#held.keys()) if (at <= seq) this.#held.delete(at);
  }

  /** Reads what is missing, page after page, until level. No server can make it spin. */
  async #fill(): Promise<void> {
    const epoch = this.#epoch;
    this.#isFilling = true;
    if (this.#own.size > 0 || this.#parts.isSending(this.channel))
      await sleep(RECEIPT_PATIENCE_MS);
    let idle = 0;
    while (epoch === this.#epoch && this.#headSeen > (this.#cursor ?? 0)) {
      const cursor = this.#cursor ?? 0;
      await this.#fillPage(cursor);
      if (epoch !== this.#epoch) return;
      if (this.#cursor !== cursor) idle = 0;
      else await this.#idled(idle++);
    }
    if (epoch === this.#epoch) this.#isFilling = false;
  }

  /** A page that brought nothing, after `before` such. */
  async #idled(before: number): Promise<void> {
    const message = `History of ${this.channel.id} does not go on`;
    if (before + 1 === TELL_AFTER)
      this.#parts.trouble(new JindouError("internal", { message }));
    await sleep(RETRY_MS * 2 ** Math.min(before, MAX_DOUBLINGS));
  }

  async #fillPage(cursor: number): Promise<void> {
    const epoch = this.#epoch;
    const held = [...this.#held.keys()];
    const toSeq = Math.min(this.#headSeen, ...held.map((seq) => seq - 1));
    try {
      const page = await this.#parts.ask({
        kind: "history",
        channel: this.channel,
        fromSeq: cursor + 1,
        toSeq,
        limit: PAGE_MESSAGES,
        reverse: false,
      });
      if (epoch !== this.#epoch) return;
      for (const message of page.messages) this.#give(message);
      if (!page.more) this.#passed(toSeq);
    } catch (error) {
      if (epoch !== this.#epoch || isLost(error)) return;
      this.#passed(toSeq); // it is not for us
    }
    this.#advance();
  }
}
