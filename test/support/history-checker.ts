// Checks a broker from its users' view: compares the messages they sent and the acknowledgements
// they received with what history and pushes show. Owns the record of every message sent and the
// problems found. Never calls the broker, and never excuses a problem.

import type { ChannelKey } from "../../src/broker/model.ts";

/** A message as its sender sends it. Every retry sends the same values. */
export interface SentMessage {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly text: string;
  readonly noPersist: boolean;
  /** Seconds after which the message expires. 0 means never. */
  readonly expireS: number;
}

export interface Acknowledgement {
  readonly messageId: number;
  readonly messageSeq: number;
}

/** A message as history or a push shows it. */
export interface ObservedMessage extends Acknowledgement {
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly text: string;
}

/**
 * All messages of a channel with a seq above `afterSeq` and up to `throughSeq`, in the order in
 * which history or a push showed them.
 */
export interface ObservedRange {
  readonly afterSeq: number;
  readonly throughSeq: number;
  readonly messages: readonly ObservedMessage[];
  /**
   * Time after the end of the read, Unix milliseconds. A message that may have expired by then may
   * be missing.
   */
  readonly readEndedAtMs: number;
  /**
   * Time before the start of the read, Unix milliseconds. A message that had expired by then must
   * be missing. `undefined` if the time is unknown.
   */
  readonly readStartedAtMs?: number;
}

/**
 * Returns the range of one message that was pushed live. Its seq must directly follow the last
 * range of the reader, because live pushes skip no stored message.
 */
export function liveRange(message: ObservedMessage, readEndedAtMs: number): ObservedRange {
  const { messageSeq } = message;
  const bounds = { afterSeq: messageSeq - 1, throughSeq: messageSeq };
  return { ...bounds, messages: [message], readEndedAtMs };
}

export type ProblemKind =
  /** An acknowledged message is missing. */
  | "lost"
  /**
   * A seq has neither an acknowledgement nor a shown message, or a range does not follow the
   * previous range of its reader.
   */
  | "gap"
  /** A message was shown twice, or a seq was acknowledged twice. */
  | "repeat"
  /** A lower seq was shown after a higher seq, or a higher seq has a lower message id. */
  | "reorder"
  /** Id, seq or content differ from what was acknowledged or sent. */
  | "changed"
  /** A message was shown at a seq that differs from its acknowledged seq. */
  | "duplicate"
  /** Nobody sent the message. */
  | "unknown"
  /** The message was shown after it had expired. */
  | "expired"
  /** The message was stored although its sender set `noPersist`. */
  | "unstored";

export interface Problem {
  readonly kind: ProblemKind;
  readonly where: string;
  readonly what: string;
}

/** One reader of a channel: its position, and the messages it was shown. */
export class Reader {
  readonly name: string;
  readonly key: ChannelKey;
  /** Seq up to which all messages of the channel have been checked. */
  cursor: number;
  last: Acknowledgement = { messageId: 0, messageSeq: 0 };
  readonly seqs = new Set<number>();
  readonly unstored = new Set<Entry>();

  constructor(name: string, key: ChannelKey, cursor = 0) {
    this.name = name;
    this.key = key;
    this.cursor = cursor;
  }
}

/** A message that was sent, and its first acknowledgement. */
interface Entry {
  readonly message: SentMessage;
  readonly sentAtMs: number;
  ack: (Acknowledgement & { readonly atMs: number }) | undefined;
}

export class HistoryChecker {
  readonly #entries = new Map<string, Entry>();
  readonly #entriesBySeq = new Map<ChannelKey, Map<number, Entry>>();
  readonly #unacknowledged = new Set<Entry>();
  readonly #problems: Problem[] = [];

  get problems(): readonly Problem[] {
    return this.#problems;
  }

  get acknowledgedCount(): number {
    return this.#entries.size - this.#unacknowledged.size;
  }

