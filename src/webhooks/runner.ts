// Delivers the events of one endpoint while this node holds its lease: one lane for each partition,
// and a second set of lanes for each replay. State: the lanes, and the pause of an endpoint that is
// down. Its memory is bounded by the number of requests in flight.

import type { EventPosition as Position } from "../broker/event-ports.ts";
import { EVENTS_START, EVENT_PARTITIONS as PARTITIONS } from "../broker/event-ports.ts";
import type { Lease } from "../broker/lease-ports.ts";
import type { WebhookLease, WebhookStore } from "../broker/webhook-ports.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { type PartitionState, restarted } from "./deliveries.ts";
import type { Endpoint, Replay } from "./endpoint.ts";
import type { Selection } from "./feed.ts";
import type { FormattedRequest } from "./formats.ts";
import { type Attempt, type FeedPage, IDLE, Lane, type ParkedEvent } from "./lane.ts";
import { acceptedRetryAfterMs, delayMs, type Verdict, verdictOf } from "./retries.ts";
import type { Outcome } from "./sender.ts";

/** Maximum number of requests to an endpoint at the same time. */
const MAX_IN_FLIGHT = 8;
/** Maximum number of parked events of an endpoint. If it is reached, failing events are retried. */
const MAX_PARKED = 1000;
/** Pause after an error of the store or the feed. */
const ERROR_PAUSE_MS = 1000;
/** Time after which a lane without events is looked at again, in case a notification was lost. */
const IDLE_MS = 5000;
const LIVE = "live";

/** A batch as it is sent. */
export interface Delivery {
  readonly id: string;
  readonly request: FormattedRequest;
  readonly attempt: number;
  readonly events: number;
  readonly partition: number;
  readonly isReplay: boolean;
}

interface RunnerPorts {
  readonly store: WebhookStore;
  /** Reads selected events of a partition. */
  read(partition: number, after: Position, selection: Selection): Promise<FeedPage>;
  /** Calls the listener when partitions may have new events. Returns a function that ends this. */
  onEvents(listener: (partitions: readonly number[]) => void): () => void;
  /** Called when events were lost before they were delivered. */
  onLost(events: number): void;
  readonly now: () => number;
  readonly formatOf: ConstructorParameters<typeof Lane>[1]["formatOf"];
  /** Sends a signed request and records the attempt. Never rejects. */
  deliver(endpoint: Endpoint, delivery: Delivery): Promise<Outcome>;
  /** Stores why the endpoint is disabled. */
  disable(reason: string): Promise<void>;
  /** Removes a replay that has ended. */
  endReplay(replay: Replay): Promise<void>;
  onError(error: unknown, message: string): void;
  /** Returns false while the lease may have expired. */
  isLeaseValid(): boolean;
  /** Called when another node has the lease. */
  onLeaseLost(): void;
}

/** A parked event with its source and the reply of its receiver. */
export interface ParkedText {
  readonly event: ParkedEvent["event"];
  readonly partition: number;
  readonly number: number;
  readonly parkedMs: number;
  readonly attempts: number;
  readonly status: number;
  readonly error: string;
  readonly reply: string;
}

class LeaseLost extends Error {}

export class Runner {
  readonly #ports: RunnerPorts;
  readonly #lease: Lease;
  readonly #inFlight = new Semaphore(MAX_IN_FLIGHT);
  readonly #lanes = new Map<string, { readonly lane: Lane; readonly done: Promise<void> }>();
  /** Functions that end the waits of lanes, with the partition whose events a lane waits for. */
  readonly #wakers = new Map<() => void, number | undefined>();
  /** Number of notifications about each partition, so that none is lost during a turn. */
  readonly #notices = new Uint32Array(PARTITIONS);
  #isStopping = false;
  #endpoint: Endpoint;
  #parked = 0;
  #acceptedMs = 0;
  #pausedUntilMs = 0;
  #failures = 0;
  #unsubscribe: (() => void) | undefined;

  constructor(endpoint: Endpoint, lease: Lease, ports: RunnerPorts) {
    this.#endpoint = endpoint;
    this.#lease = lease;
    this.#ports = ports;
  }

  get endpoint(): Endpoint {
    return this.#endpoint;
  }

  get lease(): Lease {
    return this.#lease;
  }

  /**
   * True if the runner delivers nothing more: it was stopped, has lost its lease, or disables its
   * endpoint.
   */
  get isStopping(): boolean {
    return this.#isStopping;
  }

  /** Returns the number of parked events. */
  get parked(): number {
    return this.#parked;
  }

