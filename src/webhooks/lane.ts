// Delivers the events of one feed partition to an endpoint. Each call to `turn` performs one step:
// it sends the batches that are due, or forms the next batch. State: the partition's state, and
// whether it must be stored again.

import type { EventPosition as Position } from "../broker/event-ports.ts";
import type { WebhookSettings } from "../broker/webhook-ports.ts";
import {
  type Batch,
  type BatchSettings,
  dueBatches,
  type Gap,
  maxBatches,
  type PartitionState,
  restarted,
  stepAfter,
} from "./deliveries.ts";
import {
  type EncodedEvent,
  encodeEvent,
  type Format,
  subjectOf,
  type WebhookEvent,
} from "./formats.ts";
import { ISOLATED_ATTEMPTS, type Verdict } from "./retries.ts";
import type { Outcome } from "./sender.ts";

export interface PlacedEvent extends EncodedEvent {
  readonly position: Position;
  /** Size of the JSON in bytes. */
  readonly bytes: number;
}

export interface FeedPage {
  readonly events: readonly PlacedEvent[];
  /**
   * Position before the events: the reader's position, or the position after `gap` if it is set.
   */
  readonly start: Position;
  /** Position after the last row that was examined. */
  readonly end: Position;
  /** True if the partition has rows after `end`. */
  readonly more: boolean;
  /**
   * `feed.gap` event for events that are missing before the page, or `undefined` if no event is
   * missing.
   */
  readonly gap: WebhookEvent | undefined;
}

export interface Attempt {
  readonly batch: Batch;
  readonly events: readonly EncodedEvent[];
}

interface LanePorts {
  readonly now: () => number;
  /** Monotonic clock in milliseconds. */
  readonly steadyMs: () => number;
  readonly random: () => number;
  readonly settings: () => WebhookSettings;
  readonly formatOf: (name: WebhookSettings["format"]) => Format;
  /** Reads at most `limit` selected events after a position, up to `through` if it is set. */
  read(
    after: Position,
    selection: BatchSettings,
    limit: number,
    through: number | undefined,
  ): Promise<FeedPage>;
  send(attempt: Attempt): Promise<Outcome & { readonly verdict: Verdict }>;
  /** Stores the state and, if `parked` is set, the parked event. Rejects if the lease is lost. */
  save(state: PartitionState, parked?: ParkedEvent): Promise<void>;
  /** Returns the start time of the last accepted request, or 0 if none has been accepted yet. */
  acceptedMs(): number;
  /** Returns false if the endpoint already has the maximum number of parked events. */
  mayPark(): boolean;
  /**
   * Returns the time until which no request is sent, because the endpoint is down or asked for a
   * pause.
   */
  pausedUntilMs(): number;
  disable(reason: string): Promise<void>;
  /**
   * Called if events are missing after a position. Announces this gap to the endpoint, and returns
   * true if the events after the gap may be delivered now.
   */
  announce(after: Position): Promise<boolean>;
}

export interface ParkedEvent {
  readonly batch: Batch;
  readonly event: WebhookEvent;
  readonly outcome: Outcome;
}

/** Maximum total size of the events in one request. A larger first event is sent alone. */
export const MAX_BODY_BYTES = 1_000_000;

/**
 * Pause before another attempt with an event that could not be parked, for example because the disk
 * is full.
 */
const UNPARKED_PAUSE_MS = 10_000;

/** Result of `turn` if there is nothing to do until the feed has new events. */
export const IDLE = Number.POSITIVE_INFINITY;

export class Lane {
  readonly #ports: LanePorts;
  #state: PartitionState;
  /**
   * Change that the stored state lacks: `accepted` if a batch was accepted or postponed, `skipped`
   * if only events were skipped. The next call of `#change` stores it.
   */
  #unsaved: "nothing" | "skipped" | "accepted" = "nothing";
  /** See `fullAt`. */
  #fullAt = 0;
  /** True if events are held back because they do not fill a request yet. */
  #isFilling = false;
  #changing: Promise<void> = Promise.resolve();

  constructor(state: PartitionState, ports: LanePorts) {
    this.#state = state;
    this.#ports = ports;
  }

  get state(): PartitionState {
    return this.#state;
  }

  /** Position up to which the endpoint has accepted all events. */
  get accepted(): Position {
    return this.#state.batches[0]?.after ?? this.#state.position;
  }

