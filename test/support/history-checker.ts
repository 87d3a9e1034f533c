// Judges a broker by what its users can know: what they sent, what was acknowledged, what history
// and pushes showed. State: every message sent, and the problems found. It never asks the broker
// anything, and never explains a problem away.

import type { ChannelKey } from "../../src/broker/model.ts";

/** A message as its sender sends it, again with every retry. */
export interface SentMessage {
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly text: string;
  readonly noPersist: boolean;
  /** Seconds; 0 = never. */
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
 * Messages in the order they were shown: all there is of the channel after `afterSeq` through
 * `throughSeq`.
 */
export interface ObservedRange {
  readonly afterSeq: number;
  readonly throughSeq: number;
  readonly messages: readonly ObservedMessage[];
  /**
   * Unix milliseconds, not before the run was read: what could have expired by then may be missing.
   */
  readonly readEndedAtMs: number;
  /**
   * Unix milliseconds, not after it was read: what had expired by then must be missing. Undefined:
   * not known.
   */
  readonly readStartedAtMs?: number;
}

/**
 * The run of one message that was pushed live: nothing stored may lie between it and the message
 * before.
 */
export function liveRange(message: ObservedMessage, atMs: number): ObservedRange {
  const { messageSeq } = message;
  const bounds = { afterSeq: messageSeq - 1, throughSeq: messageSeq };
  return { ...bounds, messages: [message], readEndedAtMs: atMs };
}

export type ProblemKind =
  /** An acknowledged message is missing. */
  | "lost"
  /**
   * A place that no acknowledgement accounts for is empty, or a run does not follow the one before.
   */
  | "gap"
  /** A message or a place came twice. */
  | "repeat"
  /** An earlier message came after a later one, or a smaller id after a greater one. */
  | "reorder"
  /** Id, seq or content differ from what was acknowledged or sent. */
  | "changed"
  /** One clientMsgNo has two places. */
  | "duplicate"
  /** Nobody sent it. */
  | "unknown"
  /** It was to be gone. */
  | "expired"
  /** It was not to be stored. */
  | "unstored";

export interface Problem {
  readonly kind: ProblemKind;
  readonly where: string;
  readonly what: string;
}

/** One who reads a channel from its start on: how far it is, and what it was shown. */
export class Reader {
  readonly name: string;
  readonly key: ChannelKey;
  /** Everything through this seq was shown, or accounted for. */
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

interface Entry {
  readonly sending: SentMessage;
  readonly sentAtMs: number;
  ack: (Acknowledgement & { readonly atMs: number }) | undefined;
}

export class HistoryChecker {
  readonly #entries = new Map<string, Entry>();
  readonly #places = new Map<ChannelKey, Map<number, Entry>>();
  readonly #unanswered = new Set<Entry>();
  readonly #problems: Problem[] = [];

  get problems(): readonly Problem[] {
    return this.#problems;
  }

  get acknowledgedCount(): number {
    return this.#entries.size - this.#unanswered.size;
  }

