// Interface of a wire format: bytes ⇄ operations, replies and pushes. Pure; one codec per
// connection.

import type { CloseReason, ErrorCode } from "../broker/errors.ts";
import type {
  ChannelEvent,
  ChannelRef,
  Conversation,
  DeviceFlag,
  DeviceLevel,
  Message,
  MessageHeader,
  Passthrough,
  Presence,
  StreamSnapshot,
  StreamState,
} from "../broker/model.ts";

/** A client's number for a request, repeated in its reply. 0: none. */
export type Ref = number;

/** Characters of a token; a backend may register a signed document. */
export const MAX_TOKEN_LENGTH = 4096;
/** Characters of a session's name, which contains a node's id. */
export const MAX_SESSION_LENGTH = 256;
/** Conversations of one request. */
export const MAX_CONVERSATIONS = 500;

/** Limits of one request. */
export interface RequestLimits {
  /** Characters of an id, a clientMsgNo, a streamNo, a tagKey. */
  readonly maxIdLength: number;
  /** Bytes of a message's payload. */
  readonly maxPayloadBytes: number;
  /** Channels of one connect. */
  readonly maxResumePoints: number;
  /** Uids of one presence request. */
  readonly maxPresenceUids: number;
  /** Uids of one watch request. */
  readonly maxWatchedUids: number;
  /** Commands of one commandack. */
  readonly maxCommandAcks: number;
}

export interface ResumePoint {
  readonly channel: ChannelRef;
  /** The newest seq the client has; it gets all later messages. */
  readonly lastSeq: number;
  /**
   * The greatest id of a stored message the client has: where seqs were reused, it gets the
   * messages with a greater one. 0: not known.
   */
  readonly lastId?: number;
}

/** A request of a client. */
export type Operation =
  | {
      readonly kind: "connect";
      readonly ref: Ref;
      /** Of the protocol; the codec speaks it. */
      readonly version: number;
      readonly uid: string;
      readonly token: string;
      readonly flag: DeviceFlag;
      readonly deviceId: string;
      /** Ignored unless client authentication is off. */
      readonly level: DeviceLevel | undefined;
      readonly resume: readonly ResumePoint[];
      /** The session to continue, or the client's own name for this login; "": none. */
      readonly session: string;
    }
  | {
      readonly kind: "send";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      /** "": the server makes one and does not deduplicate. */
      readonly clientMsgNo: string;
      readonly header: MessageHeader & { readonly syncOnce: boolean };
      readonly expireS: number;
      readonly streamNo: string | undefined;
      readonly tagKey: string | undefined;
      readonly passthrough?: Passthrough | undefined;
      /** Owned by the operation. */
      readonly payload: Uint8Array;
    }
  | {
      readonly kind: "recvack";
      readonly ref: Ref;
      /** Undefined: the format does not name it. */
      readonly channel: ChannelRef | undefined;
      readonly messageSeq: number;
      readonly messageId: number;
    }
  | {
      readonly kind: "history";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly fromSeq: number;
      /** 0 = up to the newest. */
      readonly toSeq: number;
      readonly limit: number;
      readonly reverse: boolean;
    }
  | {
      readonly kind: "presence";
      readonly ref: Ref;
      readonly uids: readonly string[];
    }
  | {
      /** Asks for a snapshot; live events are pushed in any case. */
      readonly kind: "stream";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      /** Stops a stream. */
      readonly kind: "cancel";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      readonly kind: "conversations";
      readonly ref: Ref;
      readonly limit: number;
      /** How many of the newest to skip. */
      readonly offset: number;
    }
  | {
      readonly kind: "conversation";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly change: ConversationChange;
    }
  | {
      readonly kind: "commandack";
      readonly ref: Ref;
      readonly inboxSeqs: readonly number[];
    }
  | {
      /** The users whose presence to push; replaces the list before. */
      readonly kind: "watch";
      readonly ref: Ref;
      readonly uids: readonly string[];
    }
  | { readonly kind: "ping"; readonly ref: Ref }
  | { readonly kind: "disconnect"; readonly ref: Ref };

/** As `ConversationChange` of the broker's ports, which a protocol may not import. */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete" };

export type OperationKind = Operation["kind"];

/** Result of one resume point. */
export interface ResumeResult {
  readonly channel: ChannelRef;
  /** `denied`: not a member. */
  readonly status: "ok" | "denied";
  /**
   * The channel's newest seq at connect: with it the client has caught up. Below the client's
   * lastSeq in a forked history: the last common seq, after which it gets all messages. 0: denied.
   */
  readonly headSeq: number;
}

export interface ConnectionLimits {
  readonly maxFrameBytes: number;
  readonly maxPayloadBytes: number;
  readonly idleTimeoutS: number;
  readonly maxFramesPerSecond: number;
}

