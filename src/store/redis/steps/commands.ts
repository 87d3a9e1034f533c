// Commands on their way into inboxes. One that fits one step on one server is done with it. Others
// are noted in their channel's slot and put into each recipient's inbox by steps of their own,
// behind which the note is removed: a retry at any node, or for an hour a sweep, finishes what a
// dead one left. State: the order of each channel's commands, the groups of recipients in flight,
// how much is held in memory, counts.

import { BrokerError, isTransient } from "../../../broker/errors.ts";
import { type ChannelKey, firstMessageId } from "../../../broker/model.ts";
import type { AppendResult, CommandDraft } from "../../../broker/ports.ts";
import { KeyedLock } from "../../../lib/keyed-lock.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { isUnanswered } from "../../../redis/errors.ts";
import { BUCKETS } from "../../../redis/keys.ts";
import { commandFrame } from "../../../redis/wire.ts";
import type { RedisStorePorts } from "../ports.ts";
import {
  type Accepted,
  accept,
  type Command,
  leaseOf,
  NOTES,
  type Notes,
  newCommand,
  noted,
  notesOf,
  notesToSweep,
  put,
} from "./command-steps.ts";

/** Of commands that are not answered yet. */
const MAX_HELD_BYTES = 64 * 1024 * 1024;
const COMMAND_BYTES = 1000;
const RECIPIENT_BYTES = 100;
/**
 * Recipients of one step on one server: well under a millisecond of Redis. On a Cluster each is in
 * a slot of its own.
 */
const TOGETHER = 64;
/**
 * Recipients of a group, which is one stretch of the event loop, and groups in flight: they take a
 * quarter of what may be at most.
 */
const GROUP = 128;
const GROUPS = 16;
const SHARE = 1 / 4;
/**
 * What is not finished so long after it began is nobody's; so long after, sweeps leave it to a
 * retry: inboxes forget what they were given.
 */
const STALE_MS = 60_000;
const GIVEN_UP_MS = 3_600_000;
/** Buckets that a sweep is at at once. */
const BUCKETS_AT_ONCE = 8;

/** Servers that gave no answer to a call or a sweep: it does not ask them again. */
type Silent = Set<unknown>;

export class Commands {
  readonly #parts: RedisStorePorts;
  /** Recipients of one step. */
  readonly #together: number;
  /** How many get their copies by the step that accepts the command. */
  readonly #atFirst: number;
  readonly #group: number;
  readonly #groups: Semaphore;
  readonly #lanes = new KeyedLock();
  #heldBytes = 0;
  /** By sender: one may hold as much as is free, so that others find room. */
  readonly #heldBytesOf = new Map<string, number>();
  /**
   * Since the start: new commands, retries of them, copies that left because their inbox was full.
   */
  readonly counts = { commands: 0, duplicates: 0, dropped: 0 };

  constructor(parts: RedisStorePorts) {
    this.#parts = parts;
    const { isCluster, settings } = parts.link;
    this.#together = isCluster ? 1 : TOGETHER;
    this.#atFirst = isCluster ? 0 : TOGETHER;
    const most = Math.floor(settings.maxInFlight * SHARE) * this.#together;
    this.#group = Math.min(GROUP, most);
    this.#groups = new Semaphore(Math.min(GROUPS, Math.floor(most / this.#group)));
  }

