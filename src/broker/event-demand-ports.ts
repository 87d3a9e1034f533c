// The port of the events on demand: events that the steps of the store write only while an enabled
// webhook or a reader of the feed names them, because they are frequent. The comment of a method is
// its contract. Every driver must fulfil it, and `test/contract/` checks that.

export const DEMAND_KINDS = ["session", "command"] as const;
/** Kind of events on demand, which `session.*` and `command.*` name. */
export type DemandKind = (typeof DEMAND_KINDS)[number];

export const ON_DEMAND_TYPES = ["session.opened", "session.closed", "command.sent"] as const;

/** Part of the size of the feed that the events on demand may have. */
export const ON_DEMAND_SHARE = 1 / 4;

/** Which events the steps of a node write. */
export interface EventDemand extends Readonly<Record<DemandKind, boolean>> {
  /** Whether the feed was on when the node looked last. If not, steps on users do not look at it. */
  readonly feed: boolean;
}

export const NO_DEMAND: EventDemand = { feed: false, session: false, command: false };

export interface EventDemandStore {
  /**
   * Sets which events the later steps of this node write, if the feed is on. None before the first
   * call. A call of `switchFeed` on this node changes `feed` too.
   */
  setDemand(demand: EventDemand): Promise<void>;
  /** Stores that readers want events of these kinds until `untilMs` (Unix milliseconds). */
  noteReader(kinds: readonly DemandKind[], untilMs: number): Promise<void>;
  /** Returns the time until which readers want events of each kind, 0 if none ever did. */
  readerDemand(): Promise<Readonly<Record<DemandKind, number>>>;
}
