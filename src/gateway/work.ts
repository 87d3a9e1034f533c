// What operations cost, in frames: a frame is the work of a PING or a small SEND, about 25 µs of the event loop. Pure.
// docs/protocol/native.md has the same table for clients.

/** Rows read and encoded for one frame of work. */
const ROWS_PER_FRAME = 4;
/** Copies of a command stored: each is decided, written and delivered by itself. */
const COPIES_PER_FRAME = 2;
/** Users whose state is looked up, inbox seqs that are acknowledged, conversations looked at to find the newest. */
const LOOKUPS_PER_FRAME = 16;
const REPLY_BYTES_PER_FRAME = 8192;
/** Histories are charged for the rows they ask for, before they are read, no more than these; what is not there is given back. */
const MAX_ROWS_AHEAD = 500;
/** The token and the directory. */
const CONNECT_WORK = 10;
/** A request that is refused or fails: what it was charged beyond this is given back. */
export const REFUSED_WORK = 1;

/** What is left of the work that a session may ask for. */
export interface Rate {
  /** Takes the work of so many copies of a command. Throws `rate_limited`. */
  admit(copies: number): void;
  /** Throws `rate_limited` until what was done is paid for. */
  requirePaid(): void;
}

export const lookups = (count: number): number => count / LOOKUPS_PER_FRAME;

export const rowsAhead = (limit: number): number =>
  Math.min(limit, MAX_ROWS_AHEAD) / ROWS_PER_FRAME;

/** A reply with so many rows in so many bytes. */
export const reading = (rows: number, bytes: number): number =>
  rows / ROWS_PER_FRAME + bytes / REPLY_BYTES_PER_FRAME;

/** Copies of a command, each in the inbox of a recipient. */
export const copying = (copies: number): number => copies / COPIES_PER_FRAME;

/** A CONNECT with so many channels to resume. */
export const connecting = (channels: number): number =>
  CONNECT_WORK + channels / ROWS_PER_FRAME;

/** The session joins so many groups. */
export const joining = (groups: number): number => groups / ROWS_PER_FRAME;