  /**
   * Returns the time of the oldest event in a batch that was not accepted, `undefined` if there is no
   * such batch. Replays are not included, because their events are old.
   */
  get oldestOpenMs(): number | undefined {
    const live = [...this.#lanes].filter(([name]) => name.startsWith(`${LIVE}/`));
    const times = live.flatMap(([, { lane }]) =>
      lane.state.batches.slice(0, 1).map(({ eventMs }) => eventMs),
    );
    return times.length === 0 ? undefined : Math.min(...times);
  }

  /** Reads the stored state and begins to deliver. */
  async start(): Promise<void> {
    const { store } = this.#ports;
    const { id } = this.#endpoint;
    const [states] = await Promise.all([store.webhookTexts(id, "state"), this.#countParked()]);
    this.#unsubscribe = this.#ports.onEvents((partitions) => {
      for (const partition of partitions) {
        this.#notices[partition] = (this.#notices[partition] ?? 0) + 1;
        for (const [wake, awaited] of [...this.#wakers]) if (awaited === partition) wake();
      }
    });
    this.#open(LIVE, this.#endpoint.from, undefined, states);
    for (const replay of this.#endpoint.replays) this.#openReplay(replay, states);
  }

  /**
   * Applies changed settings, and counts the parked events again. The runner must be stopped instead
   * if the endpoint is disabled.
   */
  async update(endpoint: Endpoint): Promise<void> {
    const openReplays = new Set(this.#endpoint.replays.map(({ id }) => id));
    this.#endpoint = endpoint;
    for (const replay of endpoint.replays)
      if (!openReplays.has(replay.id)) this.#openReplay(replay, new Map());
    this.#wakeAll();
    await this.#countParked();
  }

  /** Stops after the requests in flight have ended and their results are stored. */
  async stop(): Promise<void> {
    this.#halt();
    this.#unsubscribe?.();
    await Promise.all([...this.#lanes.values()].map(({ done }) => done));
  }

  async #countParked(): Promise<void> {
    this.#parked = (await this.#ports.store.webhookTexts(this.#endpoint.id, "parked")).size;
  }

  #openReplay(replay: Replay, states: ReadonlyMap<string, string>): void {
    this.#open(replay.id, replay.after, replay, states);
  }

  #open(
    delivery: string,
    from: readonly Position[],
    replay: Replay | undefined,
    states: ReadonlyMap<string, string>,
  ): void {
    const lanes = Array.from({ length: PARTITIONS }, (_, partition) => {
      const name = stateName(delivery, partition);
      const stored = states.get(name);
      const position = from[partition] ?? EVENTS_START;
      const state =
        stored === undefined
          ? { position, batches: [] }
          : stateOf(stored, this.#endpoint.enabledAtMs);
      const end = replay === undefined ? undefined : (replay.before[partition]?.number ?? 0);
      const lane = new Lane(state, this.#lanePorts(name, partition, replay, end));
      const done = this.#run(lane, { partition, end });
      this.#lanes.set(name, { lane, done });
      return done;
    });
    if (replay === undefined) return;
    void Promise.all(lanes)
      .then(() => this.#endReplay(replay))
      .catch((error: unknown) => this.#ports.onError(error, "A replay could not be ended"));
  }

  #lanePorts(name: string, partition: number, replay: Replay | undefined, end: number | undefined) {
    const { now, formatOf, read, onLost } = this.#ports;
    const isReplay = replay !== undefined;
    return {
      ...{ now, formatOf, onLost, random: Math.random },
      settings: () => {
        const { settings } = this.#endpoint;
        const { types = [] } = replay ?? {};
        return types.length === 0 ? settings : { ...settings, types };
      },
      read: (
        after: Position,
        selection: Attempt["batch"]["settings"],
        limit: number,
        last?: number,
      ) => read(partition, after, { ...selection, limit, through: last ?? end }),
      send: async (attempt: Attempt) => this.#send(attempt, partition, isReplay),
      save: (state: PartitionState, parked?: ParkedEvent) =>
        this.#save(name, state, parked && this.#parkedText(parked, partition)),
      acceptedMs: () => this.#acceptedMs,
      mayPark: () => this.#parked < MAX_PARKED,
      pausedUntilMs: () => this.#pausedUntilMs,
      disable: (reason: string) => this.#disable(reason),
    };
  }

  async #run(
    lane: Lane,
    { partition, end }: { readonly partition: number; readonly end: number | undefined },
  ): Promise<void> {
    while (!this.#isStopping) {
      const notices = this.#notices[partition];
      const waitMs = await this.#turn(lane);
      const { position, batches } = lane.state;
      const isAtEnd = end !== undefined && (waitMs === IDLE || position.number >= end);
      if (isAtEnd && batches.length === 0 && !this.#isStopping) return;
      if (waitMs === 0 || this.#isStopping) continue;
      if (waitMs === IDLE && notices !== this.#notices[partition]) continue;
      const isNew = await this.#sleep(partition, Math.min(waitMs, IDLE_MS));
      if (isNew && waitMs === IDLE && !this.#isStopping)
        await this.#sleep(undefined, this.#endpoint.settings.batch.waitMs);
    }
    await lane.flush().catch(() => {}); // the requests are then repeated
  }

  async #turn(lane: Lane): Promise<number> {
    try {
      return await this.#inFlight.run(() => {
        if (this.#isStopping) return IDLE;
        return this.#ports.isLeaseValid() ? lane.turn() : ERROR_PAUSE_MS;
      });
    } catch (error) {
      if (error instanceof LeaseLost) {
        this.#halt();
        this.#ports.onLeaseLost();
      } else this.#ports.onError(error, "Events could not be delivered to a webhook; trying again");
      return ERROR_PAUSE_MS;
    }
  }

  async #send(
    { batch, events }: Attempt,
    partition: number,
    isReplay: boolean,
  ): Promise<Outcome & { readonly verdict: Verdict }> {
    const { settings, first, last, formedMs } = batch;
    const timestamp = new Date(formedMs).toISOString();
    const format = this.#ports.formatOf(settings.format);
    const [event] = events;
    const id = settings.isSingle && event ? event.id : `${partition}-${first}-${last.number}`;
    const outcome = await this.#ports.deliver(this.#endpoint, {
      id,
      request: format.format(events, { isSingle: settings.isSingle, timestamp }),
      attempt: batch.attempts + 1,
      events: events.length,
      partition,
      isReplay,
    });
    const verdict = verdictOf(outcome);
    this.#note(outcome, verdict);
    return { ...outcome, verdict };
  }

  #note({ retryAfterMs }: Outcome, verdict: Verdict): void {
    const nowMs = this.#ports.now();
    if (verdict === "accepted") {
      const wasPaused = this.#pausedUntilMs > nowMs;
      this.#acceptedMs = nowMs;
      this.#failures = 0;
      this.#pausedUntilMs = 0;
      if (wasPaused) this.#wakeAll();
    } else if (verdict === "down" && this.#pausedUntilMs <= nowMs) {
      this.#failures += 1;
      const pauseMs = delayMs(this.#failures, Math.random());
      this.#pausedUntilMs = nowMs + Math.max(pauseMs, acceptedRetryAfterMs(retryAfterMs));
    }
  }

  #parkedText(
    { batch, event, outcome }: ParkedEvent,
    partition: number,
  ): readonly [string, string] {
    const { status, error, reply } = outcome;
    const text: ParkedText = {
      ...{ event, partition, number: batch.first, parkedMs: this.#ports.now() },
      ...{ attempts: batch.attempts + 1, status, error, reply },
    };
    return [event.id, JSON.stringify(text)];
  }

  async #save(
    name: string,
    state: PartitionState,
    parked: readonly [string, string] | undefined,
  ): Promise<void> {
    const isSaved = await this.#ports.store.saveWebhookTexts(this.#target, {
      state: new Map([[name, JSON.stringify(state)]]),
      ...(parked && { parked: new Map([parked]) }),
    });
    if (!isSaved) throw new LeaseLost();
    if (parked !== undefined) this.#parked += 1;
  }

  get #target(): WebhookLease {
    return { webhookId: this.#endpoint.id, token: this.#lease.token };
  }

  async #disable(reason: string): Promise<void> {
    this.#halt();
    await this.#ports.disable(reason);
  }

  async #endReplay(replay: Replay): Promise<void> {
    if (this.#isStopping) return;
    const names = Array.from({ length: PARTITIONS }, (_, at) => stateName(replay.id, at));
    for (const name of names) this.#lanes.delete(name);
    await this.#ports.endReplay(replay);
    await this.#ports.store.saveWebhookTexts(this.#target, {
      state: new Map(names.map((name) => [name, undefined])),
    });
  }

  /** Waits. Returns true if an event or a change ended the wait before its time. */
  #sleep(partition: number | undefined, ms: number): Promise<boolean> {
    return new Promise((resolve) => {
      const wake = () => end(true);
      const timer = setTimeout(() => end(false), ms);
      const end = (isWoken: boolean) => {
        clearTimeout(timer);
        this.#wakers.delete(wake);
        resolve(isWoken);
      };
      this.#wakers.set(wake, partition);
    });
  }

  #halt(): void {
    this.#isStopping = true;
    this.#wakeAll();
  }

  #wakeAll(): void {
    for (const wake of [...this.#wakers.keys()]) wake();
  }
}

/** Returns the positions up to which the live delivery has had everything accepted. */
export function acceptedPositions(
  { from }: Endpoint,
  states: ReadonlyMap<string, string>,
): readonly Position[] {
  return Array.from({ length: PARTITIONS }, (_, partition) => {
    const text = states.get(stateName(LIVE, partition));
    if (text === undefined) return from[partition] ?? EVENTS_START;
    const { batches, position }: PartitionState = JSON.parse(text); // as written by a runner
    return batches[0]?.after ?? position;
  });
}

/** Returns the name of the state of a delivery, `LIVE` or the id of a replay, in a partition. */
function stateName(delivery: string, partition: number): string {
  return `${delivery}/${partition}`;
}

/** Parses a stored state. Batches that failed before the endpoint was enabled begin again. */
function stateOf(text: string, enabledAtMs: number): PartitionState {
  const state: PartitionState = JSON.parse(text); // as written by a runner
  const batches = state.batches.map((batch) =>
    (batch.failingSinceMs ?? enabledAtMs) < enabledAtMs ? restarted(batch) : batch,
  );
  return { ...state, batches };
}
