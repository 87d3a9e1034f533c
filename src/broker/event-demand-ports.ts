// The port of on-demand events. The store writes these frequent events only while an enabled
// webhook or a reader of the event feed requests them. The comment of a method is its contract.
// Every driver must fulfil it, and `test/contract/` checks that.

export const DEMAND_KINDS = ["session", "command"] as const;
/**
 * Kind of on-demand events: `session` means `session.opened` and `session.closed`, `command` means
 * `command.sent`.
 */
export type DemandKind = (typeof DEMAND_KINDS)[number];

export const ON_DEMAND_TYPES = ["session.opened", "session.closed", "command.sent"] as const;

/** Maximum share of the feed's size that on-demand events may use. */
export const ON_DEMAND_SHARE = 1 / 4;

/** Whether a node writes events, and which kinds of on-demand events it writes. */
export interface EventDemand extends Readonly<Record<DemandKind, boolean>> {
  /**
   * True if the feed was on when the node last checked. If false, a driver may skip events of users
   * and sessions without checking the feed again.
   */
  readonly feed: boolean;
}

export const NO_DEMAND: EventDemand = { feed: false, session: false, command: false };

export interface EventDemandStore {
  /**
   * Sets which events this node writes from now on, provided the feed is on. Before the first call,
   * the node writes no on-demand events. `switchFeed` on this node also changes `EventDemand.feed`.
   */
  setDemand(demand: EventDemand): Promise<void>;
  /** Records that readers want events of these kinds until `untilMs` (Unix milliseconds). */
  noteReader(kinds: readonly DemandKind[], untilMs: number): Promise<void>;
  /**
   * Returns, for each kind, the time until which readers want on-demand events of that kind, or 0
   * if no reader ever wanted such events.
   */
  readerDemand(): Promise<Readonly<Record<DemandKind, number>>>;
}
