// The command inboxes of the port: retries are answered, the rest goes through the queue. State: the count of retries.

import { BrokerError } from "../../../broker/errors.ts";
import type {
  Appended,
  CommandDraft,
  InboxStore,
  MessageDraft,
} from "../../../broker/ports.ts";
import { TimeSlice, Turns } from "../../../lib/time-slice.ts";
import { assertFits, isTooLong } from "../../command-draft.ts";
import { type AppendingParts, acknowledging, appending } from "./commands.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { InboxQueue } from "./inbox-queue.ts";
import {
  type InboxPage,
  type InboxRange,
  readInbox,
  seqsThere,
} from "./inbox-reads.ts";
import { inboxKey, readState } from "./inbox-rows.ts";

type Sender = Pick<MessageDraft, "key" | "fromUid" | "clientMsgNo">;

export interface InboxParts extends AppendingParts {
  readonly tables: Parameters<typeof readInbox>[0] &
    Parameters<typeof seqsThere>[0];
  readonly queue: InboxQueue;
  readonly dedupe: DedupeIndex;
  /** Undefined: nobody repeats anything. */
  readonly assigner: { firstOf(sender: Sender, nowMs: number): unknown };
  readonly appends: { earlier(sender: Sender): Promise<Appended | undefined> };
}

export class Inbox implements InboxStore {
  readonly #parts: InboxParts;
  /** Acknowledgements that look for their copies take turns. */
  readonly #lookups = new Turns();
  #duplicates = 0;

  constructor(parts: InboxParts) {
    this.#parts = parts;
  }

  get counts() {
    return { ...this.#parts.queue.counts, duplicates: this.#duplicates };
  }

  async appendCommand(draft: CommandDraft): Promise<Appended> {
    const { assigner, appends, clock, dedupe } = this.#parts;
    assertFits(draft);
    if (dedupe.isCommandTooLong(draft)) throw new BrokerError("too_large");
    // Nothing is awaited before a new command is in the queue.
    while (assigner.firstOf(draft, clock()) !== undefined) {
      const first = await appends.earlier(draft);
      if (first === undefined) continue; // it came to nothing
      this.#duplicates++;
      return first;
    }
    return this.#add(draft);
  }

  #add(draft: CommandDraft): Promise<Appended> {
    const { queue, dedupe } = this.#parts;
    if (queue.isFull(draft.fromUid)) throw new BrokerError("overloaded");
    const { promise, step } = appending(draft, this.#parts);
    if (draft.clientMsgNo !== "")
      dedupe.expectCommand(
        draft,
        promise.catch(() => undefined), // retries try for themselves
      );
    queue.add(draft.fromUid, step);
    return promise;
  }

  async readInbox(uid: string, afterSeq: number, page: InboxPage) {
    const { tables, queue, clock } = this.#parts;
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const range: InboxRange = { uid, afterSeq, ...page };
    return readInbox(tables, range, {
      nowMs: clock(),
      isUnshown: (messageId) => queue.isUnshown(messageId),
    });
  }

  /** No copy in the user's inbox has a greater seq; 0: it is empty. */
  newestSeq(uid: string): number {
    const { tables } = this.#parts;
    const { last, count } = readState(tables.inboxes.get(inboxKey(uid)));
    return count > 0 ? last : 0;
  }

  async acknowledgeCommands(
    uid: string,
    inboxSeqs: readonly number[],
  ): Promise<number> {
    const { tables, queue, clock } = this.#parts;
    if (isTooLong(uid)) throw new BrokerError("too_large");
    const slice = new TimeSlice(undefined, this.#lookups);
    const there = await seqsThere(tables, { uid, inboxSeqs, slice });
    if (there.length === 0) return 0; // nothing to write
    if (queue.isFull(uid)) throw new BrokerError("overloaded");
    const { promise, step } = acknowledging(uid, there, clock());
    queue.add(uid, step);
    return promise;
  }

  /** Fails what is not being written, from now on. */
  refuse(): void {
    this.#parts.queue.refuse();
  }
}