  /** What was sent and not acknowledged yet, oldest first: to be sent again. */
  get unacknowledged(): readonly SentMessage[] {
    return [...this.#unanswered].map(({ sending }) => sending);
  }

  /** To be called before the message leaves. Harmless for a retry. */
  recordSend(sending: SentMessage, nowMs: number): void {
    const name = nameOf(sending);
    if (this.#entries.has(name)) return;
    const entry = { sending, sentAtMs: nowMs, ack: undefined };
    this.#entries.set(name, entry);
    this.#unanswered.add(entry);
  }

  /** To be called with every acknowledgement, of retries too. */
  recordAcknowledgement(sending: SentMessage, ack: Acknowledgement, nowMs: number): void {
    const entry = this.#entries.get(nameOf(sending));
    if (entry === undefined) throw new Error("acknowledged and never sent");
    if (entry.ack !== undefined) {
      if (!isSame(entry.ack, ack)) this.#add("changed", "ack", `${show(ack)} of ${show(entry)}`);
      return;
    }
    entry.ack = { ...ack, atMs: nowMs };
    this.#unanswered.delete(entry);
    if (sending.noPersist !== (ack.messageSeq === 0))
      this.#add("changed", "ack", `seq ${ack.messageSeq} for ${show(entry)}`);
    if (!sending.noPersist) this.#takePlace(entry, ack.messageSeq);
  }

  /**
   * Judges the next run of a reader. To be called when everything sent before the run was read is
   * acknowledged.
   */
  checkRange(reader: Reader, run: ObservedRange): void {
    const where = `${reader.name} of ${reader.key}`;
    if (run.afterSeq > reader.cursor)
      this.#add("gap", where, `jumps from ${reader.cursor} to ${run.afterSeq}`);
    const stored = run.messages.filter(({ messageSeq }) => messageSeq > 0);
    for (const shown of run.messages) this.#checkShown(reader, run, shown);
    const shownSeqs = new Set(stored.map(({ messageSeq }) => messageSeq));
    const from = Math.max(run.afterSeq, reader.cursor);
    for (let seq = from + 1; seq <= run.throughSeq; seq++)
      if (!shownSeqs.has(seq)) this.#checkMissing(reader, seq, run.readEndedAtMs);
    reader.cursor = Math.max(reader.cursor, run.throughSeq);
  }

  /** Judges whether the reader, having read to the end, was shown all there is. */
  checkEnd(reader: Reader): void {
    const places = this.#places.get(reader.key);
    const end = Math.max(reader.cursor, greatest(places?.keys()));
    for (let seq = reader.cursor + 1; seq <= end; seq++)
      this.#checkMissing(reader, seq, Number.NEGATIVE_INFINITY);
  }

  #checkShown(reader: Reader, run: ObservedRange, shown: ObservedMessage): void {
    const where = `${reader.name} of ${reader.key}`;
    const { key } = reader;
    const entry = this.#entries.get(nameOf({ ...shown, key }));
    if (entry === undefined) return this.#add("unknown", where, show(shown));
    this.#checkOrder(reader, shown, entry);
    const { ack, sending } = entry;
    if (ack === undefined) throw new Error(`${show(entry)} is unanswered`);
    if (shown.messageSeq > 0 && sending.noPersist) this.#add("unstored", where, show(shown));
    else if (shown.messageSeq !== ack.messageSeq)
      this.#add("duplicate", where, `${show(shown)} is ${show(entry)}`);
    else if (!isSame(shown, ack) || shown.text !== sending.text)
      this.#add("changed", where, `${show(shown)} was ${show(entry)}`);
    if (isGone(entry, run)) this.#add("expired", where, show(shown));
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
    const entry = this.#places.get(reader.key)?.get(seq);
    if (entry === undefined) this.#add("gap", where, `nothing at ${seq}`);
    else if (!mayBeGone(entry, atMs)) this.#add("lost", where, show(entry));
  }

  #takePlace(entry: Entry, seq: number): void {
    const { key } = entry.sending;
    const places = this.#places.get(key) ?? new Map<number, Entry>();
    this.#places.set(key, places);
    const other = places.get(seq);
    if (other !== undefined) this.#add("repeat", `ack of ${key}`, `${show(other)}, ${show(entry)}`);
    places.set(seq, entry);
  }

  #add(kind: ProblemKind, where: string, what: string): void {
    this.#problems.push({ kind, where, what });
  }
}

function nameOf(message: Pick<SentMessage, "key" | "fromUid" | "clientMsgNo">): string {
  return `${message.key}\n${message.fromUid}\n${message.clientMsgNo}`;
}

function greatest(seqs: Iterable<number> = []): number {
  let found = 0;
  for (const seq of seqs) found = Math.max(found, seq);
  return found;
}

function isSame(one: Acknowledgement, other: Acknowledgement): boolean {
  return one.messageId === other.messageId && one.messageSeq === other.messageSeq;
}

/**
 * It was accepted after it was sent and before it was acknowledged: its end lies between these two
 * plus its life.
 */
function mayBeGone({ sending, sentAtMs }: Entry, atMs: number): boolean {
  return sending.expireS > 0 && atMs >= sentAtMs + sending.expireS * 1000;
}

function isGone({ sending, ack }: Entry, { readStartedAtMs = 0 }: ObservedRange): boolean {
  if (ack === undefined || sending.expireS === 0) return false;
  return readStartedAtMs >= ack.atMs + sending.expireS * 1000;
}

function show(one: Entry | ObservedMessage | Acknowledgement): string {
  if ("sending" in one) {
    const { fromUid, clientMsgNo } = one.sending;
    return `${fromUid}/${clientMsgNo} (${one.ack ? show(one.ack) : "no ack"})`;
  }
  const { messageId, messageSeq } = one;
  const name = "fromUid" in one ? `${one.fromUid}/${one.clientMsgNo} ` : "";
  return `${name}seq ${messageSeq} id ${messageId}`;
}