  /** The port's `appendCommand`, of a draft that fits. */
  async append(draft: CommandDraft): Promise<AppendResult> {
    const bytes = sizeOf(draft);
    const { fromUid } = draft;
    const own = this.#heldBytesOf.get(fromUid) ?? 0;
    const free = MAX_HELD_BYTES - this.#heldBytes;
    if (own > 0 && own + bytes > free) throw new BrokerError("overloaded");
    if (this.#heldBytes > 0 && bytes > free) throw new BrokerError("overloaded");
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

  async #append(draft: CommandDraft): Promise<AppendResult> {
    const command = newCommand(this.#parts, draft);
    const { accepting, spreading } = await this.#begin(command, draft);
    const accepted = await accepting;
    if (accepted.kind === "retry") return this.#again(draft.key, accepted);
    const { messageId, isNoted, dropped, failure } = accepted;
    this.counts.dropped += dropped;
    await spreading;
    if (failure !== undefined) throw failure;
    await this.#parts.written();
    if (isNoted) void this.#forget({ ...command, messageId });
    this.counts.commands += 1;
    return { messageId, messageSeq: 0, duplicate: false };
  }

  /** Ends when all its steps are on their way: the channel's next command follows. */
  #begin(command: Command, draft: CommandDraft): Promise<Begun> {
    const { key, recipients } = command;
    const { isCluster } = this.#parts.link;
    const count = this.#atFirst;
    const send = () => caught(accept(this.#parts, command, { draft, count }));
    const sent = isCluster ? send() : undefined; // it puts no copies, and need not wait for those of others
    return this.#lanes.run(key, async () => {
      const accepting = sent ?? send();
      if (!isCluster && recipients.length <= count) return { accepting };
      const { kind, messageId } = await accepting;
      if (kind === "retry") return { accepting };
      const notified = isCluster ? {} : { pushOnlyRecipients: [] };
      const left = {
        ...command,
        ...notified,
        recipients: recipients.slice(count),
      };
      const spread = await this.#spread({ ...left, messageId }, new Set());
      return { accepting, ...spread };
    });
  }

  /** Answers a retry once what it repeats is done. */
  async #again(
    key: ChannelKey,
    retry: Extract<Accepted, { kind: "retry" }>,
  ): Promise<AppendResult> {
    const { link, written } = this.#parts;
    const { messageId, messageSeq, publicationSeq, unfinished } = retry;
    this.counts.duplicates += 1;
    if (publicationSeq === 0) await this.#settle(unfinished);
    else await written(link.keys.channel("head", key));
    return { messageId, messageSeq, duplicate: true };
  }

  /**
   * To be awaited before a retry is answered with a first one whose `publicationSeq` is 0, which
   * may be a command: finishes it if some recipients may not have it. Throws as the link does.
   */
  async settle(key: ChannelKey, messageId: number): Promise<void> {
    const { link } = this.#parts;
    const notes = notesOf(link.keys, key);
    const found = await link.call("xrange", notes, messageId, messageId);
    const [entry] = found as Notes;
    await this.#settle(entry && noted(messageId, entry[1]));
  }

