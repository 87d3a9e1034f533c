// What every wire format must do: bytes ⇄ operations, replies and pushes. Pure; one codec per connection, no sockets, no store.

import type { CloseReason, ErrorCode } from "../broker/errors.ts";
import type {
  ChannelEvent,
  ChannelRef,
  Conversation,
  DeviceFlag,
  DeviceLevel,
  Message,
  MessageHeader,
  Presence,
  StreamSnapshot,
  StreamState,
} from "../broker/model.ts";

/** A client's number for a request; the reply carries it back. 0 = none. */
export type Ref = number;

export interface ResumePoint {
  readonly channel: ChannelRef;
  /** The newest seq the client has; it wants everything after. */
  readonly lastSeq: number;
  /** The greatest id among the stored messages it has; where seqs were given out again it wants everything with a greater one. 0: not known. */
  readonly lastId?: number;
}

/** What a client asks for. */
export type Operation =
  | {
      readonly kind: "connect";
      readonly ref: Ref;
      readonly version: number;
      readonly uid: string;
      readonly token: string;
      readonly flag: DeviceFlag;
      readonly deviceId: string;
      /** Only honoured when client authentication is off. */
      readonly level: DeviceLevel | undefined;
      readonly resume: readonly ResumePoint[];
      /** The session it continues, or the client's own name for this login; "": none. */
      readonly session: string;
    }
  | {
      readonly kind: "send";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      /** Empty: the server makes one and does not deduplicate. */
      readonly clientMsgNo: string;
      readonly header: MessageHeader & { readonly syncOnce: boolean };
      readonly expireS: number;
      readonly streamNo: string | undefined;
      readonly tagKey: string | undefined;
      /** Owned by the operation. */
      readonly payload: Uint8Array;
    }
  | {
      readonly kind: "recvack";
      readonly ref: Ref;
      readonly channel: ChannelRef;
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
      /** How a stream stands; its live events follow in any case. */
      readonly kind: "stream";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      /** The stop button. */
      readonly kind: "cancel";
      readonly ref: Ref;
      readonly channel: ChannelRef;
      readonly clientMsgNo: string;
    }
  | {
      readonly kind: "conversations";
      readonly ref: Ref;
      readonly limit: number;
      /** How many of the newest to leave out. */
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
      /** Whose online state to push from now on, in place of those before. */
      readonly kind: "watch";
      readonly ref: Ref;
      readonly uids: readonly string[];
    }
  | { readonly kind: "ping"; readonly ref: Ref }
  | { readonly kind: "disconnect"; readonly ref: Ref };

/** As `ConversationChange` of the broker's ports, which no protocol may import. */
export type ConversationChange =
  | { readonly kind: "read"; readonly seq: number }
  | { readonly kind: "unread"; readonly unread: number }
  | { readonly kind: "delete" };

export type OperationKind = Operation["kind"];

/** What became of one resume point. */
export interface ResumeResult {
  readonly channel: ChannelRef;
  /** `denied`: not a member; nothing will come. */
  readonly status: "ok" | "denied";
  /**
   * The channel's newest seq at connect: the client is level once it has this one. Below its lastSeq where the histories part: it goes on from
   * there. 0 when denied.
   */
  readonly headSeq: number;
}

export interface ConnectionLimits {
  readonly maxFrameBytes: number;
  readonly maxPayloadBytes: number;
  readonly idleTimeoutS: number;
  readonly maxFramesPerSecond: number;
}

/** What the server says on its own or in answer; `ref` as in the request. */
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
      /** More messages of the asked range lie beyond the limit. */
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
      /** The channel as the receiver names it. */
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
      /** More lie behind the last one. */
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
      /** How many were there to acknowledge. */
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

/** What happened elsewhere. */
export type Push =
  | {
      readonly kind: "message";
      /** The channel as the receiver names it. */
      readonly channel: ChannelRef;
      readonly message: Message;
    }
  | {
      /** A run of missed messages: all there is of the channel after `afterSeq` through `throughSeq`. */
      readonly kind: "messages";
      readonly channel: ChannelRef;
      readonly afterSeq: number;
      readonly throughSeq: number;
      readonly messages: readonly Message[];
    }
  | {
      readonly kind: "event";
      /** The channel as the receiver names it. */
      readonly channel: ChannelRef;
      readonly event: ChannelEvent;
    }
  | {
      /** An active stream as it stands: what comes next of it begins at its nextIndex. Replaces what the receiver had of it. */
      readonly kind: "stream";
      readonly channel: ChannelRef;
      readonly snapshot: StreamSnapshot;
    }
  | {
      readonly kind: "command";
      /** The channel as the receiver names it. */
      readonly channel: ChannelRef;
      /** To acknowledge it with; 0: nothing to acknowledge. */
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

/** A frame that cannot be read. `ref` is the request's where it could be read, else 0. */
export class FrameError extends Error {
  readonly code: ErrorCode;
  readonly ref: Ref;
  /** The connection cannot go on: sync is lost or the peer speaks something else. */
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
  /** Sessions of one format share encoded pushes. */
  readonly format: string;
  /** The operations in one incoming frame. Copies what it keeps of `data`. Throws FrameError. */
  decode(data: Uint8Array, isText: boolean): readonly Operation[];
  /** The ref to answer a frame with that is refused without reading the rest of it. Throws FrameError. */
  refOf(data: Uint8Array, isText: boolean): Ref;
  encodeReply(reply: Reply): Frame;
  encodePush(push: Push): Frame;
}

export interface Protocol {
  readonly name: string;
  open(): Codec;
}