  /** True if the first batch is a single event that has failed often enough to be parked. */
  get isStuck(): boolean {
    const [head] = this.#state.batches;
    return head !== undefined && isJudged(head);
  }

  /** True if another batch may be formed. */
  get mayForm(): boolean {
    return this.#state.batches.length < this.#maxBatches();
  }

  /** See `#isFilling`. */
  get isFilling(): boolean {
    return this.#isFilling;
  }

  /**
   * Number of the event with which the next request may be full. Valid after a turn that returned
   * `IDLE`.
   */
  get fullAt(): number {
    return this.#fullAt;
  }

  /**
   * Sends the batches that are due, or forms the next batch if none is due. Returns the number of
   * milliseconds until the next turn, or `IDLE`. If `mayWait` is true, events that do not fill a
   * request are not sent yet.
   */
  async turn(mayWait = false): Promise<number> {
    const { now, settings, pausedUntilMs, acceptedMs } = this.#ports;
    this.#isFilling = false;
    const pauseMs = pausedUntilMs() - now();
    if (pauseMs > 0) return pauseMs;
    const { order } = settings();
    const due = dueBatches(this.#state, order, { nowMs: now(), acceptedMs: acceptedMs() });
    if (due.length > 0) {
      const attempts = await Promise.allSettled(due.map((batch) => this.#attempt(batch)));
      for (const attempt of attempts) if (attempt.status === "rejected") throw attempt.reason;
      return 0;
    }
    if (await this.#formBatch(mayWait)) return 0;
    const open = order === "none" ? this.#state.batches : this.#state.batches.slice(0, 1);
    return Math.max(0, Math.min(IDLE, ...open.map(({ dueMs }) => dueMs - now())));
  }

  /** Stores that batches have been accepted or postponed, unless this is already stored. */
  async flush(): Promise<void> {
    if (this.#unsaved === "accepted") await this.#change((state) => state);
  }

  /** Stores the state if it has changed since it was last stored. */
  async flushAll(): Promise<void> {
    if (this.#unsaved !== "nothing") await this.#change((state) => state);
  }

  /** Moves the position past events that are not sent to the endpoint. */
  skip(position: Position): Promise<void> {
    return this.#inTurn(async () => {
      const { number, id } = this.#state.position;
      if (position.number === number && position.id === id) return;
      this.#state = { ...this.#state, position };
      if (this.#unsaved === "nothing") this.#unsaved = "skipped";
    });
  }

  /** Stores the gaps that have been announced, and the batch that announces the new gaps. */
  async putGap(batch: Batch | undefined, announced: readonly (Gap | null)[]): Promise<void> {
    const added = batch === undefined ? [] : [batch];
    await this.#change((state) => ({ ...state, announced, batches: [...state.batches, ...added] }));
  }

  /**
   * Forms the next batch and stores its bounds. Sends it at once, unless the order is `channel` and
   * another batch precedes it. Returns true if the next turn should follow at once. Returns false
   * if another batch may not be formed, if the events do not fill a request and may wait, or if the
   * feed has no later events.
   */
  async #formBatch(mayWait: boolean): Promise<boolean> {
    const { position } = this.#state;
    if (!this.mayForm) return false;
    const { types, channels, format, batch: size } = this.#ports.settings();
    const selection: BatchSettings = { types, channels, format, isSingle: size.max === 1 };
    const page = await this.#ports.read(position, selection, size.max, undefined);
    if (page.gap !== undefined && !(await this.#ports.announce(position))) return true;
    const events = requestEvents(page.events, this.#ports.formatOf(format));
    const [first] = events;
    const last = events.at(-1);
    this.#fullAt = page.end.number + size.max - events.length;
    if (first === undefined || last === undefined) {
      await this.skip(page.end);
      return page.more;
    }
    const isAll = !page.more && events.length === page.events.length;
    if (mayWait && isAll && events.length < size.max) {
      this.#isFilling = true;
      return false;
    }
    const nowMs = this.#ports.now();
    const batch: Batch = {
      ...{ after: page.start, first: first.position.number, last: last.position },
      ...{ eventMs: timeMsOf(first), count: events.length, settings: selection },
      ...{ formedMs: nowMs, attempts: 0, dueMs: nowMs },
    };
    await this.#change((state) => ({
      ...{ ...state, position: isAll ? page.end : batch.last },
      batches: [...state.batches, batch],
    }));
    this.#fullAt = page.end.number + size.max;
    if (this.#ports.settings().order === "none" || this.#state.batches[0] === batch)
      await this.#attempt(batch, events);
    return !isAll;
  }

  #maxBatches(): number {
    // A second batch shows whether the endpoint accepts events other than the failing event.
    return Math.max(this.isStuck ? 2 : 1, maxBatches(this.#ports.settings().order));
  }

  /** Sends a batch. `formed` contains its events if they have just been read. */
  async #attempt(batch: Batch, formed?: readonly PlacedEvent[]): Promise<void> {
    const events = formed ?? (await this.#eventsOf(batch));
    if (events === undefined) return this.#change(endingAt(batch));
    const outcome = await this.#send(batch, events);
    const { now, steadyMs, random, settings, acceptedMs, mayPark } = this.#ports;
    const step = stepAfter(batch, outcome, {
      ...{ nowMs: now(), steadyMs: steadyMs(), random: random(), maxAgeS: settings().maxAgeS },
      ...{ acceptedMs: acceptedMs(), mayPark: mayPark() },
    });
    switch (step.kind) {
      case "accepted":
        return this.#note(without(batch));
      case "split":
        return this.#replace(batch, halvesOf(batch, events, now()));
      case "park":
        return this.#park(batch, events, outcome);
      case "retry":
        await this.#replace(batch, [step.batch]);
        if (outcome.verdict === "failed") await this.#probe(step.batch, events, outcome);
        return;
      case "disable":
        await this.#replace(batch, [restarted(batch)]);
        return this.#ports.disable(step.reason);
    }
  }

  /**
   * Sends the batch that follows a single event that keeps failing. If the receiver accepts that
   * batch and the event then fails again, the event is the cause of the failures and is parked.
   * With the order `channel`, if the accepted batch has an event of the same channel or user as the
   * failed event, the failed event is parked without being sent again, because the receiver must
   * not get it after the later event.
   */
  async #probe(head: Batch, events: readonly PlacedEvent[], failure: Outcome): Promise<void> {
    const [first, next] = this.#state.batches;
    if (first !== head || next === undefined || !isJudged(head) || !this.#ports.mayPark()) return;
    const nextEvents = await this.#eventsOf(next);
    if (nextEvents === undefined) return this.#change(endingAt(next));
    const { verdict } = await this.#send(next, nextEvents);
    if (verdict !== "accepted") return;
    await this.#note(without(next));
    const isOrdered = this.#ports.settings().order === "channel";
    if (isOrdered && isSubjectIn(nextEvents, events[0])) return this.#park(head, events, failure);
    const outcome = await this.#send(head, events);
    if (outcome.verdict === "accepted") await this.#note(without(head));
    else await this.#park(head, events, outcome);
  }

  /** Returns the events of a batch, or `undefined` if the feed no longer has all of them. */
  async #eventsOf(batch: Batch): Promise<readonly PlacedEvent[] | undefined> {
    const { after, settings, count, last, gap } = batch;
    if (gap !== undefined) return [{ ...encodeEvent(gap), position: last, bytes: 0 }];
    // The position after a gap of on-demand events has the id 0. The feed returns such a gap only
    // if the event after the gap is read as well.
    const through = last.id === 0 ? last.number + 1 : last.number;
    const page = await this.#ports.read(after, settings, Infinity, through);
    const format = this.#ports.formatOf(settings.format);
    const events = page.events
      .filter(({ event }) => format.groupOf(event) !== undefined)
      .slice(0, count);
    // The id is compared too, because later events can have the same numbers if the store has lost
    // events.
    const isWhole =
      page.gap === undefined && events.length === count && events.at(-1)?.position.id === last.id;
    return isWhole ? events : undefined;
  }

  #send(batch: Batch, events: readonly PlacedEvent[]) {
    return this.#ports.send({ batch, events });
  }

  async #park(batch: Batch, [placed]: readonly PlacedEvent[], outcome: Outcome): Promise<void> {
    if (placed === undefined) return this.#note(without(batch));
    try {
      await this.#change(without(batch), { batch, event: placed.event, outcome });
    } catch (error) {
      // If `awaitsMs` were kept, the event would be sent again when the endpoint accepts another
      // request.
      const { awaitsMs: _, ...rest } = batch;
      const dueMs = this.#ports.now() + UNPARKED_PAUSE_MS;
      await this.#note(replacing(batch, [{ ...rest, attempts: batch.attempts + 1, dueMs }]));
      throw error;
    }
  }

  #replace(batch: Batch, batches: readonly Batch[]): Promise<void> {
    return this.#change(replacing(batch, batches));
  }

  /** Changes the state and stores it. If the new state cannot be stored, the old state is kept. */
  #change(change: Change, parked?: ParkedEvent): Promise<void> {
    return this.#inTurn(async () => {
      const state = change(this.#state);
      await this.#ports.save(state, parked);
      this.#state = state;
      this.#unsaved = "nothing";
    });
  }

