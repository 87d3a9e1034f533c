// WKProto, server side, versions 1 to 5: converts the packets of WuKongIM's SDKs to operations, and
// converts replies and pushes to packets. All codecs share one cache. It holds, for each version,
// the newest RECV packet that was built for an encrypted connection.

import { CLOSE_REASONS, type CloseReason, mayRetry } from "../../../broker/errors.ts";
import {
  type ChannelRef,
  DEVICE_FLAGS,
  GROUP_CHANNEL,
  isId,
  MAX_TOKEN_LENGTH,
  type Message,
  type MessageHeader,
  type Passthrough,
  PERSON_CHANNEL,
  SYSTEM_UID,
} from "../../../broker/model.ts";
import { withoutStack } from "../../../lib/without-stack.ts";
import {
  type Admit,
  type Codec,
  FrameError,
  type Frames,
  type Greeting,
  type Operation,
  type Protocol,
  type Push,
  type Ref,
  type Reply,
  type RequestLimits,
} from "../../../protocol/protocol.ts";
import {
  clientEvent,
  nodeNumber,
  RECEIPT_BIT,
  SIGNAL_BIT,
  snapshotEvents,
} from "../client-view.ts";
import { BANNED_REASON, KICKED_REASON, reasonOf, SUCCESS_REASON } from "../reason-codes.ts";
import type { ClientEvent } from "../stream-lane.ts";
import { agree, isPublicKey, type PayloadCipher, pad, type ServerKeys } from "./crypto.ts";
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
  PacketSplitter,
  packetOf,
  SETTINGS,
  startsWithConnect,
} from "./packets.ts";

interface WkprotoLimits extends Pick<RequestLimits, "maxPayloadBytes" | "maxIdLength"> {
  readonly maxPacketBytes: number;
}

/** Maximum number of ignored packets in one WebSocket message. */
const MAX_IGNORED_PACKETS = 100;
const REQUESTS: ReadonlySet<number> = new Set([
  PACKETS.send,
  PACKETS.recvack,
  PACKETS.ping,
  PACKETS.disconnect,
]);
const NO_FRAMES: Frames = [];
const BAD_KEY = "clientKey must be an X25519 public key in base64";

/**
 * A ref marks a CONNECT or a SEND, and contains the fields of a SEND that SENDACK repeats. It is 0
 * for all other requests.
 *
 *   bits 0 to 31    `clientSeq` of a SEND
 *   bits 32 to 35   flags of a SEND
 *   bit 36          set for a CONNECT
 *   bit 37          set for a SEND
 */
const CONNECT_REF: Ref = 2 ** 36;
const SEND_REF: Ref = 2 ** 37;
const FLAGS_UNIT = 2 ** 32;

/**
 * Reason code for each close reason. It is sent in DISCONNECT, or in CONNACK if CONNACK has not
 * been sent yet. 0 means that neither packet is sent: the client may reconnect, which it would not
 * do after either packet, or it needs no packet (`replaced` and `goodbye`).
 */
const FINAL_REASONS: Readonly<Record<CloseReason, number>> = {
  draining: 0,
  slow_reader: 0,
  replaced: 0,
  rate_limited: 0,
  auth_timeout: 0,
  unavailable: 0,
  token_expired: 0,
  kicked: KICKED_REASON,
  auth_failed: reasonOf("unauthorized"),
  token_changed: KICKED_REASON,
  logged_out: KICKED_REASON,
  protocol_error: reasonOf("malformed_frame"),
  goodbye: 0,
  banned: BANNED_REASON,
};

/** Name of the protocol, also used as the WebSocket subprotocol. */
export const WKPROTO = "wkproto";

export function createWkproto(
  limits: WkprotoLimits,
  { encryption }: { readonly encryption: boolean },
): Protocol {
  const cachedRecvs: CachedRecvs = new Map();
  return {
    name: WKPROTO,
    speaks: (data, isText) => !isText && (data[0] ?? 0) >> 4 === PACKETS.connect,
    open: () => new WkprotoCodec(limits, cachedRecvs, encryption),
  };
}

