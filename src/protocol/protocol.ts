// Interface of a wire format: converts bytes to operations, and replies and pushes to bytes. A
// codec does no I/O.

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

/**
 * Number with which a client identifies a request. The reply repeats it. 0 means that the request
 * has no ref.
 */
export type Ref = number;

/** Maximum number of characters in a session name, which contains a session id and a node id. */
export const MAX_SESSION_LENGTH = 256;
export const MAX_CONVERSATIONS = 500;
export const MAX_MEMBERS = 1000;

export interface RequestLimits {
  /** Maximum number of characters in an id, `clientMsgNo`, `streamNo` or `tagKey`. */
  readonly maxIdLength: number;
  readonly maxPayloadBytes: number;
  readonly maxResumePoints: number;
  readonly maxPresenceUids: number;
  readonly maxWatchedUids: number;
  readonly maxCommandAcks: number;
}

export interface ResumePoint {
  readonly channel: ChannelRef;
  /** Seq of the newest message that the client has. All later messages are sent to the client. */
  readonly lastSeq: number;
  /** Highest id of a stored message that the client has, or 0 if unknown. */
  readonly lastId?: number;
}

export type Operation =
  | {
      readonly kind: "connect";
      readonly ref: Ref;
      readonly version: number;
      readonly uid: string;
      readonly token: string;
      readonly flag: DeviceFlag;
      readonly deviceId: string;
      /** Device level that the client claims. Used only if client authentication is off. */
      readonly level: DeviceLevel | undefined;
      readonly resume: readonly ResumePoint[];
      /**
       * Name of the session to continue, or a name that the client chose for this login. "" for a
       * new session.
       */
      readonly sessionName: string;
    }
  | {
      readonly kind: "send";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      /**
       * Idempotency key. If it is empty, the server creates a key and does not deduplicate the
       * message.
       */
      readonly clientMsgNo: string;
      readonly header: MessageHeader & { readonly syncOnce: boolean };
      readonly expireS: number;
      readonly streamNo: string | undefined;
      readonly tagKey: string | undefined;
      readonly passthrough?: Passthrough | undefined;
      /**
       * True if a message that reuses a `clientMsgNo` with a different payload is a new message, as
       * in WuKongIM.
       */
      readonly allowsReuse?: boolean;
      /** Payload of the message, as a copy that only this operation uses. */
      readonly payload: Uint8Array;
    }
  | {
      readonly kind: "recvack";
      readonly ref: Ref;
      /** Channel of the message, or `undefined` if the wire format does not contain the channel. */
      readonly channel: ChannelRef | undefined;
      readonly messageSeq: number;
      readonly messageId: number;
    }
  | {
      readonly kind: "history";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly fromSeq: number;
      /** Last seq of the range. 0 means the newest seq. */
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
      /** Requests a snapshot of a stream. Live events are pushed regardless of this request. */
      readonly kind: "stream";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      readonly kind: "cancel";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      readonly kind: "conversations";
      readonly ref: Ref;
      readonly limit: number;
      readonly cursor: string | undefined;
      /**
       * Time in Unix milliseconds. Only conversations that changed at this time or later are
       * returned. If absent, all conversations are returned.
       */
      readonly sinceMs?: number;
    }
  | {
      readonly kind: "conversation";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      /** Change to the conversation. `undefined` if the request only returns the conversation. */
      readonly change: ConversationChange | undefined;
    }
  | {
      readonly kind: "members";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly limit: number;
      readonly cursor: string | undefined;
    }
  | {
      readonly kind: "commandack";
      readonly ref: Ref;
      readonly inboxSeqs: readonly number[];
    }
  | {
      /** Sets the list of users whose presence is pushed. It replaces the previous list. */
      readonly kind: "watch";
      readonly ref: Ref;
      readonly uids: readonly string[];
    }
  | {
      /** Sends an event to the members who are online. The event is not stored. */
      readonly kind: "emit";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly type: string;
      readonly data: string;
    }
  | {
      /** Reports whether the user is looking at the app. */
      readonly kind: "state";
      readonly ref: Ref;
      readonly foreground: boolean;
    }
  | {
      /** Replaces the session's JWT. The reply is a connack. */
      readonly kind: "refresh";
      readonly ref: Ref;
      readonly token: string;
    }
  | { readonly kind: "ping"; readonly ref: Ref }
  | { readonly kind: "disconnect"; readonly ref: Ref };

