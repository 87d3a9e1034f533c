// What one transaction does to the command inboxes: decided and encoded little by little, then
// written at once. Owns the inboxes it touches as they will be. Only one batch exists at a time: it
// relies on the tables not changing under it.

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
  /** Undefined: remove. */
  readonly value: Buffer | undefined;
}

/** Writes that are not worth a turn of the event loop of their own. */
const FEW_WRITES = 500;

/** A command that the batch puts into inboxes. */
interface NewCommand {
  readonly key: Buffer;
  /** How many get it. */
  readonly copies: number;
}

/** An inbox the batch touches. */
interface OpenInbox {
  readonly key: Buffer;
  /** The last seq before the batch. */
  readonly before: number;
  last: number;
  count: number;
  /** Commands of the copies that this batch adds, by the order of seqs behind `before`. */
  readonly added: NewCommand[];
  /** Everything through it was dropped by this batch. */
  droppedThrough: number;
  /** Other seqs that this batch takes out. */
  readonly taken: Set<number>;
}

/** How many inboxes hold a command of which the batch takes copies out. */
interface Left {
  readonly command: Buffer;
  /** There is a row that says how many. */
  readonly isKept: boolean;
  count: number;
}

export class InboxBatch {
  readonly #tables: Pick<Tables, InboxTable>;
  readonly #maxInbox: number;
  readonly #arena = new Arena();
  readonly #inboxes = new Map<string, OpenInbox>();
  /** By the commands' keys. */
  readonly #left = new Map<string, Left>();
  readonly #writes: Write[] = [];
  #dropped = 0;

  constructor(tables: Pick<Tables, InboxTable>, maxInbox: number) {
    this.#tables = tables;
    this.#maxInbox = maxInbox;
  }

  /** Copies that left because their inbox was full. */
  get dropped(): number {
    return this.#dropped;
  }

  /** Puts a copy of the command into the inbox; returns the copy's key. */
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

  /**
   * Takes a copy out that was there before the batch; returns when it expires, undefined when there
   * is no such copy.
   */
  take(uid: string, seq: number): number | undefined {
    if (!Number.isInteger(seq) || seq < 1 || seq > MAX_INBOX_SEQ) return undefined;
    const inbox = this.#open(uid);
    if (seq <= inbox.droppedThrough || inbox.taken.has(seq)) return undefined;
    const key = copyKey(inbox.key, seq);
    const value = this.#tables.inbox.get(key);
    if (value === undefined) return undefined;
    inbox.taken.add(seq);
    const command = commandOf(value);
    this.#removeCopy(inbox, key, this.#leftOf(command));
    return expiryOf(command);
  }

  /** Keeps a command itself, once, with the keys of its copies. */
  putCommand(
    command: Buffer,
    { record, copies }: { record: Buffer; copies: readonly Buffer[] },
  ): void {
    const list = copiesValue(copies);
    this.#writes.push({ table: "commands", key: command, value: record });
    this.#writes.push({ table: "commandCopies", key: command, value: list });
  }

  /** Whether or not all of its copies are taken. */
  removeCommand(command: Buffer): void {
    this.#left.set(nameOf(command), { command, isKept: true, count: 0 });
  }

  /** To be called once, when nothing more is decided and before `write`. */
  async seal(slice: TimeSlice): Promise<void> {
    for (const inbox of this.#inboxes.values()) {
      if (slice.isUsedUp()) await slice.rest();
      const value = stateValue(inbox, this.#arena);
      this.#writes.push({ table: "inboxes", key: inbox.key, value });
    }
    for (const left of this.#left.values()) {
      if (slice.isUsedUp()) await slice.rest();
      this.#keepLeft(left);
    }
    if (this.#writes.length > FEW_WRITES) await slice.rest();
  }

  /** To be called inside `transact`. */
  write(): void {
    for (const { table, key, value } of this.#writes)
      if (value === undefined) void this.#tables[table].remove(key);
      else void this.#tables[table].put(key, value);
  }

  #open(uid: string): OpenInbox {
    const known = this.#inboxes.get(uid);
    if (known !== undefined) return known;
    const key = inboxKey(uid, this.#arena);
    const { last, count } = readState(this.#tables.inboxes.getBinaryFast(key));
    const taken = new Set<number>();
    const before = last;
    const added: NewCommand[] = [];
    const inbox = { key, before, last, count, added, droppedThrough: 0, taken }; // no spread: it costs much
    this.#inboxes.set(uid, inbox);
    return inbox;
  }

  #removeCopy(inbox: OpenInbox, key: Buffer, left: Left | undefined): void {
    this.#writes.push({ table: "inbox", key, value: undefined });
    inbox.count--;
    if (left !== undefined && left.count > 0) left.count--;
  }

  /** Removes the oldest copy left, of those before the batch or of its own; there is one. */
  #removeOldest(inbox: OpenInbox): void {
    const { key, before, added } = inbox;
    const start = copyKey(key, inbox.droppedThrough + 1);
    const end = copyKey(key, before + 1);
    for (const found of this.#tables.inbox.getRange({ start, end })) {
      const seq = seqOfCopy(found.key);
      if (inbox.taken.has(seq)) continue;
      inbox.droppedThrough = seq;
      const left = this.#leftOf(commandOf(found.value));
      this.#removeCopy(inbox, found.key, left);
      return;
    }
    const seq = Math.max(before, inbox.droppedThrough) + 1;
    inbox.droppedThrough = seq;
    const command = added[seq - before - 1];
    const left = command && this.#leftOf(command.key, command.copies);
    this.#removeCopy(inbox, copyKey(key, seq), left);
  }

  /** `copies`: of a command of this batch. Undefined: nothing is kept of that command any more. */
  #leftOf(command: Buffer, copies?: number): Left | undefined {
    const name = nameOf(command);
    const known = this.#left.get(name);
    if (known !== undefined) return known;
    const { commandLeft, commandCopies } = this.#tables;
    const row = copies === undefined ? commandLeft.getBinaryFast(command) : undefined;
    const count =
      row === undefined
        ? (copies ?? countCopies(commandCopies.getBinaryFast(command)))
        : readLeft(row);
    if (count === 0) return undefined;
    const isKept = row !== undefined;
    const left = { command: Buffer.from(command), isKept, count };
    this.#left.set(name, left);
    return left;
  }

  /** A command leaves with its last copy. */
  #keepLeft({ command: key, isKept, count }: Left): void {
    const value = count > 0 ? leftValue(count) : undefined;
    if (value !== undefined || isKept) this.#writes.push({ table: "commandLeft", key, value });
    if (value !== undefined) return;
    this.#writes.push({ table: "commands", key, value });
    this.#writes.push({ table: "commandCopies", key, value });
  }
}

function nameOf(command: Buffer): string {
  return command.toString("latin1");
}
