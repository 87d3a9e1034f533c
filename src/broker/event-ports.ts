// The port of the event feed: a durable list of what happened, in 64 partitions. A step writes its
// events together with its change, so that no event is lost. A row contains only a few small fields.
// It refers to messages and does not contain them. The comment of a method is its contract. Every
// driver must fulfil it, and `test/contract/` checks that.

/** Number of partitions. An event is in the partition `bucketOf(key)` of its key. */
export const EVENT_PARTITIONS = 64;

/** Types of events. The stores write the place of a type in this list, so the order must not change. */
export const EVENT_TYPES = [
  "message.stored",
  "channel.created",
  "channel.updated",
  "channel.deleted",
  "channel.members_added",
  "channel.members_removed",
  "stream.ended",
  "user.token_changed",
  "session.kicked",
  "message.unreached",
  "user.online",
  "user.offline",
  "session.opened",
  "session.closed",
  "command.sent",
  "command.expired",
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

/** Types of all events that readers get. The feed makes `feed.gap` itself and does not store it. */
export const EVENT_NAMES = [...EVENT_TYPES, "feed.gap"] as const;
export type EventName = (typeof EVENT_NAMES)[number];

/** Maximum number of commands in one event. A step that concerns more has several events. */
export const MAX_EVENT_COMMANDS = 500;

/** Maximum number of uids in one event. A step that concerns more users writes several events. */
export const MAX_EVENT_UIDS = 500;

/** Fields that a row of the feed contains, as readers get them. */
export type EventFields = Readonly<Record<string, unknown>>;

/** An event that a step of the store writes together with its change. */
export interface EventDraft {
  readonly type: EventType;
  /** See `EventRow`. */
  readonly key: string;
  readonly messageSeq: number;
  readonly fields: EventFields;
}

/**
 * A place in a partition: number and id of the last event before it. Numbers count from 1 without
 * gaps. Ids increase in a partition and are never assigned to two events. `EVENTS_START` is the
 * place before the first event.
 */
export interface EventPosition {
  readonly number: number;
  readonly id: number;
}

export const EVENTS_START: EventPosition = { number: 0, id: 0 };

/** An event as the feed stores it. */
export interface EventRow extends EventPosition {
  readonly type: EventType;
  /** Time that the id contains. It never decreases in a partition. */
  readonly timestampMs: number;
  /** Key of the channel to which the event belongs, or `userTopic(uid)` of the user. */
  readonly key: string;
  /** Seq of the message to which the event refers. 0 if it refers to no message. */
  readonly messageSeq: number;
  /** `undefined` if everything is read from the message. */
  readonly fields: EventFields | undefined;
}

export interface EventPage {
  readonly rows: readonly EventRow[];
  /**
   * Number of events that the reader did not get: the feed no longer has them, or a fail-over or a
   * restore lost them. The rows follow the loss. 0 if the rows follow the reader's position.
   */
  readonly lost: number;
  /** Why events are missing, `undefined` if no event is missing. */
  readonly loss: "expired" | "forked" | undefined;
}

/**
 * Receives the partitions that have new events, and the number of the newest event of each of these
 * partitions.
 */
export type EventListener = (partitions: readonly number[], numbers: readonly number[]) => void;

export interface EventStore {
  /** Returns true if steps write events. `undefined` if the feed was never turned on or off. */
  feedSwitch(): Promise<boolean | undefined>;
  /**
   * Turns the feed on or off in all partitions. Every change that is acknowledged after the call
   * with `true` has its event. Events that were written before remain until they expire.
   */
  switchFeed(isOn: boolean): Promise<void>;
  newestEvents(): Promise<readonly EventPosition[]>;
  oldestEvents(): Promise<readonly EventPosition[]>;
  /**
   * Returns the position before the first event of each partition whose time is `timeMs` or later,
   * or that after its newest event.
   */
  eventsSince(timeMs: number): Promise<readonly EventPosition[]>;
  /**
   * Returns the events of the partition that follow the position, in order: at most `limit`, and at
   * least one, if any follows. Only durable events are returned. If the store lacks the event at
   * the position, they follow the last event that the reader and the store have in common.
   */
  readEvents(partition: number, after: EventPosition, limit: number): Promise<EventPage>;
  /**
   * Calls the listener soon after events were written. A call may name a partition without new
   * events, and may come a second late. The result removes the listener.
   */
  onEvents(listener: EventListener): () => void;
  /**
   * Removes events that are older than `beforeMs` and follow no position of `held`, and then the
   * oldest events until the feed has about `maxBytes`. Returns the number of removed events; on
   * Redis, the events of one change count once.
   */
  trimEvents(limits: EventLimits): Promise<number>;
  /** Approximate size of the stored events in bytes. */
  eventBytes(): Promise<number>;
}

export interface EventLimits {
  readonly beforeMs: number;
  readonly maxBytes: number;
  /** Positions, one for each partition, up to which events are no longer needed. */
  readonly held: readonly EventPosition[] | undefined;
}
