// The port of the event feed, a durable list of events in 64 partitions. The store records the
// events of a change in the same atomic step as the change, so that no event is lost. A row
// contains only a few small fields. It refers to messages and does not contain them. The comment of
// a method is its contract. Every driver must fulfil it, and `test/contract/` checks that.

/** Number of partitions. An event is in partition `bucketOf(key)`. */
export const EVENT_PARTITIONS = 64;

/** Event types. The stores write the index of a type in this list, so the order must not change. */
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

/**
 * All event types that readers get. `feed.gap` is not stored. The feed creates it for a reader that
 * has missed events.
 */
export const EVENT_NAMES = [...EVENT_TYPES, "feed.gap"] as const;
export type EventName = (typeof EVENT_NAMES)[number];

/**
 * Maximum number of commands in one event. A change that concerns more commands writes several
 * events.
 */
export const MAX_EVENT_COMMANDS = 500;

/** Maximum number of uids in one event. A change that concerns more users writes several events. */
export const MAX_EVENT_UIDS = 500;

/** Fields of a feed row, as the store keeps them. `events.ts` converts some of them for readers. */
export type EventFields = Readonly<Record<string, unknown>>;

/** An event to write in the same atomic step as the change that caused it. */
export interface EventDraft {
  readonly type: EventType;
  /** See `EventRow`. */
  readonly key: string;
  readonly messageSeq: number;
  readonly fields: EventFields;
}

/**
 * A position in a partition: number and id of the last event before it. Numbers are assigned from 1
 * without gaps. Ids increase within a partition, and no two events have the same id. `EVENTS_START`
 * is the position before the first event.
 */
export interface EventPosition {
  readonly number: number;
  readonly id: number;
}

export const EVENTS_START: EventPosition = { number: 0, id: 0 };

/** An event as the feed stores it. */
export interface EventRow extends EventPosition {
  readonly type: EventType;
  /** Time encoded in the id. It never decreases within a partition. */
  readonly timestampMs: number;
  /** Key of the channel to which the event belongs, or `userTopic(uid)` of the user. */
  readonly key: string;
  /** Seq of the message to which the event refers. 0 if it refers to no message. */
  readonly messageSeq: number;
  /** `undefined` if all fields are read from the message. */
  readonly fields: EventFields | undefined;
}

export interface EventPage {
  readonly rows: readonly EventRow[];
  /**
   * Number of events that the reader missed, because the feed no longer has them, or because a
   * fail-over or a restore lost them. The rows follow the missing events. 0 if the rows directly
   * follow the reader's position.
   */
  readonly lost: number;
  /** Reason why events are missing, or `undefined` if no event is missing. */
  readonly loss: "expired" | "forked" | undefined;
}

/**
 * Receives the partitions that have new events, and the number of the newest event in each of them.
 */
export type EventListener = (partitions: readonly number[], numbers: readonly number[]) => void;

export interface EventStore {
  /**
   * Returns true if changes write events, or `undefined` if the feed was never turned on or off.
   */
  feedSwitch(): Promise<boolean | undefined>;
  /**
   * Turns the feed on or off in all partitions. After a call with `true`, every acknowledged change
   * has its event. Events written earlier remain until they expire.
   */
  switchFeed(isOn: boolean): Promise<void>;
  newestEvents(): Promise<readonly EventPosition[]>;
  oldestEvents(): Promise<readonly EventPosition[]>;
  /**
   * Returns, for each partition, the position before the first event whose time is `timeMs` or
   * later, or the position after the newest event if there is no such event.
   */
  eventsSince(timeMs: number): Promise<readonly EventPosition[]>;
  /**
   * Returns, in order, the events of the partition that follow the position. Returns at most
   * `limit` events, and at least one if any event follows. Only durable events are returned. If the
   * store lacks the event at the position, returns the events that follow the last event that the
   * reader and the store have in common.
   */
  readEvents(partition: number, after: EventPosition, limit: number): Promise<EventPage>;
  /**
   * Calls the listener soon after events have been written. A call may name a partition without new
   * events, and may be up to a second late. The returned function removes the listener.
   */
  onEvents(listener: EventListener): () => void;
  /**
   * Removes events that are older than `beforeMs`, unless they follow a position in `held`. Then
   * removes the oldest events, regardless of `held`, until the feed takes up about `maxBytes`.
   * Stops early when `signal` is aborted. Returns the number of removed events. On Redis, all
   * events of one change together count as one event.
   */
  trimEvents(limits: EventLimits): Promise<number>;
  /** Approximate size of the stored events in bytes. */
  eventBytes(): Promise<number>;
}

export interface EventLimits {
  readonly beforeMs: number;
  readonly maxBytes: number;
  /**
   * Positions, one for each partition, up to which events are no longer needed. `undefined` if no
   * events are needed.
   */
  readonly held: readonly EventPosition[] | undefined;
  readonly signal?: AbortSignal;
}
