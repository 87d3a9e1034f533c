// The queue of all changes to inboxes. Steps that leave the queue together are written in one
// transaction. As a result, no step needs a lock, events are published in the order of commits, and
// many small commands share one commit. Users take turns, and the steps of one user keep their
// order. Large steps are computed, and calls are settled, in several short event-loop turns, but
// all writes of a transaction are issued in a single turn. No command may be
// published and no call may be settled before the commit.

import { setImmediate as nextTurn } from "node:timers/promises";
import { BrokerError } from "../../../broker/errors.ts";
import type { EventDemand } from "../../../broker/event-demand-ports.ts";
import { type EventDraft, MAX_EVENT_COMMANDS } from "../../../broker/event-ports.ts";
import { userTopic } from "../../../broker/model.ts";
import type { Clock, Publisher } from "../../../broker/ports.ts";
import { BoundedMap } from "../../../lib/bounded-map.ts";
import { FairQueue } from "../../../lib/fair-queue.ts";
import { piecesOf } from "../../../lib/pieces.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { commandFields, commandIdFields } from "../../command-event.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { commit, ensureDurable } from "../engine/database.ts";
import type { EventLog } from "../engine/event-log.ts";
import type { Tables } from "../engine/tables.ts";
import { type CommandStep, type InboxStep, rememberCommands } from "./commands.ts";
import type { DedupeIndex } from "./dedupe.ts";
import type { EventOutbox } from "./event-outbox.ts";
import { type ExpiredCopy, InboxBatch } from "./inbox-batch.ts";

/**
 * Maximum number of copies in the initial steps of a batch. If the first step is larger, it is the
 * only initial step. The limit is needed because a batch is written in one event-loop turn.
 */
const MAX_BATCH = 500;
/** Maximum number of copies in the small steps that are added to a batch while its changes are computed. */
const MAX_JOINING = 250;
const MAX_QUEUED = 200_000;
/** Maximum number of inboxes for which the time of the next expiry check is kept in memory. */
const MAX_CHECK_TIMES = 10_000;
const MAX_QUEUED_BYTES = 64 * 1024 * 1024;

export interface InboxQueuePorts {
  readonly tables: Tables;
  readonly clock: Clock;
  readonly maxInbox: number;
  readonly dedupe: DedupeIndex;
  readonly publisher: Publisher;
  readonly events: Pick<EventLog, "isOn">;
  readonly outbox: Pick<EventOutbox, "commit">;
  readonly demand: { readonly current: EventDemand };
}