interface CachedRecv {
  readonly message: Message;
  readonly channelId: string;
  readonly flags: number;
  readonly recv: EncryptedRecv;
}

/**
 * Newest RECV packet of each protocol version. All encrypted connections of a version share its
 * packet, so that only the payload and the signature are computed for each connection.
 */
type CachedRecvs = Map<number, CachedRecv>;

class WkprotoCodec implements Codec {
  readonly acknowledges = true;
  readonly splitsRequests = true;
  readonly isPrivate: boolean;
  readonly #limits: WkprotoLimits;
  readonly #cachedRecvs: CachedRecvs;
  readonly #packets: PacketSplitter;
  #status: "new" | "connecting" | "connected" | "refused" = "new";
  #version = NEWEST_VERSION;
  #clientTimestamp = 0n;
  #clientKey = "";
  #cipher: PayloadCipher | undefined;
  /** Keys to send in CONNACK. `undefined` if there are none or CONNACK has been sent. */
  #keys: ServerKeys | undefined;

  constructor(limits: WkprotoLimits, cachedRecvs: CachedRecvs, isPrivate: boolean) {
    this.#limits = limits;
    this.#cachedRecvs = cachedRecvs;
    this.isPrivate = isPrivate;
    this.#packets = new PacketSplitter(limits.maxPacketBytes);
  }

  get version(): number {
    return this.#version;
  }

