// Writes the events of steps that change the database. A step's transaction also puts its events
// into the table `outbox`, so an event is stored if and only if its change is stored. Afterwards, a
// call in the message queue assigns ids to the events and writes them to the WAL. The checkpoint
// that adds the events to the feed removes them from the outbox. State: events that wait for ids.

import { BrokerError } from "../../../broker/errors.ts";
import { EVENT_TYPES, type EventDraft } from "../../../broker/event-ports.ts";
import { toBrokerError } from "../../lifecycle.ts";
import { commitStep, ensureDurable, fieldsOf } from "../engine/database.ts";
import type { Purpose } from "../engine/disk-space.ts";
import type { EventLog } from "../engine/event-log.ts";
import { type EventRecord, maxEventBytes } from "../engine/event-record.ts";
import type { Tables } from "../engine/tables.ts";
import type { Assigner } from "./assigner.ts";

const VERSION = 1;
/** Maximum number of events without an id. It is reached only while the WAL cannot be written. */
const MAX_WAITING = 10_000;
const RETRY_MS = 1000;

/** Adds an event to the step. */
export type Emit = (event: EventDraft) => void;

/** An event in the outbox that has no id yet. */
type WaitingEvent = Omit<EventRecord, "id">;

/** See `QueuedStep` in `append.ts`, which this file must not import. */
interface IdStep {
  assign(nowMs: number): void;
  commit(): void;
  rollBack(): void;
  readonly reject: (error: BrokerError) => void;
}

interface OutboxPorts {
  readonly tables: Tables;
  readonly events: EventLog;
  readonly appends: {
    /** See `Appends.enqueue`. */
    enqueue(step: IdStep, bytes: number): void;
  };
  readonly assigner: Pick<Assigner, "assignEvent">;
  readonly onError: (error: Error, what: string) => void;
}

export class EventOutbox {
  readonly #ports: OutboxPorts;
  #lastKey = 0;
  /** Events that wait for ids. `assign` sorts them by key, which is the order of their steps. */
  #waiting: WaitingEvent[] = [];
  #retry: NodeJS.Timeout | undefined;

  constructor(ports: OutboxPorts) {
    this.#ports = ports;
  }

  /**
   * Assigns ids to the events that had no id when the previous process ended. Must be called on
   * startup.
   */
  async recover(): Promise<void> {
    const numbered = this.#ports.events.numberedKeys();
    for (const key of numbered) this.#lastKey = Math.max(this.#lastKey, key);
    for (const key of this.#ports.tables.outbox.getKeys()) {
      this.#lastKey = Math.max(this.#lastKey, key);
      if (numbered.has(key)) continue;
      try {
        this.#waiting.push(this.#read(key));
      } catch (error) {
        this.#ports.onError(
          error as Error,
          "Could not read an event, so it is left out of the feed",
        );
      }
    }
    if (this.#waiting.length > 0) await this.#assignIds();
  }

  #read(outboxKey: number): WaitingEvent {
    const stored = this.#ports.tables.outbox.get(outboxKey) ?? [];
    const [type, subject, messageSeq, fields] = fieldsOf(stored, VERSION);
    return {
      outboxKey,
      type: EVENT_TYPES[Number(type)] ?? "message.stored",
      key: String(subject),
      messageSeq: Number(messageSeq),
      fields: String(fields),
    };
  }

  /** Runs a step like `commit`, but rejects if `commit` resolves with a `failure`. */
  async transact<Result>(
    step: (emit: Emit | undefined) => Result,
    purpose?: Purpose,
  ): Promise<Result> {
    const { result, failure } = await this.commit(step, purpose);
    if (failure !== undefined) throw failure;
    return result;
  }

  /**
   * Runs a step like `transact` in `database.ts`. `emit` adds an event to the step, and is
   * `undefined` while the feed is off. Resolves after the events have their ids, so that later
   * messages follow them in the feed. Also resolves if the ids cannot be written: the step is
   * committed, so the caller must publish the change. The events receive their ids later. `failure`
   * is set if the commit must be on the disk but may not have reached the disk. The caller must
   * then publish the change and reject with `failure`.
   */
  async commit<Result>(
    step: (emit: Emit | undefined) => Result,
    purpose?: Purpose,
  ): Promise<{ readonly result: Result; readonly failure: BrokerError | undefined }> {
    const { tables, events } = this.#ports;
    if (this.#waiting.length > MAX_WAITING) throw new BrokerError("overloaded");
    const emitted: WaitingEvent[] = [];
    const emit: Emit = ({ type, key, messageSeq, fields: content }) => {
      const fields = JSON.stringify(content);
      const outboxKey = ++this.#lastKey;
      const value = [VERSION, EVENT_TYPES.indexOf(type), key, messageSeq, fields];
      void tables.outbox.put(outboxKey, value);
      emitted.push({ outboxKey, type, key, messageSeq, fields });
    };
    const result = await commitStep(tables, () => step(events.isOn ? emit : undefined), purpose);
    const failure = await ensureDurable(tables).then(() => undefined, toBrokerError);
    if (emitted.length === 0) return { result, failure };
    this.#waiting.push(...emitted);
    await this.#assignIds().catch(() => {}); // the outbox has the events, and a retry is scheduled
    return { result, failure };
  }

  close(): void {
    clearTimeout(this.#retry);
  }

  /** Assigns ids to all waiting events. If the write fails, rejects and tries again later. */
  #assignIds(): Promise<void> {
    const { appends, assigner, events } = this.#ports;
    let batch: WaitingEvent[] = [];
    let assigned: EventRecord[] = [];
    const bytes = this.#waiting.reduce((sum, event) => sum + maxEventBytes(event), 0);
    return new Promise((resolve, reject) => {
      appends.enqueue(
        {
          assign: (nowMs) => {
            batch = this.#waiting.sort((a, b) => a.outboxKey - b.outboxKey);
            this.#waiting = [];
            assigned = batch.map((event) => assigner.assignEvent(event, nowMs));
          },
          commit: () => {
            for (const event of assigned) events.add(event);
            resolve();
          },
          rollBack: () => {
            this.#waiting = [...batch, ...this.#waiting];
            batch = [];
            this.#retry ??= setTimeout(() => this.#tryAgain(), RETRY_MS).unref();
          },
          reject,
        },
        bytes,
      );
    });
  }

  #tryAgain(): void {
    this.#retry = undefined;
    this.#assignIds().catch((error: Error) =>
      this.#ports.onError(error, "Could not write events; trying again"),
    );
  }
}
