// Delivers one endpoint's events while this node holds the endpoint's lease. Has one lane for each
// partition, and another set of lanes for each replay. State: the lanes, the states that are not
// written yet, and the pause of an endpoint that is down. The number of requests in flight bounds
// the memory that a runner uses.

import type { EventPosition as Position } from "../broker/event-ports.ts";
import { EVENTS_START, EVENT_PARTITIONS as PARTITIONS } from "../broker/event-ports.ts";
import type { Lease } from "../broker/lease-ports.ts";
import type { WebhookFormat, WebhookLease, WebhookStore } from "../broker/webhook-ports.ts";
import { CoalescedTask } from "../lib/coalesced-task.ts";
import { ifReadable } from "../lib/readable.ts";
import { Semaphore } from "../lib/semaphore.ts";
import { type Batch, type PartitionState, restarted, resumed } from "./deliveries.ts";
import type { Endpoint, Replay } from "./endpoint.ts";
import { rowSelector, type Selection } from "./feed.ts";
import type { FeedTail } from "./feed-tail.ts";
import type { FormattedRequest, WebhookEvent } from "./formats.ts";
import { type Attempt, type FeedPage, IDLE, Lane, type ParkedEvent } from "./lane.ts";
import { acceptedRetryAfterMs, delayMs, type Verdict, verdictOf } from "./retries.ts";
import type { Outcome } from "./sender.ts";

/** Maximum number of requests to an endpoint at the same time. */
const MAX_IN_FLIGHT = 8;
/**
 * Maximum number of parked events per endpoint. If an endpoint has this number, its failing events
 * are retried but not parked.
 */
const MAX_PARKED = 1000;
/** Pause after a store or feed error. */
const ERROR_PAUSE_MS = 1000;
/**
 * Minimum time between two reports of store or feed errors, because 64 lanes may fail for the same
 * reason.
 */
const REPORT_MS = 10_000;
/**
 * Maximum duration of a pause, limited because the wall clock may be set forward meanwhile.
 */
const MAX_SLEEP_MS = 5000;
const LIVE = "live";
/** Number of undelivered gaps at which all other events wait until a gap is delivered. */
const MAX_GAPS = 64;
/** Replaces the partition in the state name of the lane that announces gaps. */
const GAPS = "gaps";

/** An attempt to send a batch, with the formatted request. */
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
  read(partition: number, after: Position, selection: Selection): Promise<FeedPage>;
  readonly tail: FeedTail;
  /** Called when events were lost before they were delivered. */
  onLost(events: number): void;
  /** Returns the time in Unix milliseconds. Never jumps backward by more than a second. */
  readonly now: () => number;
  readonly formatOf: ConstructorParameters<typeof Lane>[1]["formatOf"];
  /** Sends a signed request and records the attempt. Never rejects. */
  deliver(endpoint: Endpoint, delivery: Delivery): Promise<Outcome>;
  /**
   * Disables the endpoint and stores the reason. Has no effect if the endpoint is already disabled,
   * or was enabled again or given a different URL or secret after `endpoint` was read.
   */
  disable(endpoint: Endpoint, reason: string): Promise<void>;
  /** Removes a replay that has ended. Rejects if the replay was not removed. */
  endReplay(replay: Replay): Promise<void>;
  onError(error: unknown, message: string): void;
  /** Returns false while the lease may have expired. */
  isLeaseValid(): boolean;
  /** Called when another node has the lease. */
  onLeaseLost(): void;
}

/** A parked event, the form of its request, and the receiver's last reply. */
export interface ParkedText {
  readonly event: ParkedEvent["event"];
  /** Id of the request, which is the same for every attempt. */
  readonly requestId: string;
  readonly format: WebhookFormat;
  readonly isSingle: boolean;
  /** Time at which the event's batch was formed. The body of the request contains this time. */
  readonly formedMs: number;
  readonly parkedMs: number;
  readonly attempts: number;
  readonly status: number;
  readonly error: string;
  readonly reply: string;
}

