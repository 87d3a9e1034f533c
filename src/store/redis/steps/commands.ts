// Puts copies of broker commands into inboxes. On a single server, one script is enough for a
// command with at most `RECIPIENTS_PER_CALL` recipients. Every other command gets a pending entry
// in its channel's slot. Further scripts then put the copies into the inboxes, and finally the
// entry is removed. If the node dies before the removal, a retry on any node or a sweep within an
// hour completes the command.

import { BrokerError, isTransient } from "../../../broker/errors.ts";
import { type ChannelKey, firstMessageId, userTopic } from "../../../broker/model.ts";
import type { AppendResult, CommandDraft } from "../../../broker/ports.ts";
import { KeyedLock } from "../../../lib/keyed-lock.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { Semaphore } from "../../../lib/semaphore.ts";
import { isUnanswered } from "../../../redis/errors.ts";
import { commandFrame } from "../../../redis/wire.ts";
import { shareIsFull } from "../../command-draft.ts";
import type { RedisStorePorts } from "../ports.ts";
import {
  type Acceptance,
  accept,
  type Command,
  decodePending,
  leaseOf,
  listInbox,
  mayBeRefused,
  newCommand,
  PENDING_PAGE,
  type PendingEntries,
  pendingCopiesOf,
  put,
  readPendingCopies,
  roomOf,
} from "./command-steps.ts";
import { ALL_BUCKETS, bucketsWithWork } from "./sweep-buckets.ts";
import { createUserEvents } from "./user-events.ts";

const MAX_HELD_BYTES = 64 * 1024 * 1024;
const COMMAND_BYTES = 1000;
const RECIPIENT_BYTES = 100;
/**
 * Maximum number of recipients per script on a single server. All other calls to the server wait
 * for the script, which usually takes less than 0.7 ms.
 */
const RECIPIENTS_PER_CALL = 16;
/**
 * Maximum number of recipients in a batch, and of batches in flight. On a Redis Cluster, the limits
 * are higher, because each script puts only one copy, and even a command with a single recipient
 * needs a batch.
 */
const ONE_SERVER = { batchSize: RECIPIENTS_PER_CALL, batches: 2 };
const CLUSTER = { batchSize: 128, batches: 16 };
const IN_FLIGHT_SHARE = 1 / 4;
/**
 * Age above which a sweep may complete a pending command, because no node is still working on it.
 */
const STALE_MS = 60_000;
/**
 * Age above which sweeps skip a pending command, because an inbox no longer recognises that it
 * already has a copy of the command.
 */
const GIVEN_UP_MS = 3_600_000;
const BUCKETS_AT_ONCE = 8;

/** Servers that did not reply and are not contacted again by the same call or sweep. */
type SilentServers = Set<unknown>;

export class Commands {
  readonly #ports: RedisStorePorts;
  readonly #userEvents: ReturnType<typeof createUserEvents>;
  readonly #perCall: number;
  /** Maximum number of recipients for which one script is enough. 0 on a Redis Cluster. */
  readonly #direct: number;
  readonly #batchSize: number;
  readonly #batches: Semaphore;
  readonly #channelQueues = new KeyedLock();
  #heldBytes = 0;
  /**
   * Bytes held by each sender's commands in progress. A sender with a command in progress may hold
   * no more bytes than are still free.
   */
  readonly #heldBytesOf = new Map<string, number>();
  readonly counts = { commands: 0, duplicates: 0, dropped: 0 };

  constructor(ports: RedisStorePorts) {
    this.#ports = ports;
    this.#userEvents = createUserEvents(ports);
    const { isCluster, settings } = ports.link;
    this.#perCall = isCluster ? 1 : RECIPIENTS_PER_CALL;
    this.#direct = isCluster ? 0 : RECIPIENTS_PER_CALL;
    const maxRecipients = Math.floor(settings.maxInFlight * IN_FLIGHT_SHARE) * this.#perCall;
    const { batchSize, batches } = isCluster ? CLUSTER : ONE_SERVER;
    this.#batchSize = Math.min(batchSize, maxRecipients);
    this.#batches = new Semaphore(Math.min(batches, Math.floor(maxRecipients / this.#batchSize)));
  }

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
    const command = newCommand(this.#ports, draft);
    const replicated = this.#ports.observeReplicas();
    const { accepting, spreading } = await this.#begin(command, draft);
    const accepted = await accepting;
    if (accepted.kind === "refused") throw shareIsFull();
    if (accepted.kind === "reused")
      return { messageId: 0, messageSeq: 0, duplicate: false, refused: "client_msg_no_reused" };
    if (accepted.kind === "retry") return this.#answerRetry(draft.key, accepted);
    const { messageId, hasPendingCopies, dropped, failure } = accepted;
    this.counts.dropped += dropped;
    await spreading?.catch((error: unknown) => {
      // `overloaded` would mean that the command was not accepted.
      throw isOverloaded(error) ? new BrokerError("unavailable", { cause: error }) : error;
    });
    if (failure !== undefined) throw failure;
    await replicated();
    if (hasPendingCopies) void this.#forget({ ...command, messageId });
    this.counts.commands += 1;
    return { messageId, messageSeq: 0, duplicate: false };
  }

