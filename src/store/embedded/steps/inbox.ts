// The command inboxes of the port: retries are answered, reads show what is published and has not
// expired, what changes an inbox goes through the queue. State: the count of retries.

import { BrokerError } from "../../../broker/errors.ts";
import type { InboxCommand } from "../../../broker/model.ts";
import type {
  AppendResult,
  CommandDraft,
  HistoryRange,
  InboxStore,
  MessageDraft,
} from "../../../broker/ports.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { assertFits, isTooLong } from "../../command-draft.ts";
import { decodeRecord } from "../engine/record.ts";
import { type AppendingParts, acknowledging, appending, expiring } from "./commands.ts";
import { InboxQueue, type InboxQueueParts } from "./inbox-queue.ts";
import {
  commandKey,
  commandOf,
  copyKey,
  expiryOf,
  idOf,
  inboxKey,
  MAX_INBOX_SEQ,
  readCopies,
  readState,
  seqOfCopy,
  writeSeq,
} from "./inbox-rows.ts";

/** Commands, and copies of one, that a sweep removes in one step. */
const SWEPT_COMMANDS = 50;
const SWEPT_COPIES = 1000;

type Sender = Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">;

interface InboxParts extends AppendingParts, InboxQueueParts {
  /** Undefined: nobody repeats anything. */
  readonly assigner: { firstOf(sender: Sender, nowMs: number): unknown };
  readonly appends: { earlier(sender: Sender): Promise<AppendResult | undefined> };
}

export class Inbox implements InboxStore {
  readonly #parts: InboxParts;
  readonly #queue: InboxQueue;
  /** Acknowledgements that look for their copies take turns. */
  readonly #lookups = new Turns();
  #duplicates = 0;

  constructor(parts: InboxParts) {
    this.#parts = parts;
    this.#queue = new InboxQueue(parts);
  }

  get counts() {
    return { ...this.#queue.counts, duplicates: this.#duplicates };
  }

  async appendCommand(draft: CommandDraft): Promise<AppendResult> {
    const { assigner, appends, clock, dedupe } = this.#parts;
    assertFits(draft);
    if (dedupe.isCommandTooLong(draft)) throw new BrokerError("too_large");
    // Nothing is awaited before a new command is in the queue.
    while (assigner.firstOf(draft, clock()) !== undefined) {
      const first = await appends.earlier(draft);
      if (first === undefined) continue; // it was not stored
      this.#duplicates++;
      return first;
    }
    return this.#add(draft);
  }

  #add(draft: CommandDraft): Promise<AppendResult> {
    const { dedupe } = this.#parts;
    if (this.#queue.isFull(draft.fromUid)) throw new BrokerError("overloaded");
    const { promise, step } = appending(draft, this.#parts);
    if (draft.clientMsgNo !== "")
      dedupe.expectCommand(
        draft,
        promise.catch(() => undefined), // retries try for themselves
      );
    this.#queue.add(draft.fromUid, step);
    return promise;
  }

  async readInbox(
    uid: string,
    afterSeq: number,
    { limit, maxBytes }: Pick<HistoryRange, "limit" | "maxBytes">,
  ): Promise<readonly InboxCommand[]> {
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const { tables, clock } = this.#parts;
    const nowMs = clock();
    const found: InboxCommand[] = [];
    const from = Math.max(0, Math.floor(afterSeq)) + 1;
    if (!(limit > 0) || !(from <= MAX_INBOX_SEQ)) return found;
    const inbox = inboxKey(uid);
    const start = copyKey(inbox, from);
    const end = copyKey(inbox, MAX_INBOX_SEQ);
    let bytes = 0;
    for (const { key, value } of tables.inbox.getRange({ start, end })) {
      const command = commandOf(value);
      if (expiryOf(command) <= nowMs) continue;
      if (this.#queue.isUnshown(idOf(command))) continue;
      const record = tables.commands.get(command);
      if (record === undefined) continue; // all of it is being removed
      const inboxSeq = seqOfCopy(key);
      const { message } = decodeRecord(record);
      bytes += message.payload.length;
      if (bytes > maxBytes && found.length > 0) break;
      found.push({ inboxSeq, message: { ...message, messageSeq: inboxSeq } });
      if (found.length >= limit) break;
    }
    return found;
  }

  /** No copy in the user's inbox has a greater seq; 0: it is empty. */
  newestSeq(uid: string): number {
    const { last, count } = this.#stateOf(inboxKey(uid));
    return count > 0 ? last : 0;
  }

  async acknowledgeCommands(uid: string, inboxSeqs: readonly number[]): Promise<number> {
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const there = await this.#seqsThere(uid, inboxSeqs);
    if (there.length === 0) return 0; // nothing to write
    if (this.#queue.isFull(uid)) throw new BrokerError("overloaded");
    const { promise, step } = acknowledging(uid, there, this.#parts.clock());
    this.#queue.add(uid, step);
    return promise;
  }

  /**
   * Those of the seqs that copies are under: each costs one look at most, in slices of the event
   * loop.
   */
  async #seqsThere(uid: string, inboxSeqs: readonly number[]): Promise<readonly number[]> {
    const slice = new TimeSlice(undefined, this.#lookups);
    const inbox = inboxKey(uid);
    const { last, count } = this.#stateOf(inbox);
    const found: number[] = [];
    const key = copyKey(inbox, 0);
    for (const seq of new Set(inboxSeqs)) {
      if (found.length === count) break;
      if (!Number.isInteger(seq) || seq < 1 || seq > last) continue;
      if (slice.isUsedUp()) await slice.rest();
      writeSeq(key, seq);
      if (this.#parts.tables.inbox.getBinaryFast(key) !== undefined) found.push(seq);
    }
    return found;
  }

  #stateOf(inbox: Buffer) {
    return readState(this.#parts.tables.inboxes.get(inbox));
  }

  /**
   * Removes the commands that expired, and their copies; stops early when `isClosed`. Throws
   * `unavailable`.
   */
  async sweep(nowMs: number, isClosed: () => boolean): Promise<void> {
    const { commands } = this.#parts.tables;
    const bounds = { end: commandKey(nowMs + 1), limit: SWEPT_COMMANDS };
    for (;;) {
      const keys = [...commands.getKeys(bounds)];
      await this.#expire(keys);
      if (keys.length === 0 || isClosed()) return;
    }
  }

  /** Removes the first of `commands`, and more while that is little work. */
  async #expire(commands: readonly Buffer[]): Promise<void> {
    const { commandCopies } = this.#parts.tables;
    const steps: Promise<void>[] = [];
    const add = ({ promise, step }: ReturnType<typeof expiring>) => {
      this.#queue.add("", step);
      steps.push(promise);
    };
    let size = 0;
    for (const command of commands) {
      const copies = readCopies(commandCopies.get(command));
      for (let at = 0; at < copies.length; at += SWEPT_COPIES)
        add(expiring(copies.slice(at, at + SWEPT_COPIES), undefined));
      add(expiring([], command));
      size += copies.length;
      if (size >= SWEPT_COPIES) break;
    }
    await Promise.all(steps);
  }

  /** Fails what is not being written, from now on. */
  refuse(): void {
    this.#queue.refuse();
  }

  /** Resolves when every call made before it is answered. */
  drain(): Promise<void> {
    return this.#queue.drain();
  }
}