/** State of a lane in the form in which it is stored. */
interface StoredState extends PartitionState {
  /** The endpoint's `enabledAtMs` at the time the state was stored. */
  readonly enabledAtMs: number;
}

class LeaseLost extends Error {}

/**
 * Thrown before a request if the runner is stopping or its lease may have expired. Also thrown
 * after a request that was not accepted if the runner has stopped. The result of that request is
 * not recorded.
 */
class Stopped extends Error {}

/**
 * Lanes of the live delivery or of a replay: one for each partition, and one that announces gaps.
 */
interface LaneSet {
  readonly name: string;
  readonly replay: Replay | undefined;
  readonly lanes: readonly Lane[];
  readonly gaps: Lane;
  announcing: Promise<unknown>;
  /**
   * Resolves when the lane `gaps` has delivered its batches. `undefined` if the lane has no
   * batches.
   */
  delivering: Promise<void> | undefined;
}

export class Runner {
  readonly #ports: RunnerPorts;
  readonly #lease: Lease;
  /**
   * Limits the number of lanes that perform a step at the same time, and therefore the number of
   * events in memory.
   */
  readonly #turns = new Semaphore(MAX_IN_FLIGHT);
  readonly #requests = new Semaphore(MAX_IN_FLIGHT);
  readonly #lanes = new Map<string, { readonly lane: Lane; readonly done: Promise<void> }>();
  /** Functions that end the waits of lanes. */
  readonly #wakers = new Set<() => void>();
  /**
   * States that are not written yet, by name. The states of several lanes are written in one call.
   */
  #states = new Map<string, string>();
  readonly #writes = new CoalescedTask(() => this.#writeStates());
  #isStopping = false;
  #endpoint: Endpoint;
  /** Ids of the parked events. */
  #parked = new Set<string>();
  #acceptedMs = 0;
  #pausedUntilMs = 0;
  /** Number of pauses since an accepted request last showed that the endpoint works. */
  #failures = 0;
  #reportedMs = Number.NEGATIVE_INFINITY;
  /** Counter that numbers requests and failures, so that their order is known. */
  #order = 0;
  #lastFailure = 0;
  #endListening: (() => void) | undefined;

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

  /** True if the runner was stopped, has lost its lease, or is disabling its endpoint. */
  get isStopping(): boolean {
    return this.#isStopping;
  }

  get parked(): number {
    return this.#parked.size;
  }

