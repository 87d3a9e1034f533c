// Decides whether this node writes the on-demand events: `session.opened`, `session.closed` and
// `command.sent`. These events are frequent, so the node writes them only while an enabled webhook
// or a reader of the feed requests them. Every node reads these requests once a second. State: the
// timer, the result of the last read, and the times at which readers' requests were last stored.

import {
  DEMAND_KINDS,
  type DemandKind,
  type EventDemand,
  type EventDemandStore,
  NO_DEMAND,
  ON_DEMAND_TYPES,
} from "./event-demand-ports.ts";
import type { EventStore } from "./event-ports.ts";

interface DemandPorts {
  readonly store: EventDemandStore & Pick<EventStore, "feedSwitch">;
  readonly webhookTypes: () => Promise<readonly (readonly string[])[]>;
  readonly clock: () => number;
  onDemand(kind: DemandKind, isWritten: boolean): void;
  onError(error: unknown, message: string): void;
}

/** Interval at which a node reads which events are requested. */
const READ_MS = 1000;
/** Minimum time between two calls of `noteReader` by this node for the same kind. */
const NOTED_MS = 10_000;
/**
 * Time for which requested events are written after a reader's request was stored. Requests for one
 * kind are stored at most once every `NOTED_MS`, so the events of that kind are written for at
 * least 90 s after the last request.
 */
const READER_MS = 90_000 + NOTED_MS;

export class EventDemandWatch {
  readonly #ports: DemandPorts;
  readonly #notedMs = new Map<DemandKind, number>();
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> = Promise.resolve();
  #isOn = false;
  #isClosed = false;

  constructor(ports: DemandPorts) {
    this.#ports = ports;
  }

  /** True if the feed was on when its switch was last read. */
  get isOn(): boolean {
    return this.#isOn;
  }

  async start(): Promise<void> {
    await this.refresh();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    clearTimeout(this.#timer);
    await this.#reading;
  }

  /** Reads immediately which events are requested. */
  refresh(): Promise<void> {
    clearTimeout(this.#timer);
    this.#reading = this.#reading
      .then(() => this.#read())
      .catch((error: unknown) =>
        this.#ports.onError(error, "Could not read which event types are requested; trying again"),
      )
      .finally(() => {
        clearTimeout(this.#timer);
        if (!this.#isClosed) this.#timer = setTimeout(() => this.refresh(), READ_MS).unref();
      });
    return this.#reading;
  }

  /** Stores which on-demand events a reader requests, at most once per `NOTED_MS` for each kind. */
  async note(types: readonly string[]): Promise<void> {
    const { store, clock } = this.#ports;
    const nowMs = performance.now();
    const kinds = demandedKinds(types).filter(
      (kind) => nowMs - (this.#notedMs.get(kind) ?? -Infinity) >= NOTED_MS,
    );
    if (kinds.length === 0) return;
    // The time is set before the write, so that requests made during the write do not repeat it.
    for (const kind of kinds) this.#notedMs.set(kind, nowMs);
    try {
      await store.noteReader(kinds, clock() + READER_MS);
    } catch (error) {
      for (const kind of kinds) this.#notedMs.delete(kind);
      throw error;
    }
    await this.refresh();
  }

  async #read(): Promise<void> {
    if (this.#isClosed) return;
    const { store, onDemand } = this.#ports;
    this.#isOn = (await store.feedSwitch()) === true;
    const demand = this.#isOn ? await this.#demand() : NO_DEMAND;
    await store.setDemand(demand);
    for (const kind of DEMAND_KINDS) onDemand(kind, demand[kind]);
  }

  async #demand(): Promise<EventDemand> {
    const { store, webhookTypes, clock } = this.#ports;
    const [readers, webhooks] = await Promise.all([store.readerDemand(), webhookTypes()]);
    const named = new Set<DemandKind>(webhooks.flatMap(demandedKinds));
    const nowMs = clock();
    const isWanted = (kind: DemandKind) => named.has(kind) || readers[kind] > nowMs;
    return { feed: true, session: isWanted("session"), command: isWanted("command") };
  }
}

/**
 * Returns the kinds that `types` names. A kind is named by the exact name of one of its types, or
 * by `session.*` or `command.*`.
 */
function demandedKinds(types: readonly string[]): readonly DemandKind[] {
  return DEMAND_KINDS.filter((kind) =>
    types.some((name) => name === `${kind}.*` || (isOnDemand(name) && name.startsWith(`${kind}.`))),
  );
}

export function isOnDemand(type: string): boolean {
  return ON_DEMAND.has(type);
}

const ON_DEMAND: ReadonlySet<string> = new Set(ON_DEMAND_TYPES);