/** CONNECT of a client whose credential has not been checked yet. */
export interface Greeting extends Omit<Extract<Operation, { readonly kind: "connect" }>, "resume"> {
  /**
   * Processes the parts that are costly: returns the resume points, and agrees on encryption keys.
   * Must be called once, after the login. Throws FrameError if these parts are invalid.
   */
  finishDecoding(): readonly ResumePoint[];
}

/** Same as `ConversationChange` in the broker's ports, which this folder may not import. */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete"; readonly seq?: number | undefined };

export type OperationKind = Operation["kind"];

export interface ResumeResult {
  readonly channel: ChannelRef;
  readonly status: "ok" | "denied";
  /**
   * Newest seq of the channel at the time of the connect. If the server has lost messages that the
   * client has, this is the last common seq, which is lower than the client's `lastSeq`. The client
   * then receives all messages after that seq. 0 if `status` is `denied`.
   */
  readonly headSeq: number;
}

export interface ConnectionLimits {
  readonly maxFrameBytes: number;
  readonly maxPayloadBytes: number;
  readonly idleTimeoutS: number;
  readonly maxFramesPerSecond: number;
}

export type Reply =
  | {
      readonly kind: "connack";
      readonly ref: Ref;
      readonly version: number;
      /** Name with which the next CONNECT continues the session (`nameSession`). */
      readonly sessionId: string;
      readonly nodeId: string;
      readonly serverTimeMs: number;
      readonly limits: ConnectionLimits;
      readonly resume: readonly ResumeResult[];
      /** Message id. Every message that is stored after the connect has a higher id. */
      readonly newestId: number;
      /** Seconds until the session expires. `undefined` if it does not expire. */
      readonly expiresInS?: number | undefined;
    }
  | {
      readonly kind: "sendack";
      readonly ref: Ref;
      readonly messageId: number;
      readonly messageSeq: number;
      readonly clientMsgNo: string;
      /** True if the SEND was a retry of an earlier SEND. */
      readonly repeated?: boolean;
    }
  | {
      readonly kind: "history";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly headSeq: number;
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
      readonly cursor: string | undefined;
      readonly conversations: readonly Conversation[];
    }
  | {
      readonly kind: "conversation";
      readonly ref: Ref;
      readonly conversation: Conversation;
    }
  | {
      readonly kind: "members";
      readonly ref: Ref;
      /** Cursor of the next page, or `undefined` if this is the last page. */
      readonly cursor: string | undefined;
      readonly uids: readonly string[];
    }
  | {
      readonly kind: "commandack";
      readonly ref: Ref;
      readonly count: number;
    }
  | {
      readonly kind: "watch";
      readonly ref: Ref;
      readonly presence: readonly Presence[];
    }
  | { readonly kind: "emit" | "state"; readonly ref: Ref }
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