export class InboxQueue {
  readonly #ports: InboxQueuePorts;
  readonly #queue = new FairQueue<InboxStep>({
    ...{ size: MAX_QUEUED, bytes: MAX_QUEUED_BYTES },
  });
  #isRefusing = false;
  #running: Promise<void> | undefined;
  readonly #unpublishedIds = new Set<number>();
  readonly #checkTimes = new BoundedMap<string, number>(MAX_CHECK_TIMES);
  #dropped = 0;
  #commands = 0;

  constructor(ports: InboxQueuePorts) {
    this.#ports = ports;
  }

  get counts() {
    return { commands: this.#commands, dropped: this.#dropped };
  }

  /**
   * Returns true if the queue accepts no more steps from the user. One user can fill at most half
   * of the queue.
   */
  isFull(uid: string): boolean {
    return this.#queue.isFull(uid);
  }

  /**
   * Returns true if the command may already be in the tables but is not yet durable and published.
   */
  isUnpublished(messageId: number): boolean {
    return this.#unpublishedIds.has(messageId);
  }

  /** Queues a step. `uid` is "" for a step of the store itself. */
  add(uid: string, step: InboxStep): void {
    if (this.#isRefusing) return step.fail(new BrokerError("unavailable"));
    this.#queue.push(uid, step);
    this.#running ??= this.#run();
  }

  refuse(): void {
    this.#isRefusing = true;
    for (let step = this.#queue.take(); step; step = this.#queue.take())
      step.fail(new BrokerError("unavailable"));
  }

  async drain(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async #run(): Promise<void> {
    try {
      await nextTurn(); // steps of one event-loop iteration share a batch
      let steps = this.#nextSteps();
      while (steps.length > 0) {
        await this.#apply(steps);
        steps = this.#nextSteps();
      }
    } finally {
      // `#running` is reset in the turn in which the queue was found empty, so that a step that is
      // added later starts a new run.
      this.#running = undefined;
    }
  }

  #nextSteps(): InboxStep[] {
    const steps: InboxStep[] = [];
    let size = 0;
    let step = this.#queue.take();
    while (step !== undefined) {
      steps.push(step);
      size += step.size;
      step = this.#queue.take(MAX_BATCH - size);
    }
    return steps;
  }

  async #apply(first: readonly InboxStep[], joinable = MAX_JOINING): Promise<void> {
    const steps = [...first];
    let batch: InboxBatch;
    try {
      batch = await this.#decide(steps, joinable);
    } catch (error) {
      const [single] = steps;
      if (steps.length === 1) single?.fail(toBrokerError(error));
      // No queued step is added to these batches, because it would be stored before the rest of
      // `steps`.
      else for (const step of steps) await this.#apply([step], 0);
      return;
    }
    let failure: BrokerError | undefined;
    try {
      failure = await this.#write(steps, batch);
    } catch (error) {
      this.#unpublishedIds.clear();
      for (const step of steps) step.fail(toBrokerError(error));
      return;
    }
    const slice = new TimeSlice();
    for (const step of steps) {
      if (slice.shouldYield()) await slice.yield();
      this.#finish(step, failure);
      await undefined; // lets the caller continue, so that the slice includes the caller's work
    }
  }

  /**
   * Adds the changes of the steps to a new batch. Then moves small steps, with at most `joinable`
   * copies in total, from the queue to `steps`, and adds their changes too.
   */
  async #decide(steps: InboxStep[], joinable: number): Promise<InboxBatch> {
    const { tables, clock, maxInbox } = this.#ports;
    const checkTimes = this.#checkTimes;
    const batch = new InboxBatch(tables, { maxInbox, nowMs: clock(), checkTimes });
    const slice = new TimeSlice();
    let freeSize = joinable;
    for (let at = 0; at < steps.length; at++) {
      await steps[at]?.decide(batch, slice);
      if (at < steps.length - 1) continue;
      for (const step of this.#queue.takeSmall(freeSize)) {
        steps.push(step);
        freeSize -= step.size;
      }
    }
    await batch.seal(slice);
    return batch;
  }

  /** Returns an error if the commit must be on the disk but may not have reached the disk. */
  async #write(steps: readonly InboxStep[], batch: InboxBatch): Promise<BrokerError | undefined> {
    const { tables, dedupe, events, outbox, demand } = this.#ports;
    const commands = steps.filter(isStored);
    for (const { message } of commands) this.#unpublishedIds.add(message.messageId);
    const put = () => {
      rememberCommands(tables, dedupe, commands); // first, because it may throw
      batch.write();
    };
    const purpose = commands.length === 0 ? "reclaim" : "store";
    const sent = demand.current.command ? commands : [];
    const drafts = events.isOn
      ? [
          ...sent.map(({ draft, message }) => commandEvent(draft, message)),
          ...expiryEvents([...steps.flatMap(expiredBy), ...batch.expired]),
        ]
      : [];
    let failure: BrokerError | undefined;
    if (drafts.length === 0) {
      await commit(tables, put, purpose);
      failure = await ensureDurable(tables).then(noFailure, toBrokerError);
    } else
      ({ failure } = await outbox.commit((emit) => {
        put();
        for (const draft of drafts) emit?.(draft);
      }, purpose));
    this.#dropped += batch.dropped;
    return failure;
  }

  /**
   * Publishes the command if the step stored a command, and settles the step's call. `failure` is
   * set if the commit must be on the disk but may not have reached the disk.
   */
  #finish(step: InboxStep, failure: BrokerError | undefined): void {
    if (isStored(step)) {
      this.#commands++;
      const { message, copies, draft } = step;
      const { origin } = draft;
      this.#ports.publisher.publish({
        kind: "command",
        message,
        copies,
        origin,
      });
      this.#unpublishedIds.delete(message.messageId);
    }
    if (failure === undefined) step.done();
    else step.fail(failure);
  }
}

function commandEvent(
  draft: CommandStep["draft"],
  { messageId, timestampMs }: CommandStep["message"],
): EventDraft {
  const idFields = commandIdFields(messageId, draft.clientMsgNo);
  return {
    ...{ type: "command.sent", key: draft.key, messageSeq: 0 },
    fields: { ...idFields, ...commandFields(draft, timestampMs) },
  };
}

/** Returns the expired copies that the step removes. */
function expiredBy(step: InboxStep): readonly ExpiredCopy[] {
  return step.kind === "removal" ? step.expired : [];
}

/** Returns the `command.expired` events for these copies. */
function expiryEvents(copies: readonly ExpiredCopy[]): readonly EventDraft[] {
  const idsOf = new Map<string, number[]>();
  for (const { uid, messageId } of copies) {
    const ids = idsOf.get(uid);
    if (ids === undefined) idsOf.set(uid, [messageId]);
    else ids.push(messageId);
  }
  return [...idsOf].flatMap(([uid, ids]) =>
    [...piecesOf(ids, MAX_EVENT_COMMANDS)].map((page) => ({
      ...{ type: "command.expired" as const, key: userTopic(uid), messageSeq: 0 },
      fields: { command_ids: page },
    })),
  );
}

function noFailure(): undefined {}

function isStored(step: InboxStep): step is CommandStep {
  return step.kind === "command" && !step.isRefused;
}
