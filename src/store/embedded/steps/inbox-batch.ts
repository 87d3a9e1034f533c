// Collects the changes that one transaction makes to the command inboxes, and then writes them
// together. Only one batch may exist at a time, because nothing else may change the tables
// while a batch is open.

import type { TimeSlice } from "../../../lib/time-slice.ts";
import type { Tables } from "../engine/tables.ts";
import {
  Arena,
  commandOf,
  copiesValue,
  copyKey,
  copyValue,
  countCopies,
  expiryOf,
  inboxKey,
  leftValue,
  MAX_INBOX_SEQ,
  readLeft,
  readState,
  seqOfCopy,
  stateValue,
} from "./inbox-rows.ts";

type InboxTable = "inbox" | "inboxes" | "commands" | "commandCopies" | "commandLeft";

interface Write {
  readonly table: InboxTable;
  readonly key: Buffer;
  /** `undefined` means that the row is removed. */
  readonly value: Buffer | undefined;
}

const FEW_WRITES = 500;

interface NewCommand {
  readonly key: Buffer;
  readonly copies: number;
}

interface OpenInbox {
  readonly key: Buffer;
  /** Last seq before the batch. */
  readonly before: number;
  last: number;
  count: number;
  /** Commands of the added copies, whose seqs follow `before` in this order. */
  readonly added: NewCommand[];
  /** Seq up to which this batch dropped all copies because the inbox was full. */
  droppedThrough: number;
  readonly removed: Set<number>;
}

interface RemainingCopies {
  readonly command: Buffer;
  /** True if the table `commandLeft` may have a row of the command. */
  readonly hasRow: boolean;
  count: number;
}

export class InboxBatch {
  readonly #tables: Pick<Tables, InboxTable>;
  readonly #maxInbox: number;
  readonly #arena = new Arena();
  readonly #inboxes = new Map<string, OpenInbox>();
  readonly #remaining = new Map<string, RemainingCopies>();
  readonly #writes: Write[] = [];
  #dropped = 0;

  constructor(tables: Pick<Tables, InboxTable>, maxInbox: number) {
    this.#tables = tables;
    this.#maxInbox = maxInbox;
  }

  get dropped(): number {
    return this.#dropped;
  }

  /** Drops the oldest copies if the inbox is full. */
  add(uid: string, command: NewCommand): Buffer {
    const inbox = this.#open(uid);
    const key = copyKey(inbox.key, ++inbox.last, this.#arena);
    const value = copyValue(command.key, this.#arena);
    this.#writes.push({ table: "inbox", key, value });
    inbox.added.push(command);
    inbox.count++;
    while (inbox.count > this.#maxInbox) {
      this.#removeOldest(inbox);
      this.#dropped++;
    }
    return key;
  }

  /** Returns the expiry time of the copy's command, `undefined` if nothing was removed. */
  remove(uid: string, seq: number): number | undefined {
    if (!Number.isInteger(seq) || seq < 1 || seq > MAX_INBOX_SEQ) return undefined;
    const inbox = this.#open(uid);
    if (seq <= inbox.droppedThrough || inbox.removed.has(seq)) return undefined;
    const key = copyKey(inbox.key, seq);
    const value = this.#tables.inbox.get(key);
    if (value === undefined) return undefined;
    inbox.removed.add(seq);
    const command = commandOf(value);
    this.#removeCopy(inbox, key, this.#remainingOf(command));
    return expiryOf(command);
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

  /** Must be called once, after all changes and before `write`. */
  async seal(slice: TimeSlice): Promise<void> {
    for (const inbox of this.#inboxes.values()) {
      if (slice.shouldYield()) await slice.yield();
      const value = stateValue(inbox, this.#arena);
      this.#writes.push({ table: "inboxes", key: inbox.key, value });
    }
    for (const remaining of this.#remaining.values()) {
      if (slice.shouldYield()) await slice.yield();
      this.#putRemaining(remaining);
    }
    if (this.#writes.length > FEW_WRITES) await slice.yield();
  }

  /** Must be called inside `commit`. */
  write(): void {
    for (const { table, key, value } of this.#writes)
      if (value === undefined) void this.#tables[table].remove(key);
      else void this.#tables[table].put(key, value);
  }

  #open(uid: string): OpenInbox {
    const openInbox = this.#inboxes.get(uid);
    if (openInbox !== undefined) return openInbox;
    const key = inboxKey(uid, this.#arena);
    const { last, count } = readState(this.#tables.inboxes.getBinaryFast(key));
    const removed = new Set<number>();
    const before = last;
    const added: NewCommand[] = [];
    // A spread would be slow here.
    const inbox = { key, before, last, count, added, droppedThrough: 0, removed };
    this.#inboxes.set(uid, inbox);
    return inbox;
  }

  #removeCopy(inbox: OpenInbox, key: Buffer, remaining: RemainingCopies | undefined): void {
    this.#writes.push({ table: "inbox", key, value: undefined });
    inbox.count--;
    if (remaining !== undefined && remaining.count > 0) remaining.count--;
  }

  /** The inbox must not be empty. Its oldest copy may have been added by this batch. */
  #removeOldest(inbox: OpenInbox): void {
    const { key, before, added } = inbox;
    const start = copyKey(key, inbox.droppedThrough + 1);
    const end = copyKey(key, before + 1);
    for (const row of this.#tables.inbox.getRange({ start, end })) {
      const seq = seqOfCopy(row.key);
      if (inbox.removed.has(seq)) continue;
      inbox.droppedThrough = seq;
      const remaining = this.#remainingOf(commandOf(row.value));
      this.#removeCopy(inbox, row.key, remaining);
      return;
    }
    const seq = Math.max(before, inbox.droppedThrough) + 1;
    inbox.droppedThrough = seq;
    const command = added[seq - before - 1];
    const remaining = command && this.#remainingOf(command.key, command.copies);
    this.#removeCopy(inbox, copyKey(key, seq), remaining);
  }

  /** `copies` is the number of copies if this batch adds the command. */
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

function mapKeyOf(command: Buffer): string {
  return command.toString("latin1");
}
