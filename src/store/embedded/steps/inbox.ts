// Implements the port's calls on command inboxes. A read returns only published commands that have
// not expired. All changes to inboxes go through the queue.

import { BrokerError } from "../../../broker/errors.ts";
import type { InboxCommand, Message } from "../../../broker/model.ts";
import type {
  AppendResult,
  CommandDraft,
  HistoryRange,
  InboxStore,
} from "../../../broker/ports.ts";
import { ifReadable } from "../../../lib/readable.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { assertFits, isTooLong } from "../../command-draft.ts";
import { SweepFailures } from "../../sweep-failures.ts";
import { decodeRecord } from "../engine/record.ts";
import type { RepeatableDraft } from "./assigner.ts";
import { acknowledgeStep, appendStep, type CommandPorts, expireStep } from "./commands.ts";
import { InboxQueue, type InboxQueuePorts } from "./inbox-queue.ts";
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

const MAX_SWEPT_COMMANDS = 50;
const MAX_SWEPT_COPIES = 1000;

interface InboxPorts extends CommandPorts, InboxQueuePorts {
  /** `findRepeated` returns `undefined` if the command is new. */
  readonly assigner: { findRepeated(draft: RepeatableDraft, nowMs: number): unknown };
  readonly appends: { findEarlier(draft: RepeatableDraft): Promise<AppendResult | undefined> };
  readonly onError: (error: Error, what: string) => void;
}

export class Inbox implements InboxStore {
  readonly #ports: InboxPorts;
  readonly #queue: InboxQueue;
  readonly #lookups = new Turns();
  #duplicates = 0;

  constructor(ports: InboxPorts) {
    this.#ports = ports;
    this.#queue = new InboxQueue(ports);
  }