  /**
   * Changes the state without storing it. A later change stores it. If the change is lost, the only
   * effect is that a request is repeated.
   */
  #note(change: Change): Promise<void> {
    return this.#inTurn(async () => {
      this.#state = change(this.#state);
      this.#unsaved = "accepted";
    });
  }

  /** Runs a step after the previous steps, because several batches can end at the same time. */
  #inTurn(step: () => Promise<void>): Promise<void> {
    const running = this.#changing.then(step);
    this.#changing = running.catch(() => {});
    return running;
  }
}

type Change = (state: PartitionState) => PartitionState;

function without(batch: Batch): Change {
  return (state) => ({ ...state, batches: state.batches.filter((other) => other !== batch) });
}

function replacing(batch: Batch, batches: readonly Batch[]): Change {
  return (state) => ({
    ...state,
    batches: state.batches.flatMap((other) => (other === batch ? batches : [other])),
  });
}

/**
 * Drops a batch and all later batches, and moves the position back to the start of that batch. New
 * batches are then formed from the events that the feed still has.
 */
function endingAt(batch: Batch): Change {
  return (state) => {
    const at = state.batches.indexOf(batch);
    if (at < 0) return state;
    return { ...state, position: batch.after, batches: state.batches.slice(0, at) };
  };
}

function timeMsOf({ event }: PlacedEvent): number {
  return Date.parse(event.timestamp);
}

