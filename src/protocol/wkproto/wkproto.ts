// WKProto on the server, versions 1 to 5: the packets of WuKongIM's SDKs as operations, replies and
// pushes. State: per connection its version, its keys, how far its login is, and a packet that has
// not come whole; for all connections the newest encrypted message.

import { CLOSE_REASONS, type CloseReason, ERRORS } from "../../broker/errors.ts";
import {
  type ChannelRef,
  DEVICE_FLAGS,
  GROUP_CHANNEL,
  isId,
  type Message,
  type Passthrough,
  PERSON_CHANNEL,
  SYSTEM_UID,
} from "../../broker/model.ts";
import {
  type Codec,
  FrameError,
  type Frames,
  MAX_TOKEN_LENGTH,
  type Operation,
  type Protocol,
  type Push,
  type Ref,
  type Reply,
  type RequestLimits,
} from "../protocol.ts";
import { KICKED_REASON, reasonOf, SUCCESS_REASON } from "../reason-codes.ts";
import {
  type ClientEvent,
  clientEvent,
  nodeNumber,
  RECEIPT_BIT,
  SIGNAL_BIT,
  snapshotEvents,
} from "../wukongim.ts";
import { agree, type PayloadCipher, pad, type ServerKeys } from "./crypto.ts";
import {
  type ConnectPacket,
  readClientSeq,
  readConnect,
  readRecvack,
  readSend,
  type SendPacket,
} from "./decode.ts";
import {
  EncryptedRecv,
  PONG,
  type RecvPacket,
  writeConnack,
  writeDisconnect,
  writeEvent,
  writeRecv,
  writeSendack,
} from "./encode.ts";
import {
  EVENT_VERSION,
  EXPIRE_VERSION,
  FLAGS,
  NEWEST_VERSION,
  PACKETS,
  type Packet,
  PacketStream,
  SETTINGS,
} from "./packets.ts";

interface WkprotoLimits extends Pick<RequestLimits, "maxPayloadBytes" | "maxIdLength"> {
  /** Bytes of one packet. */
  readonly maxPacketBytes: number;
}

/** Packets of one message that ask for nothing. */
const MAX_IGNORED_PACKETS = 100;
const NOTHING: Frames = [];

/**
 * What a ref says of the request, beside a SEND's clientSeq and flags. Requests without an answer
 * have ref 0.
 */
const CONNECT_REF: Ref = 2 ** 36;
const SEND_REF: Ref = 2 ** 37;
const FLAGS_UNIT = 2 ** 32;

/**
 * The reason in DISCONNECT, or in CONNACK when that was not sent; 0: the client should come back,
 * so nothing is sent, because clients take both for an order to stay away.
 */
const FINAL_REASONS: Readonly<Record<CloseReason, number>> = {
  draining: 0,
  slow_reader: 0,
  replaced: 0,
  rate_limited: 0,
  auth_timeout: 0,
  unavailable: 0,
  kicked: KICKED_REASON,
  auth_failed: reasonOf("unauthorized"),
  token_changed: KICKED_REASON,
  logged_out: KICKED_REASON,
  protocol_error: reasonOf("malformed_frame"),
  goodbye: 0,
};

export function createWkproto(
  limits: WkprotoLimits,
  { encryption }: { readonly encryption: boolean },
): Protocol {
  const newest: NewestRecvs = new Map();
  return {
    name: "wkproto",
    speaks: (data, isText) => !isText && (data[0] ?? 0) >> 4 === PACKETS.connect,
    open: () => new WkprotoCodec(limits, newest, encryption),
  };
}

/** A message as encrypted for one client, to be encrypted for others. */
interface NewestRecv {
  readonly message: Message;
  readonly channelId: string;
  readonly flags: number;
  readonly recv: EncryptedRecv;
}

/** By version. */
type NewestRecvs = Map<number, NewestRecv>;

class WkprotoCodec implements Codec {
  readonly acknowledges = true;
  /** What it sends and takes is encrypted. */
  readonly isPrivate: boolean;
  readonly #limits: WkprotoLimits;
  readonly #newest: NewestRecvs;
  readonly #packets: PacketStream;
  #status: "new" | "connecting" | "connected" | "refused" = "new";
  #version = NEWEST_VERSION;
  #uid = "";
  #clientTimestamp = 0n;
  #cipher: PayloadCipher | undefined;
  /** Until they are sent. */
  #keys: ServerKeys | undefined;

