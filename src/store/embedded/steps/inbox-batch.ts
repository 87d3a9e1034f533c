// Collects the changes that one transaction makes to the command inboxes, and then writes them
// together. Only one batch may exist at a time, because nothing else may change the tables
// while a batch is open.

import type { BoundedMap } from "../../../lib/bounded-map.ts";
import type { TimeSlice } from "../../../lib/time-slice.ts";
import { BACKEND, shareOf } from "../../command-draft.ts";
import type { Tables } from "../engine/tables.ts";
import {
  Arena,
  commandOf,
  copiesValue,
  copyKey,
  copyValue,
  countCopies,
  expiryOf,
  idOf,
  inboxKey,
  leftValue,
  MAX_INBOX_SEQ,
  readLeft,
  readState,
  senderKey,
  senderOf,
  senderOfKey,
  seqOfCopy,
  stateValue,
} from "./inbox-rows.ts";

type InboxTable =
  | "inbox"
  | "inboxes"
  | "inboxSenders"
  | "commands"
  | "commandCopies"
  | "commandLeft";

interface Write {
  readonly table: InboxTable;
  readonly key: Buffer;
  /** `undefined` means that the row is removed. */
  readonly value: Buffer | undefined;
}

const FEW_WRITES = 500;
/** Maximum number of copies that one check of an inbox reads (see `#removeExpired`). */
const MAX_CHECKED_COPIES = 1000;
/** Minimum time between two checks of the same inbox. */
const CHECK_INTERVAL_MS = 1000;

interface NewCommand {
  readonly key: Buffer;
  copies: number;
  readonly sender: string;
}

interface SenderCopies {
  count: number;
  readonly before: number;
  /** Lower bound on the seqs of the sender's copies. */
  oldestFrom: number;
}

interface OpenInbox {
  readonly uid: string;
  readonly key: Buffer;
  /** Last seq before the batch. */
  readonly before: number;
  last: number;
  count: number;
  /**
   * Commands of the added copies, in the order of their seqs. The first copy has the seq after
   * `before`.
   */
  readonly added: NewCommand[];
  readonly removed: Set<number>;
  /** Senders read so far. The count in the `BACKEND` entry is not used. */
  readonly senders: Map<string, SenderCopies>;
  hasAllSenders: boolean;
}

/** A removed copy whose command had expired. */
export interface ExpiredCopy {
  readonly uid: string;
  readonly messageId: number;
}

/** Settings and shared state of the batches of one store. */
interface InboxBatchContext {
  readonly maxInbox: number;
  readonly nowMs: number;
  /**
   * Time before which no copy in a user's inbox needs to be checked for expiry, by uid. An
   * inbox without an entry must be checked.
   */
  readonly checkTimes: BoundedMap<string, number>;
}

interface RemainingCopies {
  readonly command: Buffer;
  /** True if the table `commandLeft` may have a row for the command. */
  readonly hasRow: boolean;
  count: number;
}

export class InboxBatch {
  readonly #tables: Pick<Tables, InboxTable>;
  readonly #share: number;
  readonly #arena = new Arena();
  readonly #inboxes = new Map<string, OpenInbox>();
  readonly #remaining = new Map<string, RemainingCopies>();
  readonly #writes: Write[] = [];
  /** Changes to `checkTimes` that take effect when the batch is written. */
  readonly #newCheckTimes = new Map<string, number>();
  readonly #expired: ExpiredCopy[] = [];
  readonly #context: InboxBatchContext;
  #dropped = 0;

  constructor(tables: Pick<Tables, InboxTable>, context: InboxBatchContext) {
    this.#tables = tables;
    this.#context = context;
    this.#share = shareOf(context.maxInbox);
  }

  /** Expired copies that were removed because another copy needed their room. */
  get expired(): readonly ExpiredCopy[] {
    return this.#expired;
  }

  get dropped(): number {
    return this.#dropped;
  }