  /**
   * Returns the time of the oldest event in a batch that has not been accepted yet, or `undefined`
   * if there is no such batch. Replays are not included, because their events are old.
   */
  get oldestOpenMs(): number | undefined {
    const live = [...this.#lanes].filter(([name]) => isStateOf(LIVE, name));
    const times = live.flatMap(([, { lane }]) =>
      lane.state.batches.slice(0, 1).map(({ eventMs }) => eventMs),
    );
    return times.length === 0 ? undefined : Math.min(...times);
  }

  /**
   * Returns the number of events that have not been accepted yet, up to the `newest` event of each
   * partition.
   */
  lagBehind(newest: readonly Position[]): number {
    return newest.reduce((sum, { number }, partition) => {
      const lane = this.#lanes.get(stateName(LIVE, partition))?.lane;
      return sum + Math.max(0, number - (lane?.accepted.number ?? number));
    }, 0);
  }

  /**
   * Reads the stored state and starts delivering. If a state of the live delivery is damaged,
   * rejects and starts nothing. A replay that has a damaged state is not started.
   */
  async start(): Promise<void> {
    const { store } = this.#ports;
    const { id } = this.#endpoint;
    const [states] = await Promise.all([store.webhookTexts(id, "state"), this.#countParked()]);
    await this.#removeEnded(states);
    // If a state is damaged, `#open` throws before it runs a lane.
    this.#open(LIVE, this.#endpoint.from, undefined, states);
    this.#endListening = this.#ports.tail.listen();
    for (const replay of this.#endpoint.replays)
      try {
        this.#openReplay(replay, states);
      } catch (error) {
        this.#ports.onError(
          error,
          "The stored state of a replay is damaged; the replay is not started",
        );
      }
  }

  /**
   * Removes the states of replays that have ended, in case a node was killed before it removed
   * them.
   */
  async #removeEnded(states: ReadonlyMap<string, string>): Promise<void> {
    const deliveries = [LIVE, ...this.#endpoint.replays.map(({ id }) => id)];
    const isOpen = (name: string) => deliveries.some((delivery) => isStateOf(delivery, name));
    const ended = [...states.keys()].filter((name) => !isOpen(name));
    if (ended.length === 0) return;
    const state = new Map(ended.map((name) => [name, undefined]));
    await this.#ports.store.saveWebhookTexts(this.#target, { state });
  }

  /**
   * Applies changed settings, starts new replays, and counts the parked events again. If the
   * endpoint is disabled, the runner must be stopped instead.
   */
  async update(endpoint: Endpoint): Promise<void> {
    const openReplays = new Set(this.#endpoint.replays.map(({ id }) => id));
    this.#endpoint = endpoint;
    for (const replay of endpoint.replays)
      if (!openReplays.has(replay.id)) this.#openReplay(replay, new Map());
    this.#wakeAll();
    await this.#countParked();
  }

  /**
   * Stops the runner. Resolves when the requests in flight have ended. Accepted requests are
   * recorded, and the next runner repeats all other requests.
   */
  async stop(): Promise<void> {
    this.#halt();
    this.#endListening?.();
    await Promise.all([...this.#lanes.values()].map(({ done }) => done));
  }

  /** Stores the states of all lanes that have changed since they were last stored. */
  async flush(): Promise<void> {
    const lanes = [...this.#lanes.values()];
    await Promise.all(lanes.map(({ lane }) => this.#guarded(() => lane.flushAll())));
  }

  async #countParked(): Promise<void> {
    const texts = await this.#ports.store.webhookTexts(this.#endpoint.id, "parked");
    this.#parked = new Set(texts.keys());
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
    const endOf = (partition: number) =>
      replay === undefined ? undefined : (replay.before[partition]?.number ?? 0);
    const createLane = (key: number | string, position: Position, end: number | undefined) => {
      const name = stateName(delivery, key);
      const stored = states.get(name);
      const state =
        stored === undefined
          ? { position, batches: [] }
          : stateOf(stored, this.#endpoint.enabledAtMs, this.#ports.now());
      return new Lane(
        state,
        this.#lanePorts(() => set, key, end),
      );
    };
    const set: LaneSet = {
      ...{ name: delivery, replay, announcing: Promise.resolve(), delivering: undefined },
      lanes: Array.from({ length: PARTITIONS }, (_, at) =>
        createLane(at, from[at] ?? EVENTS_START, endOf(at)),
      ),
      gaps: createLane(GAPS, EVENTS_START, 0),
    };
    this.#runGaps(set);
    const running = set.lanes.map((lane, partition) => {
      const done = this.#run(lane, { partition, end: endOf(partition), gaps: set.gaps });
      this.#lanes.set(stateName(delivery, partition), { lane, done });
      return done;
    });
    if (replay === undefined) return;
    void Promise.all(running).then(async () => {
      await set.delivering;
      await this.#endReplay(replay);
    });
  }

  /**
   * Delivers the announced gaps. The other lanes of the set wait until all gaps are delivered, or
   * until the event of a gap has failed often enough to be parked (see `isBlockedBy`).
   */
  #runGaps(set: LaneSet): void {
    const { name, gaps, delivering } = set;
    if (delivering !== undefined || gaps.state.batches.length === 0) return;
    const done = this.#run(gaps, { partition: undefined, end: 0, gaps: undefined });
    this.#lanes.set(stateName(name, GAPS), { lane: gaps, done });
    set.delivering = done.then(() => {
      set.delivering = undefined;
      if (this.#isStopping) return undefined;
      this.#runGaps(set);
      this.#wakeAll();
      return set.delivering;
    });
  }

  /**
   * Announces a gap that a lane has found, together with the gaps of the other lanes, in one event.
   * Returns true if no announced gap blocks the lane (see `isBlockedBy`).
   */
  #announce(set: LaneSet, partition: number, after: Position): Promise<boolean> {
    const announcement = set.announcing.then(async () => {
      if ((await this.#gapAfter(set, partition, after)) !== undefined) {
        const places = set.lanes.map(({ accepted }, at) => (at === partition ? after : accepted));
        await this.#announceAll(set, places);
      }
      return !isBlockedBy(set.gaps);
    });
    set.announcing = announcement.catch(() => {});
    return announcement;
  }

  /** Announces the gaps after the positions, except the parts that have already been announced. */
  async #announceAll(set: LaneSet, places: readonly Position[]): Promise<void> {
    const { announced = [] } = set.gaps.state;
    const gapsByPartition = await Promise.all(
      places.map((place, at) => this.#gapAfter(set, at, place)),
    );
    const gaps = gapsByPartition.filter((gap) => gap !== undefined);
    const [first] = gaps;
    if (first === undefined) return;
    const count = gaps.reduce((sum, { event }) => sum + Number(event.data.count), 0);
    const next = gapsByPartition.map((gap, at) =>
      gap === undefined ? (announced[at] ?? null) : { after: gap.after, end: gap.end },
    );
    const { event } = first;
    const batch = this.#gapBatch({ ...event, data: { ...event.data, count } });
    await set.gaps.putGap(batch, next);
    if (set.replay === undefined) this.#ports.onLost(count);
    this.#runGaps(set);
  }

  /**
   * Returns the gap after a position. If a gap after the position has already been announced, the
   * result's `event` covers only the events that were lost since that announcement.
   */
  async #gapAfter({ replay, gaps }: LaneSet, partition: number, after: Position) {
    const { types, channels } = this.#endpoint.settings;
    const through = replay?.before[partition]?.number;
    const earlier = gaps.state.announced?.[partition];
    const from = isSamePosition(earlier?.after, after) ? (earlier?.end ?? after) : after;
    const page = await this.#ports.read(partition, from, { types, channels, limit: 1, through });
    return page.gap && { event: page.gap, after, end: page.start };
  }

  /**
   * Returns the batch for a `feed.gap` event, or `undefined` if the format cannot represent the
   * event.
   */
  #gapBatch(event: WebhookEvent): Batch | undefined {
    const { types, channels, format, batch } = this.#endpoint.settings;
    if (this.#ports.formatOf(format).groupOf(event) === undefined) return undefined;
    const nowMs = this.#ports.now();
    return {
      ...{ after: EVENTS_START, first: 0, last: EVENTS_START, count: 1, gap: event },
      ...{ eventMs: nowMs, formedMs: nowMs, dueMs: nowMs, attempts: 0 },
      settings: { types, channels, format, isSingle: batch.max === 1 },
    };
  }

  /** Returns the ports for a partition's lane, or for the lane `GAPS`. */
  #lanePorts(set: () => LaneSet, key: number | string, end: number | undefined) {
    const { now, formatOf, read } = this.#ports;
    const partition = typeof key === "number" ? key : undefined;
    return {
      ...{ now, formatOf, random: Math.random, steadyMs: () => performance.now() },
      settings: () => {
        const { settings } = this.#endpoint;
        const { types = [] } = set().replay ?? {};
        return types.length === 0 ? settings : { ...settings, types };
      },
      read: (
        after: Position,
        selection: Attempt["batch"]["settings"],
        limit: number,
        last?: number,
      ) =>
        partition === undefined
          ? Promise.resolve(NO_EVENTS)
          : read(partition, after, { ...selection, limit, through: last ?? end }),
      send: async (attempt: Attempt) =>
        this.#send(attempt, partition ?? 0, set().replay !== undefined),
      save: (state: PartitionState, parked?: ParkedEvent) =>
        this.#save(
          stateName(set().name, key),
          state,
          parked && this.#parkedText(parked, partition ?? 0),
        ),
      announce: async (after: Position) =>
        partition === undefined || this.#announce(set(), partition, after),
      acceptedMs: () => this.#acceptedMs,
      mayPark: () => this.#parked.size < MAX_PARKED,
      pausedUntilMs: () => this.#pausedUntilMs,
      disable: (reason: string) => this.#disable(reason),
    };
  }

  async #run(
    lane: Lane,
    {
      partition,
      end,
      gaps,
    }: {
      /** The lane's partition, or `undefined` for the lane that announces gaps. */
      readonly partition: number | undefined;
      readonly end: number | undefined;
      /** Lane whose batches are delivered first. */
      readonly gaps: Lane | undefined;
    },
  ): Promise<void> {
    // Time on the monotonic clock until which unsent events may wait for further events.
    let fillUntilMs = Number.NEGATIVE_INFINITY;
    while (!this.#isStopping) {
      const mustWait = gaps !== undefined && isBlockedBy(gaps);
      const { waitMs, notices, startedMs } = mustWait
        ? NO_TURN
        : await this.#turn(lane, partition, fillUntilMs);
      const { position, batches } = lane.state;
      const isAtEnd = end !== undefined && (waitMs === IDLE || position.number >= end);
      if (isAtEnd && batches.length === 0) break;
      if (waitMs === 0 || this.#isStopping) continue;
      if (mustWait || waitMs !== IDLE || partition === undefined) {
        await this.#guarded(() => lane.flush());
        const isFilling = startedMs !== 0 && lane.isFilling; // out of date if no turn has run
        const fillMs = isFilling ? Math.max(0, fillUntilMs - performance.now()) : IDLE;
        const pauseMs = Math.min(waitMs, fillMs, MAX_SLEEP_MS);
        await this.#pause(lane, pauseMs, startedMs === 0 ? undefined : { partition, notices });
        continue;
      }
      const { waitMs: fillMs } = this.#endpoint.settings.batch;
      if (!lane.isFilling) {
        // Events that the turn did not read were stored after its start, so the time for which they
        // wait is measured from that start.
        fillUntilMs = startedMs + fillMs;
        if (notices === this.#ports.tail.notices(partition)) {
          await this.#guarded(() => lane.flush());
          await this.#idle(lane, partition, notices);
          fillUntilMs = performance.now() + fillMs;
        }
      }
      const isChanged = await this.#fill(lane, partition, fillUntilMs);
      if (isChanged) fillUntilMs = Number.NEGATIVE_INFINITY;
    }
    await lane.flushAll().catch(() => {}); // on failure, requests are sent again
  }

  /**
   * Waits for `ms` milliseconds. If the lane may form another batch and the endpoint is not paused,
   * a new event in the partition that the last turn read (`read`) ends the wait early.
   */
  async #pause(
    lane: Lane,
    ms: number,
    read: { readonly partition: number | undefined; readonly notices: number } | undefined,
  ): Promise<void> {
    const { tail } = this.#ports;
    const isPaused = this.#pausedUntilMs > this.#ports.now();
    const partition = lane.mayForm && !isPaused ? read?.partition : undefined;
    if (partition === undefined) await this.#sleep(ms);
    else if (read?.notices === tail.notices(partition))
      await this.#sleep(ms, (wake) => tail.onNumber(partition, 0, wake));
  }

  /**
   * Waits until the partition has an event that the lane delivers, or until the settings change.
   */
  async #idle(lane: Lane, partition: number, notices: number): Promise<void> {
    const { tail } = this.#ports;
    if (notices !== tail.notices(partition)) return;
    const selects = rowSelector(this.#endpoint.settings);
    const skip = (position: Position) => void lane.skip(position);
    const { position } = lane.state;
    await this.#sleep(IDLE, (wake) => tail.addIdle(partition, { position, selects, skip, wake }));
  }

  /**
   * Waits until there may be enough events for a full request, but at most until `untilMs` on the
   * monotonic clock. Returns true if `#wakeAll` has ended the wait.
   */
  async #fill(lane: Lane, partition: number, untilMs: number): Promise<boolean> {
    const { tail } = this.#ports;
    const waitMs = untilMs - performance.now();
    if (waitMs <= 0 || tail.hasNumber(partition, lane.fullAt)) return false;
    return this.#sleep(waitMs, (wake) => tail.onNumber(partition, lane.fullAt, wake));
  }

  /**
   * Performs a step of a lane. Until `fillUntilMs`, events that do not fill a request are not sent.
   */
  async #turn(lane: Lane, partition: number | undefined, fillUntilMs: number) {
    const { tail, isLeaseValid } = this.#ports;
    let notices = 0;
    let startedMs = 0;
    const waitMs = await this.#guarded(() =>
      this.#turns.run(async () => {
        if (this.#isStopping) return IDLE;
        if (!isLeaseValid()) return ERROR_PAUSE_MS;
        startedMs = performance.now();
        if (partition !== undefined) notices = tail.notices(partition);
        return lane.turn(startedMs < fillUntilMs);
      }),
    );
    return waitMs === undefined ? NO_TURN : { waitMs, notices, startedMs };
  }

  /** Runs a step of a lane. If the step fails, handles the error and returns `undefined`. */
  async #guarded<Result>(step: () => Promise<Result>): Promise<Result | undefined> {
    try {
      return await step();
    } catch (error) {
      if (error instanceof Stopped) return undefined;
      if (error instanceof LeaseLost) {
        this.#halt();
        this.#ports.onLeaseLost();
      } else this.#report(error, "Events could not be delivered to a webhook; trying again");
      return undefined;
    }
  }