/** Returns true if one of the events belongs to the same channel or user as `other`. */
function isSubjectIn(events: readonly PlacedEvent[], other: PlacedEvent | undefined): boolean {
  const subject = other && subjectOf(other.event);
  return subject !== undefined && events.some(({ event }) => subjectOf(event) === subject);
}

/** Returns true if the batch is a single event that has failed often enough to be parked. */
function isJudged({ count, attempts, isSuspect }: Batch): boolean {
  return count === 1 && attempts >= ISOLATED_ATTEMPTS && isSuspect === true;
}

/**
 * Returns the events of one request. Leaves out events that the format cannot represent, and
 * returns the longest prefix of the others that has a single group and a total size of at most
 * `MAX_BODY_BYTES`. A larger first event is returned alone.
 */
function requestEvents(events: readonly PlacedEvent[], format: Format): readonly PlacedEvent[] {
  const formatted = events.filter(({ event }) => format.groupOf(event) !== undefined);
  const [first] = formatted;
  if (first === undefined) return [];
  const group = format.groupOf(first.event);
  let size = 0;
  const end = formatted.findIndex(({ event, bytes }, at) => {
    size += bytes;
    return at > 0 && (size > MAX_BODY_BYTES || format.groupOf(event) !== group);
  });
  return end < 0 ? formatted : formatted.slice(0, end);
}

/**
 * Divides the events of a batch into two batches. The halves keep `failingSinceMs` and
 * `failedForMs`, so that the earlier failures of the batch still count towards `maxAgeS`.
 */
function halvesOf(batch: Batch, events: readonly PlacedEvent[], nowMs: number): readonly Batch[] {
  const middle = Math.ceil(events.length / 2);
  const lastOfFirst = events[middle - 1];
  const firstOfSecond = events[middle];
  if (lastOfFirst === undefined || firstOfSecond === undefined) return [batch];
  const half = { ...batch, attempts: 0, dueMs: nowMs };
  return [
    { ...half, last: lastOfFirst.position, count: middle },
    {
      ...half,
      after: lastOfFirst.position,
      first: firstOfSecond.position.number,
      eventMs: timeMsOf(firstOfSecond),
      count: events.length - middle,
    },
  ];
}