  /**
   * Returns true if a copy from the sender can be added to the inbox. Always returns true for a
   * backend. Returns false for a user whose share of the inbox is used up, and for every user if
   * the inbox is full and contains only copies from backends.
   */
  hasRoom(uid: string, sender: string): boolean {
    if (sender === BACKEND) return true;
    const inbox = this.#open(uid);
    if (this.#hasShare(inbox, sender)) return false;
    if (this.#isFull(inbox)) return this.#userCopies(inbox) > 0;
    return true;
  }

  /**
   * Adds a copy. If the sender's share is used up, the sender's oldest copy is dropped. If the
   * inbox is full, the oldest copy of the sender with the most copies is dropped. If only copies
   * from backends could be dropped, a user's copy is not added and the method returns `undefined`.
   */
  add(uid: string, command: NewCommand): Buffer | undefined {
    const inbox = this.#open(uid);
    const { sender } = command;
    if (this.#hasShare(inbox, sender)) this.#dropOldest(inbox, sender);
    while (this.#isFull(inbox)) {
      const victim = this.#victim(inbox, sender);
      if (victim === undefined) return undefined;
      this.#dropOldest(inbox, victim);
    }
    const key = copyKey(inbox.key, ++inbox.last, this.#arena);
    const value = copyValue(command.key, sender, this.#arena);
    this.#writes.push({ table: "inbox", key, value });
    inbox.added.push(command);
    inbox.count++;
    this.#noteExpiry(uid, expiryOf(command.key));
    this.#copiesOf(inbox, sender).count++;
    return key;
  }

  /**
   * Removes a copy. Returns the key of the copy's command, or `undefined` if nothing was removed.
   */
  remove(uid: string, seq: number): Buffer | undefined {
    if (!Number.isInteger(seq) || seq < 1 || seq > MAX_INBOX_SEQ) return undefined;
    const inbox = this.#open(uid);
    if (inbox.removed.has(seq)) return undefined;
    const key = copyKey(inbox.key, seq);
    const value = this.#tables.inbox.get(key);
    if (value === undefined) return undefined;
    const command = commandOf(value);
    this.#removeCopy(inbox, seq, senderOf(value), this.#remainingOf(command));
    return command;
  }

  putCommand(
    command: Buffer,
    { record, copies }: { record: Buffer; copies: readonly Buffer[] },
  ): void {
    const list = copiesValue(copies);
    this.#writes.push({ table: "commands", key: command, value: record });
    this.#writes.push({ table: "commandCopies", key: command, value: list });
  }

  /** Removes the command even if some of its copies remain. */
  removeCommand(command: Buffer): void {
    this.#remaining.set(mapKeyOf(command), { command, hasRow: true, count: 0 });
  }

  /** Collects the writes of the batch. Must be called once, between the changes and `write`. */
  async seal(slice: TimeSlice): Promise<void> {
    for (const inbox of this.#inboxes.values()) {
      if (slice.shouldYield()) await slice.yield();
      const value = stateValue(inbox, this.#arena);
      this.#writes.push({ table: "inboxes", key: inbox.key, value });
      this.#putSenders(inbox);
    }
    for (const remaining of this.#remaining.values()) {
      if (slice.shouldYield()) await slice.yield();
      this.#putRemaining(remaining);
    }
    if (this.#writes.length > FEW_WRITES) await slice.yield();
  }

  /** Issues the writes of the batch. Must be called inside `commit`. */
  write(): void {
    for (const { table, key, value } of this.#writes)
      if (value === undefined) void this.#tables[table].remove(key);
      else void this.#tables[table].put(key, value);
    for (const [uid, timeMs] of this.#newCheckTimes) this.#context.checkTimes.set(uid, timeMs);
  }

  #open(uid: string): OpenInbox {
    const openInbox = this.#inboxes.get(uid);
    if (openInbox !== undefined) return openInbox;
    const key = inboxKey(uid, this.#arena);
    const { last, count } = readState(this.#tables.inboxes.getBinaryFast(key));
    const removed = new Set<number>();
    const before = last;
    const added: NewCommand[] = [];
    // An object spread would be slow here.
    const senders = new Map<string, SenderCopies>();
    const inbox = { uid, key, before, last, count, added, removed, senders, hasAllSenders: false };
    this.#inboxes.set(uid, inbox);
    return inbox;
  }

  #hasShare(inbox: OpenInbox, sender: string): boolean {
    if (sender === BACKEND || sender === inbox.uid || inbox.count < this.#share) return false;
    const copies = this.#copiesOf(inbox, sender);
    if (copies.count < this.#share) return false;
    this.#removeExpired(inbox); // may change the count
    return copies.count >= this.#share;
  }

  #isFull(inbox: OpenInbox): boolean {
    if (inbox.count < this.#context.maxInbox) return false;
    this.#removeExpired(inbox);
    return inbox.count >= this.#context.maxInbox;
  }

  /**
   * Removes expired copies that the sweep has not removed yet. Otherwise, expired copies would use
   * up the share of their sender, and valid copies would be dropped to make room. No
   * `command.expired` event would be emitted for an expired copy that is dropped. Copies that this
   * batch has added are not checked.
   */
  #removeExpired(inbox: OpenInbox): void {
    const { uid, before, removed } = inbox;
    const { nowMs } = this.#context;
    if (this.#checkTimeOf(uid) > nowMs) return;
    const start = copyKey(inbox.key, 0);
    const end = copyKey(inbox.key, before + 1);
    const limit = MAX_CHECKED_COPIES;
    let checked = 0;
    let nextExpiryMs = Number.POSITIVE_INFINITY;
    for (const { key, value } of this.#tables.inbox.getRange({ start, end, limit })) {
      checked++;
      const seq = seqOfCopy(key);
      const expiryMs = expiryOfCopy(value);
      if (removed.has(seq)) continue;
      if (expiryMs > nowMs) nextExpiryMs = Math.min(nextExpiryMs, expiryMs);
      else {
        const command = commandOf(value);
        this.#expired.push({ uid, messageId: idOf(command) });
        this.#removeCopy(inbox, seq, senderOf(value), this.#remainingOf(command));
      }
    }
    for (const { key } of inbox.added) nextExpiryMs = Math.min(nextExpiryMs, expiryOf(key));
    this.#setCheckTime(uid, checked < limit ? nextExpiryMs : nowMs);
  }

  #checkTimeOf(uid: string): number {
    return this.#newCheckTimes.get(uid) ?? this.#context.checkTimes.get(uid) ?? 0;
  }

  #setCheckTime(uid: string, timeMs: number): void {
    const { nowMs } = this.#context;
    this.#newCheckTimes.set(uid, Math.max(timeMs, nowMs + CHECK_INTERVAL_MS));
  }

  /** Moves the next check of the inbox to the expiry time of a new copy if that time is earlier. */
  #noteExpiry(uid: string, expiryMs: number): void {
    const timeMs = this.#checkTimeOf(uid);
    const isDue = timeMs <= this.#context.nowMs;
    if (!isDue && expiryMs < timeMs) this.#setCheckTime(uid, expiryMs);
  }

  #copiesOf(inbox: OpenInbox, sender: string): SenderCopies {
    const existing = inbox.senders.get(sender);
    if (existing !== undefined) return existing;
    const isStored = sender !== BACKEND && !inbox.hasAllSenders;
    const key = isStored ? senderKey(inbox.key, sender, this.#arena) : undefined;
    const value = key && this.#tables.inboxSenders.getBinaryFast(key);
    const count = value === undefined ? 0 : readLeft(value);
    const copies = { count, before: count, oldestFrom: 1 };
    inbox.senders.set(sender, copies);
    return copies;
  }

  #readSenders(inbox: OpenInbox): void {
    if (inbox.hasAllSenders) return;
    inbox.hasAllSenders = true;
    const end = Buffer.concat([inbox.key, AFTER_SENDERS]);
    for (const { key, value } of this.#tables.inboxSenders.getRange({ start: inbox.key, end })) {
      const sender = senderOfKey(key, inbox.key);
      const count = readLeft(value);
      if (!inbox.senders.has(sender))
        inbox.senders.set(sender, { count, before: count, oldestFrom: 1 });
    }
  }

  #userCopies(inbox: OpenInbox): number {
    this.#readSenders(inbox);
    let copies = 0;
    for (const [sender, { count }] of inbox.senders) if (sender !== BACKEND) copies += count;
    return copies;
  }

  /**
   * Returns the sender with the most copies among the senders that may lose a copy to make room for
   * a copy from `by`.
   */
  #victim(inbox: OpenInbox, by: string): string | undefined {
    let most = by === BACKEND ? inbox.count - this.#userCopies(inbox) : 0;
    let victim = most > 0 ? BACKEND : undefined;
    this.#readSenders(inbox);
    for (const [sender, { count }] of inbox.senders) {
      if (sender === BACKEND || count <= most) continue;
      most = count;
      victim = sender;
    }
    return victim;
  }

  #removeCopy(
    inbox: OpenInbox,
    seq: number,
    sender: string,
    remaining: RemainingCopies | undefined,
  ): void {
    this.#copiesOf(inbox, sender).count--; // first, because it throws if a row cannot be read
    const key = copyKey(inbox.key, seq, this.#arena);
    this.#writes.push({ table: "inbox", key, value: undefined });
    inbox.removed.add(seq);
    inbox.count--;
    if (remaining !== undefined && remaining.count > 0) remaining.count--;
  }

  /**
   * Drops the sender's oldest copy. The inbox must contain such a copy, which this batch may have
   * added.
   */
  #dropOldest(inbox: OpenInbox, sender: string): void {
    const { before, added, removed } = inbox;
    const copies = this.#copiesOf(inbox, sender);
    this.#dropped++;
    const start = copyKey(inbox.key, copies.oldestFrom);
    const end = copyKey(inbox.key, before + 1);
    for (const { key, value } of this.#tables.inbox.getRange({ start, end })) {
      const seq = seqOfCopy(key);
      if (removed.has(seq) || senderOf(value) !== sender) continue;
      copies.oldestFrom = seq + 1;
      return this.#removeCopy(inbox, seq, sender, this.#remainingOf(commandOf(value)));
    }
    for (let seq = Math.max(before + 1, copies.oldestFrom); seq <= inbox.last; seq++) {
      const command = added[seq - before - 1];
      if (command === undefined || removed.has(seq) || command.sender !== sender) continue;
      copies.oldestFrom = seq + 1;
      const remaining = this.#remainingOf(command.key, command.copies);
      return this.#removeCopy(inbox, seq, sender, remaining);
    }
    throw new Error(`The inbox of ${inbox.uid} has no copy from the sender ${sender}`);
  }

  #putSenders({ key: inbox, senders }: OpenInbox): void {
    for (const [sender, { count, before }] of senders) {
      if (sender === BACKEND || count === before) continue;
      const key = senderKey(inbox, sender, this.#arena);
      const value = count > 0 ? leftValue(count) : undefined;
      this.#writes.push({ table: "inboxSenders", key, value });
    }
  }

  /**
   * Returns the remaining copies of a command. If this batch adds the command, `copies` is the
   * number of copies that it adds.
   */
  #remainingOf(command: Buffer, copies?: number): RemainingCopies | undefined {
    const name = mapKeyOf(command);
    const existing = this.#remaining.get(name);
    if (existing !== undefined) return existing;
    const { commandLeft, commandCopies } = this.#tables;
    const row = copies === undefined ? commandLeft.getBinaryFast(command) : undefined;
    const count =
      row === undefined
        ? (copies ?? countCopies(commandCopies.getBinaryFast(command)))
        : readLeft(row);
    if (count === 0) return undefined;
    const hasRow = row !== undefined;
    const remaining = { command: Buffer.from(command), hasRow, count };
    this.#remaining.set(name, remaining);
    return remaining;
  }

  #putRemaining({ command: key, hasRow, count }: RemainingCopies): void {
    const value = count > 0 ? leftValue(count) : undefined;
    if (value !== undefined || hasRow) this.#writes.push({ table: "commandLeft", key, value });
    if (value !== undefined) return;
    this.#writes.push({ table: "commands", key, value });
    this.#writes.push({ table: "commandCopies", key, value });
  }
}

/** Returns the expiry time of a copy, or infinity if the copy cannot be read. */
function expiryOfCopy(value: Buffer): number {
  try {
    return expiryOf(commandOf(value));
  } catch {
    return Number.POSITIVE_INFINITY; // the next change of this copy reports the error
  }
}

const AFTER_SENDERS = Buffer.from([0xff]);

function mapKeyOf(command: Buffer): string {
  return command.toString("latin1");
}