  #report(error: unknown, message: string): void {
    const nowMs = performance.now();
    if (nowMs - this.#reportedMs < REPORT_MS) return;
    this.#reportedMs = nowMs;
    this.#ports.onError(error, message);
  }

  async #send(
    { batch, events }: Attempt,
    partition: number,
    isReplay: boolean,
  ): Promise<Outcome & { readonly verdict: Verdict }> {
    const { settings, formedMs } = batch;
    const timestamp = new Date(formedMs).toISOString();
    const format = this.#ports.formatOf(settings.format);
    const id = requestIdOf(batch, events[0]?.event, partition);
    return this.#requests.run(async () => {
      // The lease may have expired while the events were read or other requests were in flight.
      if (this.#isStopping || !this.#ports.isLeaseValid()) throw new Stopped();
      this.#order += 1;
      const request = { startedMs: this.#ports.now(), order: this.#order };
      const outcome = await this.#ports.deliver(this.#endpoint, {
        id,
        request: format.format(events, { isSingle: settings.isSingle, timestamp }),
        attempt: batch.attempts + 1,
        events: events.length,
        partition,
        isReplay,
      });
      const verdict = verdictOf(outcome);
      // While the runner stops, a request may fail because it was aborted or was sent to an earlier
      // URL. The failure is ignored, and the next runner sends the request again.
      if (this.#isStopping && verdict !== "accepted") throw new Stopped();
      this.#note(outcome, verdict, request);
      return { ...outcome, verdict };
    });
  }

  #note(
    { retryAfterMs }: Outcome,
    verdict: Verdict,
    { startedMs, order }: { readonly startedMs: number; readonly order: number },
  ): void {
    const nowMs = this.#ports.now();
    if (verdict === "accepted") {
      this.#acceptedMs = Math.max(this.#acceptedMs, startedMs); // replies may arrive out of order
      // A request that began before the last failure does not show that the receiver has recovered.
      if (this.#lastFailure === 0 || order < this.#lastFailure) return;
      this.#lastFailure = 0;
      this.#failures = 0;
      this.#pausedUntilMs = 0;
      this.#wakeAll();
    } else if (verdict === "down" || verdict === "failed") {
      this.#order += 1;
      this.#lastFailure = this.#order;
      if (verdict === "failed") return;
      if (this.#pausedUntilMs <= nowMs) {
        this.#failures += 1;
        this.#pausedUntilMs = nowMs + delayMs(this.#failures, Math.random());
      }
      const askedUntilMs = nowMs + acceptedRetryAfterMs(retryAfterMs);
      this.#pausedUntilMs = Math.max(this.#pausedUntilMs, askedUntilMs);
    }
  }

  #parkedText(
    { batch, event, outcome }: ParkedEvent,
    partition: number,
  ): readonly [string, string] {
    const { status, error, reply } = outcome;
    const { format, isSingle } = batch.settings;
    const text: ParkedText = {
      ...{ event, requestId: requestIdOf(batch, event, partition), format, isSingle },
      ...{ formedMs: batch.formedMs, parkedMs: this.#ports.now() },
      ...{ attempts: batch.attempts + 1, status, error, reply },
    };
    return [event.id, JSON.stringify(text)];
  }

  async #save(
    name: string,
    state: PartitionState,
    parked: readonly [string, string] | undefined,
  ): Promise<void> {
    const stored: StoredState = { ...state, enabledAtMs: this.#endpoint.enabledAtMs };
    const text = JSON.stringify(stored);
    if (parked === undefined) {
      this.#states.set(name, text);
      return this.#writes.run();
    }
    // The parked event is written separately. If the disk is full, only this write is rejected, and
    // the other lanes' states are still written.
    await this.#write(new Map([[name, text]]), new Map([parked]));
    this.#parked.add(parked[0]);
  }

  async #writeStates(): Promise<void> {
    const states = this.#states;
    this.#states = new Map();
    await this.#write(states, new Map());
  }

  async #write(
    state: ReadonlyMap<string, string>,
    parked: ReadonlyMap<string, string>,
  ): Promise<void> {
    const isSaved = await this.#ports.store.saveWebhookTexts(this.#target, { state, parked });
    if (!isSaved) throw new LeaseLost();
  }

  get #target(): WebhookLease {
    return { webhookId: this.#endpoint.id, token: this.#lease.token };
  }

  async #disable(reason: string): Promise<void> {
    if (this.#isStopping) return;
    this.#halt();
    await this.#ports.disable(this.#endpoint, reason);
  }

  /** Removes a replay that has ended, with its states. Retries until the removal succeeds. */
  async #endReplay(replay: Replay): Promise<void> {
    const keys = [GAPS, ...Array.from({ length: PARTITIONS }, (_, at) => at)];
    const names = keys.map((key) => stateName(replay.id, key));
    for (const name of names) this.#lanes.delete(name);
    const state = new Map(names.map((name) => [name, undefined]));
    while (!this.#isStopping)
      try {
        await this.#ports.endReplay(replay);
        await this.#ports.store.saveWebhookTexts(this.#target, { state });
        return;
      } catch (error) {
        this.#report(error, "A replay could not be ended; trying again");
        await this.#sleep(ERROR_PAUSE_MS);
      }
  }

  /**
   * Waits for `ms` milliseconds, or without a time limit if `ms` is `IDLE`. `listen` registers a
   * function that ends the wait, and returns a function that removes it. Resolves to true if
   * `#wakeAll` ended the wait or the runner is stopping.
   */
  #sleep(ms: number, listen?: (wake: () => void) => () => void): Promise<boolean> {
    // The runner may have been stopped since the last turn, for example while a state was stored.
    if (this.#isStopping) return Promise.resolve(true);
    return new Promise((resolve) => {
      const end = (isChanged: boolean) => {
        clearTimeout(timer);
        this.#wakers.delete(wake);
        endListening?.();
        resolve(isChanged);
      };
      const wake = () => end(true);
      const timer = ms === IDLE ? undefined : setTimeout(() => end(false), ms);
      const endListening = listen?.(() => end(false));
      this.#wakers.add(wake);
    });
  }

  #halt(): void {
    this.#isStopping = true;
    this.#wakeAll();
  }

  #wakeAll(): void {
    for (const wake of [...this.#wakers]) wake();
  }
}

