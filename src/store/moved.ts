// What one store hands to another when its data moves, row by row: plain values of the domain, without the bytes of either. Types only.

import type {
  ChannelInfo,
  ChannelKey,
  ChannelRef,
  Device,
  Message,
  StreamSnapshot,
} from "../broker/model.ts";

/** The order of the move: what a later step needs an earlier one has brought. */
export const MOVE_STEPS = ["user", "channel", "message"] as const;
export type MoveStep = (typeof MOVE_STEPS)[number];

export interface MovedMember {
  readonly kind: "member";
  readonly channel: ChannelRef;
  readonly uid: string;
  readonly permanent: boolean;
  readonly temporary: boolean;
}

export interface MovedMessage {
  readonly kind: "message";
  /** A stream's has an empty payload here: its text moves with the stream. */
  readonly message: Message;
  /** Of the message before it in the log; 0: it is the first that is kept. */
  readonly previousSeq: number;
  /** How many messages through it count as unread for as long as they are kept. */
  readonly counted: number;
  readonly isStream: boolean;
}

/** A stream with what lookups by event need. */
export interface MovedStream {
  readonly kind: "stream";
  readonly snapshot: StreamSnapshot;
  /** A viewer stopped it. */
  readonly stopped: boolean;
  /** When its message was accepted, Unix milliseconds. */
  readonly startedAtMs: number;
  /** Of each event, the UTF-16 units of text before it. */
  readonly offsets: readonly number[];
  /** The ids that its producer chose. */
  readonly eventIds: readonly string[];
}

/** What a retry is answered. */
export interface MovedFirst {
  readonly kind: "first";
  readonly key: ChannelKey;
  readonly fromUid: string;
  readonly clientMsgNo: string;
  readonly messageId: number;
  /** 0: it was not kept, or was a command. */
  readonly messageSeq: number;
  readonly timestampMs: number;
}

/** A channel's standing; comes behind everything else of the channel. */
export interface MovedHead {
  readonly kind: "head";
  readonly key: ChannelKey;
  /** The newest seq; 0: the channel never kept a message. */
  readonly seq: number;
  readonly counted: number;
  /** Of the newest and the oldest message that is kept, Unix milliseconds; undefined: none is. */
  readonly newestAtMs: number | undefined;
  readonly oldestAtMs: number | undefined;
}

export interface MovedPosition {
  readonly kind: "position";
  readonly uid: string;
  readonly key: ChannelKey;
  readonly readSeq: number;
  readonly deletedSeq: number;
  readonly headAtChange: number;
  readonly changedAtMs: number;
}

/** A copy of a command that waits to be acknowledged. */
export interface MovedCopy {
  readonly kind: "copy";
  readonly uid: string;
  readonly inboxSeq: number;
  readonly message: Message;
  /** When it leaves the inbox, Unix milliseconds. */
  readonly endMs: number;
}

/** Whose an access token is, as the broker stored it, and until when (Unix milliseconds). */
export interface TokenOwner {
  readonly owner: string;
  readonly expiresAtMs: number;
}

export type Moved =
  | { readonly kind: "device"; readonly device: Device }
  | {
      readonly kind: "password";
      readonly username: string;
      readonly passwordHash: string;
    }
  | (TokenOwner & {
      readonly kind: "token";
      /** SHA-256, in hex. */
      readonly hash: string;
    })
  | { readonly kind: "channel"; readonly info: ChannelInfo }
  | MovedMember
  | {
      readonly kind: "group";
      readonly uid: string;
      readonly channelId: string;
      /** The channel's newest seq when the user joined. */
      readonly joinSeq: number;
    }
  | MovedMessage
  | MovedStream
  | MovedFirst
  | {
      readonly kind: "own";
      readonly key: ChannelKey;
      readonly uid: string;
      readonly seq: number;
    }
  | MovedHead
  | MovedPosition
  | { readonly kind: "inbox"; readonly uid: string; readonly lastSeq: number }
  | MovedCopy;

/** A row, and where to go on behind it. */
export interface MovedRow {
  readonly moved: Moved;
  /** To be given to `rows` by whoever has dealt with everything through this row. */
  readonly place: MovePlace;
}

/** A place in the order of rows: a table of the source, and where in it; "": at its beginning. Text for whoever keeps it. */
export interface MovePlace {
  readonly table: string;
  readonly at: string;
}

/** What can be told of a source before it is opened. */
export interface SourceLook {
  /** See `MoveSource`; "": it has none yet. */
  readonly id: string;
  /** The access tokens in it by their SHA-256 in hex, also those that have ended. */
  readonly tokens: ReadonlyMap<string, TokenOwner>;
}

/** Where data moves from. Nobody else changes it while it is open. */
export interface MoveSource {
  /** Which data it is: another folder has another one, the same folder always this one. */
  readonly id: string;
  /** No message id above it was ever given. */
  readonly lastMessageId: number;
  /** Rows of a step, about. */
  total(step: MoveStep): number;
  /**
   * The rows of a step behind `place` (undefined: all). Rows are read a few at a time while they are asked for, so that they may be asked for over
   * any number of turns. Throws `internal` on data it cannot read.
   */
  rows(step: MoveStep, place?: MovePlace): Iterable<MovedRow>;
  /** Lets go of the data. Safe to call twice. */
  close(): Promise<void>;
}
