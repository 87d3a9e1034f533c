// Commands on their way: a command gets its id and is noted in its channel's slot, is put into each recipient's inbox in the recipient's slot, and the
// note is taken away: a retry or a sweep (`inbox-sweep.ts`) of any node finishes what a dead one left half done, and no recipient gets it twice.
// State: the commands being finished, how much of them is held in memory, counts.

import { BrokerError } from "../../broker/errors.ts";
import type { ChannelKey } from "../../broker/model.ts";
import type { Appended, CommandDraft } from "../../broker/ports.ts";
import { claim, claimScripts, forget, unfinished } from "./inbox-claims.ts";
import { FanOut, type FanOutLink, fanOutScripts } from "./inbox-fanout.ts";
import { type Command, notedCommand } from "./inbox-record.ts";
import type { RedisStoreParts } from "./parts.ts";

/** What the link must know. */
export const commandScripts = [...claimScripts, ...fanOutScripts];

/** Of commands that are not with all recipients yet. */
const MAX_HELD_BYTES = 64 * 1024 * 1024;
const COMMAND_BYTES = 1000;
const RECIPIENT_BYTES = 100;

/** Since the start: new commands, retries of them, copies that left because their inbox was full or were not put since they came too late. */
export interface CommandCounts {
  readonly commands: number;
  readonly duplicates: number;
  readonly dropped: number;
}

/** How a command comes to its recipients: as the store does it, unless a sweep has its own way. */
export interface CommandPath {
  readonly link: FanOutLink;
  readonly written: RedisStoreParts["written"];
}

export class Commands {
  readonly #parts: RedisStoreParts;
  readonly #fanOut: FanOut;
  /** By message id. */
  readonly #running = new Map<number, Promise<void>>();
  #heldBytes = 0;
  /** By sender: one may hold as much as is free, so that others find room. */
  readonly #heldBytesOf = new Map<string, number>();
  #new = 0;
  #duplicates = 0;

  constructor(parts: RedisStoreParts) {
    this.#parts = parts;
    this.#fanOut = new FanOut(parts);
  }

  get counts(): CommandCounts {
    const { dropped } = this.#fanOut;
    return { commands: this.#new, duplicates: this.#duplicates, dropped };
  }

  /** The port's `appendCommand`, of a draft that fits. Nothing is awaited before the first step is sent. */
  async append(draft: CommandDraft): Promise<Appended> {
    const bytes = sizeOf(draft);
    const { fromUid } = draft;
    const own = this.#heldBytesOf.get(fromUid) ?? 0;
    const free = MAX_HELD_BYTES - this.#heldBytes;
    if (own > 0 && own + bytes > free) throw new BrokerError("overloaded");
    if (this.#heldBytes > 0 && bytes > free)
      throw new BrokerError("overloaded");
    this.#hold(fromUid, bytes);
    try {
      return await this.#append(draft);
    } finally {
      this.#hold(fromUid, -bytes);
    }
  }

  #hold(fromUid: string, bytes: number): void {
    const own = (this.#heldBytesOf.get(fromUid) ?? 0) + bytes;
    this.#heldBytes += bytes;
    if (own > 0) this.#heldBytesOf.set(fromUid, own);
    else this.#heldBytesOf.delete(fromUid);
  }

  async #append(draft: CommandDraft): Promise<Appended> {
    const { link, clock, limits, written } = this.#parts;
    const nowMs = clock();
    const command = notedCommand(draft, nowMs, limits.inboxTtlS * 1000);
    const claimed = await claim(this.#parts, draft, { command, nowMs });
    const { messageId, first } = claimed;
    if (first === undefined) {
      await this.finish({ ...command, messageId });
      this.#new += 1;
      return { messageId, messageSeq: 0, duplicate: false };
    }
    this.#duplicates += 1;
    if (first.pub === 0) await this.settle(draft.key, messageId);
    else await written(link.keys.channel("head", draft.key));
    return { messageId, messageSeq: first.messageSeq, duplicate: true };
  }

  /** See `RedisInbox`. */
  async settle(key: ChannelKey, messageId: number): Promise<void> {
    const running = this.#running.get(messageId);
    if (running !== undefined) return running;
    const command = await unfinished(this.#parts, key, messageId);
    if (command === undefined) await this.#parts.written();
    else await this.finish(command);
  }

  /** Resolves when all recipients have it for good. All who ask for it at once wait for one. */
  finish(command: Command, path: CommandPath = this.#parts): Promise<void> {
    const { messageId } = command;
    const running = this.#running.get(messageId);
    if (running !== undefined) return running;
    const run = this.#run(command, path).finally(() =>
      this.#running.delete(messageId),
    );
    this.#running.set(messageId, run);
    return run;
  }

  async #run(command: Command, { link, written }: CommandPath): Promise<void> {
    const hasEnded = command.endMs <= this.#parts.clock(); // a copy would never be read
    if (!hasEnded) await this.#fanOut.spread(command, link);
    await written();
    void forget(this.#parts, command);
  }
}

function sizeOf({ payload, recipients, alsoTell }: CommandDraft): number {
  const users = recipients.length + alsoTell.length;
  return COMMAND_BYTES + payload.length + users * RECIPIENT_BYTES;
}
