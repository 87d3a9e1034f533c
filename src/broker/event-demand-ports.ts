// The port of the events on demand. The store writes these frequent events only while an enabled
// webhook or a reader of the event feed requests them. The comment of a method is its contract.
// Every driver must fulfil it, and `test/contract/` checks that.

export const DEMAND_KINDS = ["session", "command"] as const;
/** Kind of events on demand: the types `session.*` or `command.*`. */
export type DemandKind = (typeof DEMAND_KINDS)[number];

export const ON_DEMAND_TYPES = ["session.opened", "session.closed", "command.sent"] as const;

/** Maximum share of the feed's size that events on demand may use. */
export const ON_DEMAND_SHARE = 1 / 4;

/** Whether a node writes events, and which kinds of events on demand it writes. */
export interface EventDemand extends Readonly<Record<DemandKind, boolean>> {
  /**
   * True if the feed was on when the node last read it. If false, changes of users do not read it.
   */
  readonly feed: boolean;
}

export const NO_DEMAND: EventDemand = { feed: false, session: false, command: false };

export interface EventDemandStore {
  /**
   * Sets which events this node writes from now on, if the feed is on. It writes no events on
   * demand before the first call. `switchFeed` on this node also changes `feed`.
   */
  setDemand(demand: EventDemand): Promise<void>;
  /** Stores that readers want events of these kinds until `untilMs` (Unix milliseconds). */
  noteReader(kinds: readonly DemandKind[], untilMs: number): Promise<void>;
  /** Returns the time until which readers want events of each kind, 0 if none ever did. */
  readerDemand(): Promise<Readonly<Record<DemandKind, number>>>;
}