  async #settle(unfinished: Command | undefined): Promise<void> {
    if (unfinished !== undefined) await this.#complete(unfinished, new Set());
    await this.#parts.written();
    if (unfinished !== undefined) void this.#forget(unfinished);
  }

  /** Resolves when all recipients have it. */
  async #complete(command: Command, silent: Silent): Promise<void> {
    if (command.endMs <= this.#parts.clock()) return; // a copy would never be read
    const spread = () => this.#spread(command, silent);
    const { spreading } = await this.#lanes.run(command.key, spread);
    await spreading;
  }

  /**
   * Each recipient has it: nobody need finish it. Where that cannot be noted, a sweep finds nothing
   * left to do.
   */
  async #forget({ key, messageId }: Command): Promise<void> {
    const { link, onError } = this.#parts;
    try {
      await link.call("xdel", notesOf(link.keys, key), messageId);
    } catch (error) {
      onError(error, "A finished command could not be marked as done");
    }
  }

  /**
   * Ends when the last group is on its way, whatever became of others. `spreading` throws the first
   * failure, when nothing is on its way any more.
   */
  async #spread(command: Command, silent: Silent): Promise<{ readonly spreading: Promise<void> }> {
    const { recipients } = command;
    const notified = caught(this.#notify(command, silent));
    const groups: Promise<void>[] = [notified];
    for (let at = 0; at < recipients.length; at += this.#group) {
      if (at > 0) await groups.at(-1)?.catch(() => undefined); // thrown below
      const group = recipients.slice(at, at + this.#group);
      await new Promise<void>((begun) => {
        const steps = () => {
          begun();
          return this.#put(command, group, silent);
        };
        groups.push(caught(this.#groups.run(steps)));
      });
    }
    return { spreading: caught(allOf(groups)) };
  }

  async #put(command: Command, group: readonly string[], silent: Silent): Promise<void> {
    const { keys } = this.#parts.link;
    const steps: Promise<void>[] = [];
    for (let at = 0; at < group.length; at += this.#together) {
      const uids = group.slice(at, at + this.#together);
      const key = keys.user("inbox", uids[0] ?? "");
      const step = this.#ask(silent, key, () => put(this.#parts, command, uids));
      steps.push(
        step.then(({ dropped, failure }) => {
          this.counts.dropped += dropped;
          if (failure !== undefined) throw failure;
        }),
      );
    }
    await allOf(steps);
  }

  async #notify(command: Command, silent: Silent): Promise<void> {
    const { link } = this.#parts;
    const notified = command.pushOnlyRecipients.map((uid) => {
      const topic = link.keys.user("topic", uid);
      const frame = commandFrame({ ...command, copy: { uid, inboxSeq: 0 } });
      return this.#ask(silent, topic, () => link.call("spublish", topic, frame));
    });
    await allOf(notified);
  }

  async #ask<T>(silent: Silent, key: string, send: () => Promise<T>): Promise<T> {
    const server = this.#parts.link.primaryOf(key);
    if (silent.has(server)) throw new BrokerError("unavailable");
    try {
      return await send();
    } catch (error) {
      if (isUnanswered(error)) silent.add(server);
      throw error;
    }
  }

  /**
   * Finishes what dead nodes left half done, as far as it can be reached. To be called now and then
   * by any node.
   */
  async sweep(isStopped = () => false): Promise<void> {
    const { onError } = this.#parts;
    let isAwayReported = false;
    const failed = (error: unknown) => {
      if (!isTransient(error) || !isAwayReported)
        onError(error, "A command could not be given to all its recipients"); // the others go on
      isAwayReported ||= isTransient(error);
    };
    const how = { silent: new Set(), isStopped, failed };
    const semaphore = new Semaphore(BUCKETS_AT_ONCE);
    const sweeps = Array.from({ length: BUCKETS }, (_, bucket) =>
      semaphore.run(() => this.#sweepBucket(bucket, how).catch(failed)),
    );
    await Promise.all(sweeps);
  }

  /**
   * Finishes the commands noted there that are nobody's, but those that were given up; removes
   * those that ended. Where some could not be finished, no node tries again for a minute.
   */
  async #sweepBucket(bucket: number, how: Sweeping): Promise<void> {
    const { link, clock, limits, written } = this.#parts;
    const notes = link.keys.bucket("commands", bucket);
    const idAt = (ageMs: number) => firstMessageId(clock() - ageMs);
    const endedId = idAt(limits.inboxTtlS * 1000);
    const untilId = idAt(STALE_MS);
    const isOver = () => how.isStopped() || !link.isUp;
    let from = `${idAt(GIVEN_UP_MS)}`;
    let isHeld = false;
    let isEachDone = true;
    for (;;) {
      const range = { endedId, from, untilId };
      const page = await notesToSweep(this.#parts, bucket, range);
      isHeld ||= page.length > 0;
      const done: Buffer[] = [];
      for (const [at, fields] of page) {
        if (isOver()) break;
        from = `(${String(at)}`;
        try {
          await this.#complete(noted(idOf(at), fields), how.silent);
          done.push(at);
        } catch (error) {
          isEachDone = false;
          how.failed(error);
        }
      }
      if (done.length > 0) {
        await written();
        await link.call("xdel", notes, ...done);
      }
      if (page.length < NOTES || isOver()) break;
    }
    if (isHeld && isEachDone) await link.call("del", leaseOf(link.keys, bucket));
  }
}

interface Begun {
  readonly accepting: Promise<Accepted>;
  /** Of what the first step did not do. */
  readonly spreading?: Promise<void>;
}

interface Sweeping {
  readonly silent: Silent;
  readonly isStopped: () => boolean;
  readonly failed: (error: unknown) => void;
}

const idOf = (at: Buffer): number => Number.parseInt(String(at), 10);

function sizeOf({ payload, recipients, pushOnlyRecipients }: CommandDraft): number {
  const users = recipients.length + pushOnlyRecipients.length;
  return COMMAND_BYTES + payload.length + users * RECIPIENT_BYTES;
}

/**
 * Also where one fails, none is on its way any more when it is reported: one slot of the semaphore
 * stands for all of them.
 */
async function allOf(calls: readonly Promise<unknown>[]): Promise<void> {
  const results = await Promise.allSettled(calls);
  for (const result of results) if (result.status === "rejected") throw result.reason;
}

/** It may fail before it is awaited. */
function caught<T>(call: Promise<T>): Promise<T> {
  call.catch(() => undefined);
  return call;
}