export type Push =
  | {
      readonly kind: "message";
      readonly channel: ChannelRef;
      readonly message: Message;
      /**
       * True if the session belongs to the sender of the message. WuKongIM's protocols then send
       * the message without a red dot.
       */
      readonly isOwn?: boolean;
    }
  | {
      /**
       * Contains all existing messages with a seq above `afterSeq`, up to and including
       * `throughSeq`.
       */
      readonly kind: "messages";
      readonly channel: ChannelRef;
      readonly afterSeq: number;
      readonly throughSeq: number;
      readonly messages: readonly Message[];
      /**
       * User of the receiving session. For WuKongIM's clients, the messages that this user sent are
       * marked as having no red dot.
       */
      readonly toUid?: string;
    }
  | {
      readonly kind: "event";
      readonly channel: ChannelRef;
      readonly event: ChannelEvent;
    }
  | {
      /** Replaces the receiver's state of the stream. The next event has the index `nextIndex`. */
      readonly kind: "stream";
      readonly channel: ChannelRef;
      readonly snapshot: StreamSnapshot;
    }
  | {
      readonly kind: "command";
      readonly channel: ChannelRef;
      /** Position in the inbox, or 0 if the command needs no acknowledgement. */
      readonly inboxSeq: number;
      readonly message: Message;
      readonly isOwn?: boolean;
    }
  | {
      readonly kind: "conversation";
      readonly change: ConversationChange["kind"];
      readonly conversation: Conversation;
    }
  | { readonly kind: "presence"; readonly presence: readonly Presence[] }
  | { readonly kind: "disconnect"; readonly reason: CloseReason };

export type Frame = Uint8Array | string;

/** Frames of one reply or push. An empty list means that the wire format has no frame for it. */
export type Frames = Frame | readonly Frame[];

/**
 * Error for a request that cannot be read or is refused. `ref` is the request's ref, or 0 if the
 * ref is unknown.
 */
export class FrameError extends Error {
  readonly code: ErrorCode;
  readonly ref: Ref;
  /** True if the connection must be closed, for example because frame boundaries are lost. */
  readonly fatal: boolean;

  constructor(code: ErrorCode, ref: Ref, message: string, fatal = false) {
    super(message);
    this.name = "FrameError";
    this.code = code;
    this.ref = ref;
    this.fatal = fatal;
  }
}

/**
 * Function that is called before each request is decoded. `bytes` is the size of the request, and
 * `values` is the number of JSON values that are parsed for the request. Returns false to refuse
 * the request.
 */
export type Admit = (bytes: number, values: number) => boolean;

export interface Codec {
  /** Name of the encoding. Codecs with the same name share frames unless `isPrivate` is true. */
  readonly format: string;
  /** True if frames are encrypted for one client and cannot be shared with other sessions. */
  readonly isPrivate: boolean;
  readonly version: number;
  /** True if clients acknowledge messages and expect unacknowledged messages to be sent again. */
  readonly acknowledges: boolean;
  /** True if a request may be split over several frames, which must be decoded in order. */
  readonly splitsRequests: boolean;
  /**
   * Returns the requests that are complete after this data, in order. The caller must read all of
   * them. Each request is decoded when the caller reads it. A refused request is returned as a
   * FrameError, with `rate_limited` if `admit` refused the request. The codec copies data that it
   * keeps. Throws FrameError if the only request is refused.
   */
  decode(data: Uint8Array, isText: boolean, admit?: Admit): Iterable<Operation | FrameError>;
  /**
   * Reads data before the client's credential has been checked, at a bounded cost: resume points
   * and encryption keys are not processed before `finishDecoding`. Returns `undefined` if no CONNECT
   * is complete. Throws FrameError for data other than CONNECT, except packets that the wire format
   * ignores.
   */
  decodeConnect(data: Uint8Array, isText: boolean): Greeting | undefined;
  /**
   * Returns the refusal of a frame above `maxFrameBytes`. The request in the frame is not decoded.
   * Returns `undefined` if the wire format ignores frame boundaries.
   */
  refuseLarge(data: Uint8Array, maxFrameBytes: number): FrameError | undefined;
  encodeReply(reply: Reply): Frames;
  encodePush(push: Push): Frames;
}

export function largeFrameMessage(maxFrameBytes: number): string {
  return `The frame has more than ${maxFrameBytes} bytes. Send less in one request.`;
}

export interface Protocol {
  readonly name: string;
  /**
   * Returns true if the data can be the first frame in this protocol. Used if no subprotocol was
   * selected.
   */
  speaks(data: Uint8Array, isText: boolean): boolean;
  /** Returns a codec for a connection. Connections may share a codec that has no state. */
  open(): Codec;
}