  constructor(limits: WkprotoLimits, newest: NewestRecvs, isPrivate: boolean) {
    this.#limits = limits;
    this.#newest = newest;
    this.isPrivate = isPrivate;
    this.#packets = new PacketStream(limits.maxPacketBytes);
  }

  get version(): number {
    return this.#version;
  }

  get format(): string {
    if (this.isPrivate) return "wkproto";
    if (this.#version >= EVENT_VERSION) return "wkproto5";
    return this.#version >= EXPIRE_VERSION ? "wkproto3" : "wkproto2";
  }

  decode(data: Uint8Array, isText: boolean): (Operation | FrameError)[] {
    const requests: (Operation | FrameError)[] = [];
    let hasPing = false;
    try {
      this.#read(data, isText, (packet) => {
        const isPing = packet.type === PACKETS.ping;
        const request = isPing && hasPing ? undefined : this.#request(packet); // one PONG is enough
        hasPing ||= isPing;
        if (request !== undefined) requests.push(request);
        return request !== undefined;
      });
    } catch (error) {
      requests.push(this.#lost(error));
    }
    return requests;
  }

  refsOf(data: Uint8Array, isText: boolean): readonly Ref[] {
    const refs: Ref[] = [];
    this.#read(data, isText, ({ type, flags, body }) => {
      if (type !== PACKETS.send) return false;
      refs.push(sendRef(flags, readClientSeq(body)));
      return true;
    });
    return refs;
  }

  /**
   * `use` tells whether the packet is a request, which the client pays for; of others a message
   * holds few.
   */
  #read(data: Uint8Array, isText: boolean, use: (packet: Packet) => boolean): void {
    if (isText) throw new FrameError("malformed_frame", 0, "Packets are binary", true);
    let others = 0;
    this.#packets.take(data, (packet) => {
      if (!use(packet)) others += 1;
      if (others <= MAX_IGNORED_PACKETS) return;
      const problem = "Too many packets without a request";
      throw new FrameError("malformed_frame", 0, problem, true);
    });
  }

  /** Before CONNACK the client learns of it there. */
  #lost(error: unknown): FrameError {
    if (!(error instanceof FrameError)) throw error;
    if (this.#status === "connected") return error;
    return new FrameError(error.code, CONNECT_REF, error.message, true);
  }

  /** Undefined: the packet is ignored. Throws FrameError, fatal. */
  #request({ type, flags, body }: Packet): Operation | FrameError | undefined {
    if (this.#status === "connecting") return undefined; // a timer of the client; what it sends then, it sends again
    switch (type) {
      case PACKETS.connect:
        if (this.#status !== "new") return undefined;
        this.#status = "connecting";
        return this.#connect(readConnect(body));
      case PACKETS.send:
        return this.#send(flags, readSend(body, this.#version));
      case PACKETS.recvack: {
        const { messageId, messageSeq } = readRecvack(body);
        if ((flags & FLAGS.syncOnce) !== 0)
          return { kind: "commandack", ref: 0, inboxSeqs: [messageSeq] };
        return {
          kind: "recvack",
          ref: 0,
          channel: undefined,
          messageSeq,
          messageId: Number(messageId),
        };
      }
      case PACKETS.ping:
        return { kind: "ping", ref: 0 };
      case PACKETS.disconnect:
        return { kind: "disconnect", ref: 0 };
      default:
        return undefined;
    }
  }

  #connect(packet: ConnectPacket): Operation | FrameError {
    this.#version = Math.min(packet.version, NEWEST_VERSION);
    this.#uid = packet.uid;
    this.#clientTimestamp = packet.clientTimestamp;
    const flag = DEVICE_FLAGS.find((known) => known === packet.deviceFlag);
    if (!isId(packet.uid)) return refusedConnect("uid is not a valid id");
    if (packet.deviceId !== "" && !isId(packet.deviceId))
      return refusedConnect("deviceId is not a valid id");
    if (packet.token.length > MAX_TOKEN_LENGTH) return refusedConnect("token is too long");
    if (flag === undefined) return refusedConnect("deviceFlag must be 0, 1 or 2");
    if (this.isPrivate) {
      const agreed = agree(packet.clientKey);
      if (agreed === undefined) return refusedConnect("clientKey is not a public key in base64");
      this.#cipher = agreed.cipher;
      this.#keys = agreed.keys;
    }
    return {
      kind: "connect",
      ref: CONNECT_REF,
      version: this.#version,
      uid: packet.uid,
      token: packet.token,
      flag,
      deviceId: packet.deviceId,
      level: undefined,
      resume: [],
      session: "",
    };
  }

  #send(flags: number, packet: SendPacket): Operation | FrameError {
    const ref = sendRef(flags, packet.clientSeq);
    const { channelId: id, channelType: type, clientMsgNo, topic } = packet;
    const { streamNo } = packet;
    const { maxIdLength, maxPayloadBytes } = this.#limits;
    if (type !== PERSON_CHANNEL && type !== GROUP_CHANNEL)
      return new FrameError("bad_request", ref, "channelType must be 1 or 2");
    if (!isId(id)) return new FrameError("bad_id", ref, "channelId is not a valid id");
    for (const label of [clientMsgNo, streamNo, topic])
      if (label.length > maxIdLength) return new FrameError("too_large", ref, "A name is too long");
    const payload = this.#payloadOf(packet);
    if (payload === undefined)
      return new FrameError("bad_payload", ref, "The payload is not readable");
    if (payload.length > maxPayloadBytes)
      return new FrameError("too_large", ref, "The payload is too long");
    return {
      kind: "send",
      ref,
      channel: { id, type },
      clientMsgNo,
      header: {
        noPersist: (flags & FLAGS.noPersist) !== 0,
        redDot: (flags & FLAGS.redDot) !== 0,
        syncOnce: (flags & FLAGS.syncOnce) !== 0,
      },
      expireS: packet.expireS,
      streamNo: streamNo || undefined,
      tagKey: undefined,
      passthrough: passthroughOf(packet),
      payload,
    };
  }

  /** Undefined: its signature is wrong, or it is not encrypted with the connection's key. */
  #payloadOf(packet: SendPacket): Uint8Array | undefined {
    const { payload, clientSeq, clientMsgNo, channelId, channelType } = packet;
    if (this.#cipher === undefined) return Uint8Array.from(payload);
    const signed = `${clientSeq}${clientMsgNo}${channelId}${channelType}`;
    if (this.#cipher.sign(pad(signed, payload)) !== packet.msgKey) return undefined;
    const plain = this.#cipher.decrypt(payload);
    return plain && new Uint8Array(plain.buffer, plain.byteOffset, plain.length);
  }

  encodeReply(reply: Reply): Frames {
    switch (reply.kind) {
      case "connack":
        return this.#accept(reply);
      case "sendack":
        return this.#sendack(reply.ref, SUCCESS_REASON, reply);
      case "pong":
        return PONG;
      case "error":
        if (reply.ref === CONNECT_REF)
          return ERRORS[reply.code].retry
            ? NOTHING // a refused client stays away; closed without an answer it comes back
            : this.#refuse(reasonOf(reply.code));
        if (reply.ref < SEND_REF || this.#status !== "connected") return NOTHING;
        return this.#sendack(reply.ref, reasonOf(reply.code));
      case "history":
      case "presence":
      case "stream":
      case "cancel":
      case "conversations":
      case "conversation":
      case "commandack":
      case "watch":
        return NOTHING;
    }
  }

  encodePush(push: Push): Frames {
    switch (push.kind) {
      case "message":
        return this.#recv(push.channel, push.message);
      case "messages":
        return push.messages.map((one) => this.#recv(push.channel, one));
      case "command":
        return this.#recv(push.channel, push.message, FLAGS.syncOnce);
      case "event":
        return this.#version < EVENT_VERSION ? NOTHING : eventFrame(clientEvent(push.event));
      case "stream":
        return this.#version < EVENT_VERSION
          ? NOTHING
          : snapshotEvents(push.snapshot).map(eventFrame);
      case "conversation":
      case "presence":
        return NOTHING;
      case "disconnect":
        return this.#disconnect(push.reason);
    }
  }

  #accept(reply: Extract<Reply, { kind: "connack" }>): Frames {
    this.#status = "connected";
    const { serverKey = "", salt = "" } = this.#keys ?? {};
    this.#keys = undefined;
    return writeConnack({
      version: this.#version,
      timeDiff: BigInt.asIntN(64, BigInt(reply.serverTimeMs) - this.#clientTimestamp),
      reasonCode: SUCCESS_REASON,
      serverKey,
      salt,
      nodeId: BigInt(nodeNumber(reply.nodeId)),
    });
  }

  /** Sends nothing when the login was answered. */
  #refuse(reasonCode: number): Frames {
    if (this.#status === "connected" || this.#status === "refused") return NOTHING;
    this.#status = "refused";
    return writeConnack({
      version: this.#version,
      timeDiff: 0n,
      reasonCode,
      serverKey: "",
      salt: "",
      nodeId: 0n,
    });
  }

  #sendack(
    ref: Ref,
    reasonCode: number,
    { messageId, messageSeq } = { messageId: 0, messageSeq: 0 },
  ): Frames {
    const request = ref - SEND_REF;
    return writeSendack({
      flags: Math.floor(request / FLAGS_UNIT),
      messageId: BigInt(messageId),
      clientSeq: request % FLAGS_UNIT,
      messageSeq,
      reasonCode,
    });
  }

  #disconnect(reason: CloseReason): Frames {
    const code = FINAL_REASONS[reason];
    if (code === 0) return NOTHING;
    return this.#status === "connected"
      ? writeDisconnect(code, CLOSE_REASONS[reason].message)
      : this.#refuse(code);
  }

  #recv(channel: ChannelRef, message: Message, command = 0): Uint8Array {
    const flags = command | this.#flagsFor(message);
    if (this.#cipher === undefined)
      return writeRecv(this.#packetOf(channel, message, flags), this.#version);
    const newest = this.#newest.get(this.#version);
    if (newest?.message === message && newest.channelId === channel.id && newest.flags === flags)
      return newest.recv.for(this.#cipher);
    const packet = this.#packetOf(channel, message, flags);
    const recv = new EncryptedRecv(packet, this.#version);
    const channelId = channel.id;
    this.#newest.set(this.#version, { message, channelId, flags, recv });
    return recv.for(this.#cipher);
  }

  /**
   * One's own message has no red dot, unless the frame is shared with members of a group who did
   * not send it.
   */
  #flagsFor({ header, fromUid, channel }: Message): number {
    const isShared = channel.type === GROUP_CHANNEL && !this.isPrivate;
    const isOwn = fromUid === this.#uid && !isShared;
    return (header.noPersist ? FLAGS.noPersist : 0) | (header.redDot && !isOwn ? FLAGS.redDot : 0);
  }

  #packetOf(channel: ChannelRef, message: Message, flags: number): RecvPacket {
    const { setting = 0, topic = "" } = message.passthrough ?? {};
    const hasStream = message.stream !== undefined && this.#version >= EVENT_VERSION;
    return {
      flags,
      setting: setting | (topic === "" ? 0 : SETTINGS.topic) | (hasStream ? SETTINGS.stream : 0),
      fromUid: message.fromUid === SYSTEM_UID ? "" : message.fromUid,
      channelId: channel.id,
      channelType: channel.type,
      expireS: message.expireS,
      clientMsgNo: message.clientMsgNo,
      messageId: BigInt(message.messageId),
      messageSeq: message.messageSeq,
      timestampS: Math.floor(message.timestampMs / 1000),
      topic,
      payload: message.payload,
    };
  }
}

function sendRef(flags: number, clientSeq: number): Ref {
  return SEND_REF + flags * FLAGS_UNIT + clientSeq;
}

/** The bits that say nothing of a packet's layout in any version. Undefined: there is nothing to pass on. */
function passthroughOf({ setting, topic }: SendPacket): Passthrough | undefined {
  const passed = setting & (RECEIPT_BIT | SIGNAL_BIT);
  return passed === 0 && topic === "" ? undefined : { setting: passed, topic };
}

function refusedConnect(problem: string): FrameError {
  return new FrameError("unauthorized", CONNECT_REF, problem, true);
}

function eventFrame({ timestampMs, ...event }: ClientEvent): Uint8Array {
  return writeEvent({ ...event, timestampMs: BigInt(Math.trunc(timestampMs)) });
}