  #begin(command: Command, draft: CommandDraft): Promise<SentCommand> {
    const { key, recipients } = command;
    const { isCluster } = this.#ports.link;
    const count = recipients.length > this.#direct ? 0 : recipients.length;
    const send = (isRefused = false) =>
      markHandled(accept(this.#ports, command, { draft, count, isRefused }));
    // On a Cluster, `accept` puts no copies into inboxes. It is therefore called immediately, even
    // if copies of the channel's earlier commands are still in progress. For a command that may
    // be refused, it is called only after these copies and after a check of the recipient's inbox.
    const asksFirst = isCluster && mayBeRefused(command);
    const early = isCluster && !asksFirst ? send() : undefined;
    return this.#channelQueues.run(key, async () => {
      const accepting = early ?? send(asksFirst && !(await this.#hasRoom(command)));
      if (!isCluster && recipients.length === count) return { accepting };
      const accepted = await accepting;
      if (accepted.kind !== "new") return { accepting };
      const { messageId } = accepted;
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

  async #hasRoom(command: Command): Promise<boolean> {
    const { hasRoom, hasEvents } = await roomOf(this.#ports, command);
    if (hasEvents) await this.#userEvents.flush(command.recipients[0] ?? "");
    return hasRoom;
  }

  async #answerRetry(
    key: ChannelKey,
    retry: Extract<Acceptance, { kind: "retry" }>,
  ): Promise<AppendResult> {
    const { link, waitForReplicas } = this.#ports;
    const { messageId, messageSeq, publicationSeq, unfinished } = retry;
    this.counts.duplicates += 1;
    if (publicationSeq === 0) await this.#settle(unfinished);
    else await waitForReplicas(link.keys.channel("head", key));
    return { messageId, messageSeq, duplicate: true };
  }

  /**
   * Completes the command if it is pending. Must be awaited by an append that is a retry with
   * `publicationSeq` 0, because in that case the first call sent this command.
   */
  async settle(key: ChannelKey, messageId: number): Promise<void> {
    const { link } = this.#ports;
    const pendingKey = pendingCopiesOf(link.keys, key);
    const entries = await link.call("xrange", pendingKey, messageId, messageId);
    const [entry] = entries as PendingEntries;
    await this.#settle(entry && decodePending(messageId, entry[1]));
  }

  async #settle(unfinished: Command | undefined): Promise<void> {
    const replicated = this.#ports.observeReplicas();
    if (unfinished !== undefined) await this.#complete(unfinished, new Set());
    await replicated();
    if (unfinished !== undefined) void this.#forget(unfinished);
  }

  async #complete(command: Command, silent: SilentServers): Promise<void> {
    if (command.endMs <= this.#ports.clock()) return this.#listExpired(command);
    const spread = () => this.#spread(command, silent);
    const { spreading } = await this.#channelQueues.run(command.key, spread);
    await spreading;
  }

  /**
   * Adds to `inboxDue` the inboxes that may have a copy of an expired command. The node that put
   * the copy may have died before it added the inbox.
   */
  async #listExpired({ recipients, endMs }: Command): Promise<void> {
    const { link, demand } = this.#ports;
    if (!link.isCluster || demand?.feed !== true) return;
    for (const uids of piecesOf(recipients, this.#batchSize))
      await Promise.all(uids.map((uid) => listInbox(this.#ports, uid, { endMs, seq: 0 })));
  }

  /** Removes a completed command's pending entry. If that fails, a sweep removes it later. */
  async #forget({ key, messageId }: Command): Promise<void> {
    const { link, onError } = this.#ports;
    try {
      await link.write("xdel", pendingCopiesOf(link.keys, key), messageId);
    } catch (error) {
      onError(error, "Could not remove a completed command from the pending commands");
    }
  }

  /**
   * Puts the copies of a command into inboxes, in batches. Resolves when the last batch has been
   * sent, even if an earlier batch failed. `spreading` settles when no script is in flight any
   * more. It rejects with the first failure.
   */
  async #spread(
    command: Command,
    silent: SilentServers,
  ): Promise<{ readonly spreading: Promise<void> }> {
    const { recipients } = command;
    const notified = markHandled(this.#notify(command, silent));
    const batches: Promise<void>[] = [notified];
    for (let at = 0; at < recipients.length; at += this.#batchSize) {
      // `spreading` rejects with the error of a failed batch.
      if (at > 0) await batches.at(-2)?.catch(() => undefined);
      const batch = recipients.slice(at, at + this.#batchSize);
      await new Promise<void>((begun) => {
        const steps = () => {
          begun();
          return this.#put(command, batch, silent);
        };
        batches.push(markHandled(this.#batches.run(steps)));
      });
    }
    return { spreading: markHandled(allOf(batches)) };
  }

  async #put(command: Command, batch: readonly string[], silent: SilentServers): Promise<void> {
    const { keys } = this.#ports.link;
    const steps: Promise<void>[] = [];
    for (let at = 0; at < batch.length; at += this.#perCall) {
      const uids = batch.slice(at, at + this.#perCall);
      const key = keys.user("inbox", uids[0] ?? "");
      const step = this.#callServer(silent, key, () => put(this.#ports, command, uids));
      steps.push(
        step.then(async ({ dropped, failure, hasEvents }) => {
          this.counts.dropped += dropped;
          if (hasEvents) await this.#userEvents.flush(uids[0] ?? "");
          if (failure !== undefined) throw failure;
        }),
      );
    }
    await allOf(steps);
  }

  async #notify(command: Command, silent: SilentServers): Promise<void> {
    const { link } = this.#ports;
    const notified = command.pushOnlyRecipients.map((uid) => {
      const topic = link.keys.topic(userTopic(uid));
      const frame = commandFrame({ ...command, copy: { uid, inboxSeq: 0 } });
      return this.#callServer(silent, topic, () => link.call("spublish", topic, frame));
    });
    await allOf(notified);
  }

  async #callServer<T>(silent: SilentServers, key: string, send: () => Promise<T>): Promise<T> {
    const server = this.#ports.link.primaryOf(key);
    if (silent.has(server)) throw new BrokerError("unavailable");
    try {
      return await send();
    } catch (error) {
      if (isUnanswered(error)) silent.add(server);
      throw error;
    }
  }

  /** Completes commands that are still pending after `STALE_MS`. Skips unreachable servers. */
  async sweep(isStopped = () => false): Promise<void> {
    const { onError } = this.#ports;
    let isAwayReported = false;
    const report = (error: unknown) => {
      if (!isTransient(error) || !isAwayReported)
        onError(error, "Could not put a pending command into the inboxes of all its recipients");
      isAwayReported ||= isTransient(error);
    };
    const context = { silent: new Set(), isStopped, report };
    const semaphore = new Semaphore(BUCKETS_AT_ONCE);
    const { link } = this.#ports;
    const buckets = link.isCluster ? ALL_BUCKETS : await bucketsWithWork(link, "commands");
    const sweeps = buckets.map((bucket) =>
      semaphore.run(() => this.#sweepBucket(bucket, context).catch(report)),
    );
    await Promise.all(sweeps);
  }

  /** Completes the stale commands of a bucket. After a failure, no node retries for a minute. */
  async #sweepBucket(bucket: number, context: SweepContext): Promise<void> {
    const { link, clock, limits, observeReplicas } = this.#ports;
    const pendingKey = link.keys.bucket("commands", bucket);
    const idAt = (ageMs: number) => firstMessageId(clock() - ageMs);
    const endedId = idAt(limits.inboxTtlS * 1000);
    const untilId = idAt(STALE_MS);
    const isOver = () => context.isStopped() || !link.isUp;
    let from = `${idAt(GIVEN_UP_MS)}`;
    let isHeld = false;
    let allDone = true;
    for (;;) {
      const replicated = observeReplicas();
      const range = { endedId, from, untilId };
      const page = await readPendingCopies(this.#ports, bucket, range);
      isHeld ||= page.length > 0;
      const done: Buffer[] = [];
      for (const [entryId, fields] of page) {
        if (isOver()) break;
        from = `(${String(entryId)}`;
        try {
          await this.#complete(decodePending(idOf(entryId), fields), context.silent);
          done.push(entryId);
        } catch (error) {
          allDone = false;
          context.report(error);
        }
      }
      if (done.length > 0) {
        await replicated();
        await link.write("xdel", pendingKey, ...done);
      }
      if (page.length < PENDING_PAGE || isOver()) break;
    }
    if (isHeld && allDone) await link.write("del", leaseOf(link.keys, bucket));
  }
}

interface SentCommand {
  readonly accepting: Promise<Acceptance>;
  /** Settles when the scripts that follow `accept` are done. Absent if no script follows. */
  readonly spreading?: Promise<void>;
}

interface SweepContext {
  readonly silent: SilentServers;
  readonly isStopped: () => boolean;
  readonly report: (error: unknown) => void;
}

function isOverloaded(error: unknown): boolean {
  return error instanceof BrokerError && error.code === "overloaded";
}

const idOf = (entryId: Buffer): number => Number.parseInt(String(entryId), 10);

function sizeOf({ payload, recipients, pushOnlyRecipients }: CommandDraft): number {
  const users = recipients.length + pushOnlyRecipients.length;
  return COMMAND_BYTES + payload.length + users * RECIPIENT_BYTES;
}

async function allOf(calls: readonly Promise<unknown>[]): Promise<void> {
  const results = await Promise.allSettled(calls);
  for (const result of results) if (result.status === "rejected") throw result.reason;
}

/** Returns the promise, marked as handled because it may reject before it is awaited. */
function markHandled<T>(call: Promise<T>): Promise<T> {
  call.catch(() => undefined);
  return call;
}