/**
 * Returns the positions up to which the endpoint has accepted all events of the live delivery. For
 * a partition whose state is missing or cannot be read, returns the position in `from`.
 */
export function acceptedPositions(
  { from }: Endpoint,
  states: ReadonlyMap<string, string>,
  onDamage: (error: Error, what: string) => void,
): readonly Position[] {
  return Array.from({ length: PARTITIONS }, (_, partition) => {
    const first = from[partition] ?? EVENTS_START;
    const text = states.get(stateName(LIVE, partition));
    if (text === undefined) return first;
    const read = (): Position => {
      const { batches, position }: PartitionState = JSON.parse(text); // as written by a runner
      return batches[0]?.after ?? position;
    };
    const what =
      "Could not read a webhook's position in a feed partition, so the partition's events since the creation of the webhook are kept until the feed exceeds its size limit";
    return ifReadable(read, what, onDamage) ?? first;
  });
}

/**
 * Returns true if the events after the gaps must wait. They do not wait for a gap whose event has
 * failed often enough to be parked, because that event is parked only if the receiver accepts other
 * events. If there are `MAX_GAPS` gaps, the events wait, because each further loss would add a gap.
 */
function isBlockedBy(gaps: Lane): boolean {
  const { length } = gaps.state.batches;
  return length >= MAX_GAPS || (length > 0 && !gaps.isStuck);
}