/** An answer of the server; `ref` as in the request. */
export type Reply =
  | {
      readonly kind: "connack";
      readonly ref: Ref;
      readonly version: number;
      readonly sessionId: string;
      readonly nodeId: string;
      readonly serverTimeMs: number;
      readonly limits: ConnectionLimits;
      readonly resume: readonly ResumeResult[];
    }
  | {
      readonly kind: "sendack";
      readonly ref: Ref;
      readonly messageId: number;
      readonly messageSeq: number;
      readonly clientMsgNo: string;
    }
  | {
      readonly kind: "history";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly headSeq: number;
      /** The range has more messages than the limit. */
      readonly more: boolean;
      readonly messages: readonly Message[];
    }
  | {
      readonly kind: "presence";
      readonly ref: Ref;
      readonly presence: readonly Presence[];
    }
  | {
      readonly kind: "stream";
      readonly ref: Ref;
      /** The channel under the receiver's name for it. */
      readonly channel: ChannelRef;
      readonly snapshot: StreamSnapshot;
    }
  | {
      readonly kind: "cancel";
      readonly ref: Ref;
      readonly state: StreamState;
    }
  | {
      readonly kind: "conversations";
      readonly ref: Ref;
      /** There are more after the last one. */
      readonly more: boolean;
      readonly conversations: readonly Conversation[];
    }
  | {
      readonly kind: "conversation";
      readonly ref: Ref;
      readonly conversation: Conversation;
    }
  | {
      readonly kind: "commandack";
      readonly ref: Ref;
      /** Number of commands acknowledged. */
      readonly count: number;
    }
  | {
      readonly kind: "watch";
      readonly ref: Ref;
      readonly presence: readonly Presence[];
    }
  | {
      readonly kind: "pong";
      readonly ref: Ref;
      readonly serverTimeMs: number;
    }
  | {
      readonly kind: "error";
      readonly ref: Ref;
      readonly code: ErrorCode;
      readonly message: string;
      readonly retryAfterMs: number;
    };

/** An event for the client. */
export type Push =
  | {
      readonly kind: "message";
      /** The channel under the receiver's name for it. */
      readonly channel: ChannelRef;
      readonly message: Message;
    }
  | {
      /** Missed messages: all of the channel after `afterSeq` through `throughSeq`. */
      readonly kind: "messages";
      readonly channel: ChannelRef;
      readonly afterSeq: number;
      readonly throughSeq: number;
      readonly messages: readonly Message[];
    }
  | {
      readonly kind: "event";
      /** The channel under the receiver's name for it. */
      readonly channel: ChannelRef;
      readonly event: ChannelEvent;
    }
  | {
      /** Replaces what the receiver has of the stream; its next event has index `nextIndex`. */
      readonly kind: "stream";
      readonly channel: ChannelRef;
      readonly snapshot: StreamSnapshot;
    }
  | {
      readonly kind: "command";
      /** The channel under the receiver's name for it. */
      readonly channel: ChannelRef;
      /** Acknowledges it; 0: nothing to acknowledge. */
      readonly inboxSeq: number;
      readonly message: Message;
    }
  | {
      /** Another session of the user changed it. */
      readonly kind: "conversation";
      readonly change: ConversationChange["kind"];
      readonly conversation: Conversation;
    }
  | { readonly kind: "presence"; readonly presence: readonly Presence[] }
  | { readonly kind: "disconnect"; readonly reason: CloseReason };

export type Frame = Uint8Array | string;

/** What goes to the client, each a frame of its own; an empty list: nothing, in this format. */
export type Frames = Frame | readonly Frame[];

/** A request that cannot be read. `ref` is the request's if it is known, else 0. */
export class FrameError extends Error {
  readonly code: ErrorCode;
  readonly ref: Ref;
  /** The connection must end: framing is lost or the peer uses another protocol. */
  readonly fatal: boolean;

  constructor(code: ErrorCode, ref: Ref, message: string, fatal = false) {
    super(message);
    this.name = "FrameError";
    this.code = code;
    this.ref = ref;
    this.fatal = fatal;
  }
}

/** One connection's wire format. */
export interface Codec {
  /**
   * Codecs of one format encode a push equally, so that their sessions share it, unless they are
   * private.
   */
  readonly format: string;
  /** Only its own client can read its frames. */
  readonly isPrivate: boolean;
  /** Of the protocol, as agreed with the client. */
  readonly version: number;
  /** Its clients acknowledge stored messages, and expect those again that they did not. */
  readonly acknowledges: boolean;
  /**
   * The requests that are complete with this frame, in order; refused ones among them. Copies what
   * it keeps of `data`. Throws FrameError for a frame that holds no request that can be read.
   */
  decode(data: Uint8Array, isText: boolean): readonly (Operation | FrameError)[];
  /**
   * The refs of the requests in a frame that are all refused; reads no more than that takes. Throws
   * FrameError.
   */
  refsOf(data: Uint8Array, isText: boolean): readonly Ref[];
  encodeReply(reply: Reply): Frames;
  encodePush(push: Push): Frames;
}

export interface Protocol {
  /** The WebSocket subprotocol by which a client may choose it. */
  readonly name: string;
  /** Whether the first frame of a client that chose none is of this protocol. */
  speaks(data: Uint8Array, isText: boolean): boolean;
  open(): Codec;
}