  /** Messages that were sent and not yet acknowledged, oldest first. Their senders must retry. */
  get unacknowledged(): readonly SentMessage[] {
    return [...this.#unacknowledged].map(({ message }) => message);
  }

  /** Records a message. Must be called before it is sent. Has no effect for a retry. */
  recordSend(message: SentMessage, nowMs: number): void {
    const name = nameOf(message);
    if (this.#entries.has(name)) return;
    const entry = { message, sentAtMs: nowMs, ack: undefined };
    this.#entries.set(name, entry);
    this.#unacknowledged.add(entry);
  }

  /** Records an acknowledgement. Must be called for every acknowledgement, even of a retry. */
  recordAcknowledgement(message: SentMessage, ack: Acknowledgement, nowMs: number): void {
    const entry = this.#entries.get(nameOf(message));
    if (entry === undefined)
      throw new Error("a message was acknowledged that was never recorded as sent");
    if (entry.ack !== undefined) {
      if (!isSame(entry.ack, ack)) this.#add("changed", "ack", `${show(ack)} for ${show(entry)}`);
      return;
    }
    entry.ack = { ...ack, atMs: nowMs };
    this.#unacknowledged.delete(entry);
    if (message.noPersist !== (ack.messageSeq === 0))
      this.#add("changed", "ack", `seq ${ack.messageSeq} for ${show(entry)}`);
    if (!message.noPersist) this.#assignSeq(entry, ack.messageSeq);
  }

  /**
   * Checks the next range of a reader. Must be called only after every message sent before the read
   * has been acknowledged.
   */
  checkRange(reader: Reader, range: ObservedRange): void {
    const where = `${reader.name} of ${reader.key}`;
    if (range.afterSeq > reader.cursor)
      this.#add("gap", where, `jumps from seq ${reader.cursor} to ${range.afterSeq}`);
    const stored = range.messages.filter(({ messageSeq }) => messageSeq > 0);
    for (const shown of range.messages) this.#checkShown(reader, range, shown);
    const shownSeqs = new Set(stored.map(({ messageSeq }) => messageSeq));
    const from = Math.max(range.afterSeq, reader.cursor);
    for (let seq = from + 1; seq <= range.throughSeq; seq++)
      if (!shownSeqs.has(seq)) this.#checkMissing(reader, seq, range.readEndedAtMs);
    reader.cursor = Math.max(reader.cursor, range.throughSeq);
  }

  /** Checks that a reader that has read to the end of the channel was shown every message. */
  checkEnd(reader: Reader): void {
    const entriesBySeq = this.#entriesBySeq.get(reader.key);
    const end = Math.max(reader.cursor, highestSeq(entriesBySeq?.keys()));
    for (let seq = reader.cursor + 1; seq <= end; seq++)
      this.#checkMissing(reader, seq, Number.NEGATIVE_INFINITY);
  }

  #checkShown(reader: Reader, range: ObservedRange, shown: ObservedMessage): void {
    const where = `${reader.name} of ${reader.key}`;
    const { key } = reader;
    const entry = this.#entries.get(nameOf({ ...shown, key }));
    if (entry === undefined) return this.#add("unknown", where, show(shown));
    this.#checkOrder(reader, shown, entry);
    const { ack, message } = entry;
    if (ack === undefined) throw new Error(`${show(entry)} was not acknowledged before the check`);
    if (shown.messageSeq > 0 && message.noPersist) this.#add("unstored", where, show(shown));
    else if (shown.messageSeq !== ack.messageSeq)
      this.#add("duplicate", where, `${show(shown)} instead of ${show(entry)}`);
    else if (!isSame(shown, ack) || shown.text !== message.text)
      this.#add("changed", where, `${show(shown)} instead of ${show(entry)}`);
    if (isExpired(entry, range)) this.#add("expired", where, show(shown));
  }

  #checkOrder(reader: Reader, shown: ObservedMessage, entry: Entry): void {
    const where = `${reader.name} of ${reader.key}`;
    const { messageId, messageSeq } = shown;
    if (messageSeq === 0) {
      if (reader.unstored.has(entry)) this.#add("repeat", where, show(shown));
      reader.unstored.add(entry);
      return;
    }
    const { last, cursor } = reader;
    if (reader.seqs.has(messageSeq)) this.#add("repeat", where, show(shown));
    else if (messageSeq <= Math.max(cursor, last.messageSeq))
      this.#add("reorder", where, show(shown));
    else if (messageId <= last.messageId)
      this.#add("reorder", where, `${show(shown)} after ${show(last)}`);
    if (messageSeq > last.messageSeq) reader.last = shown;
    reader.seqs.add(messageSeq);
  }

  #checkMissing(reader: Reader, seq: number, atMs: number): void {
    const where = `${reader.name} of ${reader.key}`;
    const entry = this.#entriesBySeq.get(reader.key)?.get(seq);
    if (entry === undefined) this.#add("gap", where, `no message at seq ${seq}`);
    else if (!mayBeExpired(entry, atMs)) this.#add("lost", where, show(entry));
  }

  #assignSeq(entry: Entry, seq: number): void {
    const { key } = entry.message;
    const entriesBySeq = this.#entriesBySeq.get(key) ?? new Map<number, Entry>();
    this.#entriesBySeq.set(key, entriesBySeq);
    const previous = entriesBySeq.get(seq);
    if (previous !== undefined)
      this.#add("repeat", `ack of ${key}`, `${show(previous)}, ${show(entry)}`);
    entriesBySeq.set(seq, entry);
  }

  #add(kind: ProblemKind, where: string, details: string): void {
    this.#problems.push({ kind, where, what: details });
  }
}

function nameOf(message: Pick<SentMessage, "key" | "fromUid" | "clientMsgNo">): string {
  return `${message.key}\n${message.fromUid}\n${message.clientMsgNo}`;
}

function highestSeq(seqs: Iterable<number> = []): number {
  let highest = 0;
  for (const seq of seqs) highest = Math.max(highest, seq);
  return highest;
}

function isSame(ack: Acknowledgement, other: Acknowledgement): boolean {
  return ack.messageId === other.messageId && ack.messageSeq === other.messageSeq;
}

/**
 * Returns true if the message may have expired by `atMs`. The broker accepted it between the send
 * and the acknowledgement, so it may have expired as early as `expireS` seconds after the send.
 */
function mayBeExpired({ message, sentAtMs }: Entry, atMs: number): boolean {
  return message.expireS > 0 && atMs >= sentAtMs + message.expireS * 1000;
}

/** Returns true if the message had certainly expired when the read started. */
function isExpired({ message, ack }: Entry, { readStartedAtMs = 0 }: ObservedRange): boolean {
  if (ack === undefined || message.expireS === 0) return false;
  return readStartedAtMs >= ack.atMs + message.expireS * 1000;
}

function show(item: Entry | ObservedMessage | Acknowledgement): string {
  if ("message" in item) {
    const { fromUid, clientMsgNo } = item.message;
    return `${fromUid}/${clientMsgNo} (${item.ack ? show(item.ack) : "no ack"})`;
  }
  const { messageId, messageSeq } = item;
  const name = "fromUid" in item ? `${item.fromUid}/${item.clientMsgNo} ` : "";
  return `${name}seq ${messageSeq} id ${messageId}`;
}
