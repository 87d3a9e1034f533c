// The one queue through which inboxes change: what is taken from it together is one transaction. So
// no step needs a lock, events come in the order of the commits, and many small commands share one.
// Users are served in turn, each in the order of its calls. Owns the queue, the commands that must
// not be shown yet, and the count of dropped copies. A large step is decided in short stretches;
// only its writes, in memory, are one stretch. Must never publish or answer before the commit. What
// cannot be decided fails alone; a commit that fails fails all of its batch.

import { setImmediate as nextTurn } from "node:timers/promises";
import { BrokerError } from "../../../broker/errors.ts";
import type { Publisher } from "../../../broker/ports.ts";
import { FairQueue } from "../../../lib/fair-queue.ts";
import { TimeSlice } from "../../../lib/time-slice.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { commit, ensureDurable } from "../engine/database.ts";
import type { Tables } from "../engine/tables.ts";
import { type InboxStep, rememberCommands } from "./commands.ts";
import type { DedupeIndex } from "./dedupe.ts";
import { InboxBatch } from "./inbox-batch.ts";

/**
 * Copies and acknowledgements in one transaction (the first step of it may be larger), and in the
 * queue.
 */
const MAX_BATCH = 2000;
/**
 * Of small steps that are queued while a batch is decided and join it: else they would wait for a
 * whole batch more.
 */
const MAX_JOINING = 500;
const MAX_QUEUED = 200_000;
const MAX_QUEUED_BYTES = 64 * 1024 * 1024;

export interface InboxQueueParts {
  readonly tables: Tables;
  /** Copies an inbox holds at most. */
  readonly maxInbox: number;
  readonly dedupe: DedupeIndex;
  readonly publisher: Publisher;
}

export class InboxQueue {
  readonly #parts: InboxQueueParts;
  readonly #queue = new FairQueue<InboxStep>({
    ...{ size: MAX_QUEUED, bytes: MAX_QUEUED_BYTES },
  });
  #isRefusing = false;
  #running: Promise<void> | undefined;
  /** Ids of commands that are being written. */
  readonly #unshown = new Set<number>();
  #dropped = 0;
  #commands = 0;

  constructor(parts: InboxQueueParts) {
    this.#parts = parts;
  }

  /** Commands kept, and copies that left because their inbox was full. */
  get counts() {
    return { commands: this.#commands, dropped: this.#dropped };
  }

  /** For steps of that user: it has queued as much as is left for all others. */
  isFull(uid: string): boolean {
    return this.#queue.isFull(uid);
  }

  /** A command that reads may find already, and that is neither surely durable nor published. */
  isUnshown(messageId: number): boolean {
    return this.#unshown.has(messageId);
  }

  /** `uid`: whose turn it takes; the store's own steps are nobody's: "". */
  add(uid: string, step: InboxStep): void {
    if (this.#isRefusing) return step.fail(new BrokerError("unavailable"));
    this.#queue.push(uid, step);
    this.#running ??= this.#run();
  }

  /** Fails every step that is not being written, from now on. */
  refuse(): void {
    this.#isRefusing = true;
    for (let step = this.#queue.take(); step; step = this.#queue.take())
      step.fail(new BrokerError("unavailable"));
  }

  /** Resolves when every step added before it is done. */
  async drain(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async #run(): Promise<void> {
    try {
      await nextTurn(); // what the event loop brings together is one batch
      let steps = this.#nextSteps();
      while (steps.length > 0) {
        await this.#apply(steps);
        steps = this.#nextSteps();
      }
    } finally {
      this.#running = undefined; // before anything else runs, so no step is left in the queue
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

  async #apply(first: readonly InboxStep[]): Promise<void> {
    const steps = [...first];
    let batch: InboxBatch;
    try {
      batch = await this.#decide(steps);
    } catch (error) {
      const [only] = steps;
      if (steps.length === 1) only?.fail(toBrokerError(error));
      else for (const step of steps) await this.#apply([step]);
      return;
    }
    try {
      await this.#write(steps, batch);
    } catch (error) {
      this.#unshown.clear();
      for (const step of steps) step.fail(toBrokerError(error));
      return;
    }
    const failure = await ensureDurable(this.#parts.tables).then(noFailure, toBrokerError);
    for (const step of steps) this.#finish(step, failure);
  }

  /** Adds the small steps that join to `steps`. */
  async #decide(steps: InboxStep[]): Promise<InboxBatch> {
    const { tables, maxInbox } = this.#parts;
    const batch = new InboxBatch(tables, maxInbox);
    const slice = new TimeSlice();
    let free = MAX_JOINING;
    for (let at = 0; at < steps.length; at++) {
      await steps[at]?.decide(batch, slice);
      if (at < steps.length - 1) continue;
      for (const step of this.#queue.takeSmall(free)) {
        steps.push(step);
        free -= step.size;
      }
    }
    await batch.seal(slice);
    return batch;
  }

  async #write(steps: readonly InboxStep[], batch: InboxBatch): Promise<void> {
    const { tables, dedupe } = this.#parts;
    const commands = steps.filter((step) => step.kind === "command");
    for (const { message } of commands) this.#unshown.add(message.messageId);
    await commit(tables, () => {
      batch.write();
      rememberCommands(tables, dedupe, commands);
    });
    this.#dropped += batch.dropped;
  }

  /** It is committed; `failure`: and not surely on the disk, where that was asked for. */
  #finish(step: InboxStep, failure: BrokerError | undefined): void {
    if (step.kind === "command") {
      this.#commands++;
      const { message, copies, draft } = step;
      const { origin } = draft;
      this.#parts.publisher.publish({
        kind: "command",
        message,
        copies,
        origin,
      });
      this.#unshown.delete(message.messageId);
    }
    if (failure === undefined) step.done();
    else step.fail(failure);
  }
}

function noFailure(): undefined {}