/** Returns the id of the request that contains a batch whose first event is `event`. */
function requestIdOf(
  { settings, gap, first, last }: Batch,
  event: WebhookEvent | undefined,
  partition: number,
): string {
  const isOne = settings.isSingle || gap !== undefined;
  return isOne && event ? event.id : `${partition}-${first}-${last.number}`;
}

/** Result that is used for a turn that failed, or that was not performed. */
const NO_TURN = { waitMs: ERROR_PAUSE_MS, notices: 0, startedMs: 0 };

/** Page of the lane that announces gaps, which reads nothing. */
const NO_EVENTS: FeedPage = {
  ...{ events: [], start: EVENTS_START, end: EVENTS_START },
  ...{ more: false, gap: undefined },
};

/**
 * Returns the name of a state. `delivery` is `LIVE` or the id of a replay. `key` is a partition, or
 * `GAPS` for the lane that announces gaps.
 */
function stateName(delivery: string, key: number | string): string {
  return `${delivery}/${key}`;
}

function isStateOf(delivery: string, name: string): boolean {
  return name.startsWith(`${delivery}/`);
}

function isSamePosition(a: Position | undefined, b: Position): boolean {
  return a !== undefined && a.number === b.number && a.id === b.id;
}

/**
 * Parses a stored state. The batches start over if the endpoint was enabled again or given a
 * different URL or secret after the state was stored. The failure times cannot show this, because a
 * runner keeps storing failures until it has read the change.
 */
function stateOf(text: string, enabledAtMs: number, nowMs: number): PartitionState {
  const state: StoredState = JSON.parse(text); // as written by a runner
  const isCurrent = state.enabledAtMs === enabledAtMs;
  const batches = state.batches.map((batch) =>
    isCurrent ? resumed(batch, nowMs) : restarted(batch),
  );
  return { ...state, batches };
}