  get format(): string {
    if (this.isPrivate) return "wkproto";
    if (this.#version >= EVENT_VERSION) return "wkproto5";
    return this.#version >= EXPIRE_VERSION ? "wkproto3" : "wkproto2";
  }

  *decode(
    data: Uint8Array,
    isText: boolean,
    admit: Admit = () => true,
  ): Generator<Operation | FrameError, void> {
    let hasPing = false;
    let ignoredPackets = 0;
    try {
      requireBinary(isText);
      if (this.#status === "new" && this.#packets.isEmpty) requireConnect(data);
      for (const bytes of this.#packets.split(data)) {
        const packet = packetOf(bytes);
        const isPing = packet.type === PACKETS.ping;
        // several PINGs in one message are answered with one PONG
        const request = isPing && hasPing ? undefined : this.#request(packet, admit);
        hasPing ||= isPing;
        if (request !== undefined) yield request;
        else if (++ignoredPackets > MAX_IGNORED_PACKETS) throw tooManyPackets();
      }
    } catch (error) {
      yield this.#framingError(error);
    }
  }

  /**
   * Refuses nothing, because one WebSocket message may contain many packets. The size of each
   * packet is limited separately.
   */
  refuseLarge(): undefined {
    return undefined;
  }

  decodeConnect(data: Uint8Array, isText: boolean): Greeting | undefined {
    const [request] = [...this.decode(data, isText)];
    if (request instanceof FrameError) throw request;
    if (request?.kind === "connect") return { ...request, finishDecoding: () => this.#agreeKeys() };
    return undefined; // `decode` refuses all other requests before the login
  }

  #agreeKeys(): readonly [] {
    if (!this.isPrivate) return [];
    const agreement = agree(this.#clientKey);
    if (agreement === undefined) throw refusedConnect(BAD_KEY);
    this.#cipher = agreement.cipher;
    this.#keys = agreement.keys;
    return [];
  }

  /**
   * Returns the error to report. Before the login, the error has the ref of the CONNECT, so that
   * CONNACK reports the error.
   */
  #framingError(error: unknown): FrameError {
    if (!(error instanceof FrameError)) throw error;
    if (this.#status === "connected") return error;
    return new FrameError(error.code, CONNECT_REF, error.message, true);
  }

  /**
   * Returns the request, or the error that refuses it. Returns `undefined` if the packet is
   * ignored. Throws FrameErrors.
   */
  #request(packet: Packet, admit: Admit): Operation | FrameError | undefined {
    const { type, flags, body } = packet;
    // Packets that arrive during the login are ignored. Clients send them only from timers, which
    // send them again later.
    if (this.#status === "connecting") return undefined;
    if (type === PACKETS.connect) {
      if (this.#status !== "new") return undefined;
      this.#status = "connecting";
      return this.#connect(readConnect(body));
    }
    if (!REQUESTS.has(type)) return undefined;
    if (!admit(body.length, 0)) {
      const ref = type === PACKETS.send ? sendRef(flags, readClientSeq(body)) : 0;
      return withoutStack(() => new FrameError("rate_limited", ref, ""));
    }
    switch (type) {
      case PACKETS.send:
        return this.#send(flags, readSend(body, this.#version));
      case PACKETS.recvack: {
        const { messageId, messageSeq } = readRecvack(body);
        if ((flags & FLAGS.syncOnce) !== 0) {
          if (messageSeq === 0) return undefined; // the command is not in the inbox
          return { kind: "commandack", ref: 0, inboxSeqs: [messageSeq] };
        }
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
    this.#clientTimestamp = packet.clientTimestamp;
    const flag = DEVICE_FLAGS.find((deviceFlag) => deviceFlag === packet.deviceFlag);
    if (!isId(packet.uid)) return refusedConnect("uid is not a valid id");
    if (packet.deviceId !== "" && !isId(packet.deviceId))
      return refusedConnect("deviceId is not a valid id");
    if (packet.token.length > MAX_TOKEN_LENGTH)
      return refusedConnect(`token exceeds ${MAX_TOKEN_LENGTH} characters`);
    if (flag === undefined) return refusedConnect("deviceFlag must be 0, 1 or 2");
    if (this.isPrivate) {
      if (!isPublicKey(packet.clientKey)) return refusedConnect(BAD_KEY);
      this.#clientKey = packet.clientKey;
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
      sessionName: "",
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
      if (label.length > maxIdLength)
        return new FrameError(
          "too_large",
          ref,
          `clientMsgNo, streamNo or topic exceeds ${maxIdLength} characters`,
        );
    const payload = this.#payloadOf(packet);
    if (payload === undefined)
      return new FrameError(
        "bad_payload",
        ref,
        "The payload cannot be decrypted, or its signature is wrong",
      );
    if (payload.length > maxPayloadBytes)
      return new FrameError("too_large", ref, `The payload exceeds ${maxPayloadBytes} bytes`);
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
      allowsReuse: true,
      payload,
    };
  }

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
        return this.#encodeConnack(reply);
      case "sendack":
        return this.#encodeSendack(reply.ref, SUCCESS_REASON, reply);
      case "pong":
        return PONG;
      case "error":
        // a client does not reconnect after a CONNACK with a refusal, but it does if the connection
        // is closed without a CONNACK
        if (reply.ref === CONNECT_REF)
          return mayRetry(reply.code, reply.retryAfterMs)
            ? NO_FRAMES
            : this.#encodeRefusal(reasonOf(reply.code));
        if (reply.ref < SEND_REF || this.#status !== "connected") return NO_FRAMES;
        return this.#encodeSendack(reply.ref, reasonOf(reply.code));
      case "history":
      case "presence":
      case "stream":
      case "cancel":
      case "conversations":
      case "members":
      case "conversation":
      case "commandack":
      case "watch":
      case "emit":
      case "state":
        return NO_FRAMES;
    }
  }

  encodePush(push: Push): Frames {
    switch (push.kind) {
      case "message":
        return this.#encodeRecv(push.channel, push.message, push.isOwn);
      case "messages":
        return push.messages.map((message) =>
          this.#encodeRecv(push.channel, message, message.fromUid === push.toUid),
        );
      case "command":
        return this.#encodeRecv(push.channel, push.message, push.isOwn, FLAGS.syncOnce);
      case "event": {
        if (this.#version < EVENT_VERSION) return NO_FRAMES;
        const event = clientEvent(push.event);
        return event === undefined ? NO_FRAMES : eventFrame(event);
      }
      case "stream":
        return this.#version < EVENT_VERSION
          ? NO_FRAMES
          : snapshotEvents(push.snapshot).map(eventFrame);
      case "conversation":
      case "presence":
        return NO_FRAMES;
      case "disconnect":
        return this.#encodeDisconnect(push.reason);
    }
  }

  #encodeConnack(reply: Extract<Reply, { kind: "connack" }>): Frames {
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

  #encodeRefusal(reasonCode: number): Frames {
    if (this.#status === "connected" || this.#status === "refused") return NO_FRAMES;
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

  #encodeSendack(
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

  #encodeDisconnect(reason: CloseReason): Frames {
    const code = FINAL_REASONS[reason];
    if (code === 0) return NO_FRAMES;
    return this.#status === "connected"
      ? writeDisconnect(code, CLOSE_REASONS[reason].message)
      : this.#encodeRefusal(code);
  }

  /**
   * Returns the RECV packet. If the packet is cached, only its payload and its signature are
   * computed again.
   */
  #encodeRecv(channel: ChannelRef, message: Message, isOwn = false, command = 0): Uint8Array {
    const flags = command | flagsOf(message.header, isOwn);
    if (this.#cipher === undefined)
      return writeRecv(this.#packetOf(channel, message, flags), this.#version);
    const cached = this.#cachedRecvs.get(this.#version);
    if (cached?.message === message && cached.channelId === channel.id && cached.flags === flags)
      return cached.recv.encryptFor(this.#cipher);
    const packet = this.#packetOf(channel, message, flags);
    const recv = new EncryptedRecv(packet, this.#version);
    const channelId = channel.id;
    this.#cachedRecvs.set(this.#version, { message, channelId, flags, recv });
    return recv.encryptFor(this.#cipher);
  }

  #packetOf(channel: ChannelRef, message: Message, flags: number): RecvPacket {
    const { setting = 0, topic = "" } = message.passthrough ?? {};
    const hasStream = message.stream !== undefined && this.#version >= EVENT_VERSION;
    return {
      flags,
      setting:
        (setting & KEPT_BITS) |
        (topic === "" ? 0 : SETTINGS.topic) |
        (hasStream ? SETTINGS.stream : 0),
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

function requireBinary(isText: boolean): void {
  if (!isText) return;
  const problem = "The packet is text, but packets must be binary";
  throw new FrameError("malformed_frame", 0, problem, true);
}

function requireConnect(data: Uint8Array): void {
  if (startsWithConnect(data)) return;
  throw new FrameError("malformed_frame", 0, "The first packet must be a CONNECT", true);
}

function tooManyPackets(): FrameError {
  const problem =
    "The WebSocket message has too many packets that the server ignores, such as repeated PINGs";
  return new FrameError("malformed_frame", 0, problem, true);
}

function sendRef(flags: number, clientSeq: number): Ref {
  return SEND_REF + flags * FLAGS_UNIT + clientSeq;
}

/** Bits of the `setting` field that do not affect the layout of a packet in any version. */
const KEPT_BITS = RECEIPT_BIT | SIGNAL_BIT;

function passthroughOf({ setting, topic }: SendPacket): Passthrough | undefined {
  const setBits = setting & KEPT_BITS;
  return setBits === 0 && topic === "" ? undefined : { setting: setBits, topic };
}

function refusedConnect(problem: string): FrameError {
  return new FrameError("unauthorized", CONNECT_REF, problem, true);
}

function eventFrame({ timestampMs, ...event }: ClientEvent): Uint8Array {
  return writeEvent({ ...event, timestampMs: BigInt(Math.trunc(timestampMs)) });
}

function flagsOf({ noPersist, redDot, syncOnce }: MessageHeader, isOwn: boolean): number {
  return (
    (noPersist ? FLAGS.noPersist : 0) |
    (redDot && !isOwn ? FLAGS.redDot : 0) |
    (syncOnce ? FLAGS.syncOnce : 0)
  );
}