  get counts() {
    return { ...this.#queue.counts, duplicates: this.#duplicates };
  }

  async appendCommand(draft: CommandDraft): Promise<AppendResult> {
    const { assigner, appends, clock, dedupe } = this.#ports;
    assertFits(draft);
    if (dedupe.isCommandTooLong(draft)) throw new BrokerError("too_large");
    // Nothing may be awaited between this check and `#add`. Otherwise, two calls with the same
    // clientMsgNo could both be stored.
    while (assigner.findRepeated(draft, clock()) !== undefined) {
      const result = await appends.findEarlier(draft);
      if (result === undefined) continue; // the earlier message or command failed
      if (result.duplicate) this.#duplicates++;
      return result;
    }
    return this.#add(draft);
  }

  #add(draft: CommandDraft): Promise<AppendResult> {
    const { dedupe, tables } = this.#ports;
    tables.space.assertRoom("store");
    if (this.#queue.isFull(draft.fromUid)) throw new BrokerError("overloaded");
    const { promise, step } = appendStep(draft, this.#ports);
    if (draft.clientMsgNo !== "")
      dedupe.trackCommand(
        draft,
        promise.catch(() => undefined), // a retry of a failed command is stored as a new command
      );
    this.#queue.add(draft.fromUid, step);
    return promise;
  }

  async readInbox(
    ...request: Parameters<InboxStore["readInbox"]>
  ): Promise<readonly InboxCommand[]> {
    return this.page(...request);
  }

  /** Does the same as `readInbox`, but synchronously. */
  page(
    uid: string,
    afterSeq: number,
    { limit, maxBytes }: Pick<HistoryRange, "limit" | "maxBytes">,
  ): readonly InboxCommand[] {
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const { tables, clock } = this.#ports;
    const nowMs = clock();
    const commands: InboxCommand[] = [];
    const from = Math.max(0, Math.floor(afterSeq)) + 1;
    if (!(limit > 0) || !(from <= MAX_INBOX_SEQ)) return commands;
    const inbox = inboxKey(uid);
    if (this.#isEmpty(inbox)) return commands; // cheaper than an empty range
    const start = copyKey(inbox, from);
    const end = copyKey(inbox, MAX_INBOX_SEQ);
    let bytes = 0;
    for (const { key, value } of tables.inbox.getRange({ start, end })) {
      const message = this.#messageOf(value, nowMs);
      if (message === undefined) continue;
      const inboxSeq = seqOfCopy(key);
      bytes += message.payload.length;
      if (bytes > maxBytes && commands.length > 0) break;
      commands.push({ inboxSeq, message: { ...message, messageSeq: inboxSeq } });
      if (commands.length >= limit) break;
    }
    return commands;
  }

  /** Returns false if the state of the inbox cannot be read. */
  #isEmpty(inbox: Buffer): boolean {
    try {
      return this.#stateOf(inbox).count === 0;
    } catch {
      return false; // the next change of the inbox reports the error
    }
  }

  /**
   * Returns the message of a copy's command. Returns `undefined` if the command must not be shown
   * or cannot be read. If this method threw, none of the command's recipients could join.
   */
  #messageOf(copy: Buffer, nowMs: number): Message | undefined {
    const { tables, onError } = this.#ports;
    const read = () => {
      const command = commandOf(copy);
      if (expiryOf(command) <= nowMs) return undefined;
      if (this.#queue.isUnpublished(idOf(command))) return undefined;
      const record = tables.commands.get(command); // `undefined` if the command is being removed
      return record && decodeRecord(record).message;
    };
    return ifReadable(
      read,
      "Could not read a stored command; reads of its recipients' inboxes skip it",
      onError,
    );
  }

  newestSeq(uid: string): number {
    const { last, count } = this.#stateOf(inboxKey(uid));
    return count > 0 ? last : 0;
  }

  async acknowledgeCommands(uid: string, inboxSeqs: readonly number[]): Promise<number> {
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const storedSeqs = await this.#storedSeqs(uid, inboxSeqs);
    if (storedSeqs.length === 0) return 0;
    if (this.#queue.isFull(uid)) throw new BrokerError("overloaded");
    const { promise, step } = acknowledgeStep(uid, storedSeqs, this.#ports.clock());
    this.#queue.add(uid, step);
    return promise;
  }

  async #storedSeqs(uid: string, inboxSeqs: readonly number[]): Promise<readonly number[]> {
    const slice = new TimeSlice(undefined, this.#lookups);
    const inbox = inboxKey(uid);
    const { last, count } = this.#stateOf(inbox);
    const storedSeqs: number[] = [];
    const key = copyKey(inbox, 0);
    for (const seq of new Set(inboxSeqs)) {
      if (storedSeqs.length === count) break;
      if (!Number.isInteger(seq) || seq < 1 || seq > last) continue;
      if (slice.shouldYield()) await slice.yield();
      writeSeq(key, seq);
      if (this.#ports.tables.inbox.getBinaryFast(key) !== undefined) storedSeqs.push(seq);
    }
    return storedSeqs;
  }

  #stateOf(inbox: Buffer) {
    return readState(this.#ports.tables.inboxes.getBinaryFast(inbox));
  }

  async sweep(nowMs: number, isClosed: () => boolean): Promise<void> {
    const { commands } = this.#ports.tables;
    const bounds = { end: commandKey(nowMs + 1), limit: MAX_SWEPT_COMMANDS };
    const failures = new SweepFailures();
    let after: Buffer | undefined;
    do {
      const start = after === undefined ? {} : { start: after, exclusiveStart: true };
      const keys = [...commands.getKeys({ ...start, ...bounds })];
      after = await this.#expire(keys, failures);
    } while (after !== undefined && !isClosed());
    failures.throwFirst();
  }

  /**
   * Removes the first commands of the list and their copies, up to the command at which
   * `MAX_SWEPT_COPIES` copies are reached. Returns the key of the last command that was processed.
   */
  async #expire(commands: readonly Buffer[], failures: SweepFailures): Promise<Buffer | undefined> {
    const { commandCopies } = this.#ports.tables;
    const steps: Promise<void>[] = [];
    const add = ({ promise, step }: ReturnType<typeof expireStep>) => {
      this.#queue.add("", step);
      return promise;
    };
    let size = 0;
    let last: Buffer | undefined;
    for (const command of commands) {
      last = command;
      const copies = await failures.attempt(() => readCopies(commandCopies.get(command)));
      if (copies === undefined) continue;
      const removals: Promise<BrokerError | undefined>[] = [];
      for (let at = 0; at < copies.length; at += MAX_SWEPT_COPIES)
        removals.push(add(expireStep(copies.slice(at, at + MAX_SWEPT_COPIES), undefined)));
      // Without the command, a later sweep could not find copies that were not removed.
      const finish = async (errors: readonly (BrokerError | undefined)[]) => {
        const error = errors.find((error) => error !== undefined);
        if (error === undefined) await add(expireStep([], command));
        else failures.note(error);
      };
      steps.push(Promise.all(removals).then(finish));
      size += copies.length;
      if (size >= MAX_SWEPT_COPIES) break;
    }
    await Promise.all(steps.map((step) => failures.attempt(() => step)));
    return last;
  }

  refuse(): void {
    this.#queue.refuse();
  }

  drain(): Promise<void> {
    return this.#queue.drain();
  }
}
