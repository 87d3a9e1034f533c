// WKProto clients that behave like WuKongIM's SDKs for phones over TCP. They were written from the
// public sources of the SDKs, but no code of an SDK runs. They divide the byte stream, name a
// protocol version, acknowledge, reconnect and stop as the SDKs do.

import { connect, type Socket } from "node:net";
import type { Test } from "tap";
import { Waiters } from "./waiters.ts";
import {
  decodeServerPacket,
  deriveKeys,
  encodeClientPacket,
  type Fields,
  newKeys,
  type WkKeys,
  type WkPacket,
} from "./wkproto-packets.ts";

export interface PhoneSdk {
  readonly name: string;
  readonly version: number;
  /** Maximum number of bytes that are passed to the parser at once. */
  readonly pieceBytes: number;
  /** Number of bytes that must have arrived before a packet other than PONG is parsed. */
  readonly minPacketBytes: number;
  /** Returns true if the SDK treats a packet of this type as a stream error and reconnects. */
  isStreamError(type: number): boolean;
  /** True if a RECVACK has the flags of its RECV. */
  readonly copiesFlags: boolean;
  readonly acknowledgesUnstored: boolean;
}

const isAboveNine = (type: number) => type > 9;

export const PHONE_SDKS: readonly PhoneSdk[] = [
  {
    name: "Android",
    version: 4,
    pieceBytes: 512,
    minPacketBytes: 5,
    isStreamError: (type) => isAboveNine(type) || [0, 3, 6].includes(type),
    copiesFlags: true,
    acknowledgesUnstored: true,
  },
  {
    name: "iOS",
    version: 4,
    pieceBytes: Number.POSITIVE_INFINITY,
    minPacketBytes: 1,
    isStreamError: () => false,
    copiesFlags: true,
    acknowledgesUnstored: true,
  },
  {
    name: "Flutter, first releases",
    version: 1,
    pieceBytes: Number.POSITIVE_INFINITY,
    minPacketBytes: 5,
    isStreamError: isAboveNine,
    copiesFlags: false,
    acknowledgesUnstored: true,
  },
  {
    name: "HarmonyOS",
    version: 4,
    pieceBytes: Number.POSITIVE_INFINITY,
    minPacketBytes: 5,
    isStreamError: isAboveNine,
    copiesFlags: true,
    acknowledgesUnstored: false,
  },
];

const PONG = 8;
const NO_PERSIST = 1;
const SUCCESS = 1;
const RED_DOT = 2;
/**
 * Time to wait before a reconnect. The SDKs wait 1 to 2 seconds, which would only make the tests
 * slower.
 */
const RECONNECT_MS = 10;
const TIMEOUT_MS = 120_000;

interface PhoneOptions {
  readonly port: number;
  readonly uid: string;
  readonly token: string;
}

export class Phone {
  /** Texts of the received messages, oldest first. */
  readonly texts: string[] = [];
  logins = 0;
  pongs = 0;
  /** True if a DISCONNECT was received, after which the SDKs do not reconnect. */
  isKicked = false;
  readonly #sdk: PhoneSdk;
  readonly #options: PhoneOptions;
  readonly #waiters = new Waiters(TIMEOUT_MS);
  readonly #acknowledged = new Set<number>();
  #socket: Socket | undefined;
  #keyPair = newKeys();
  #keys: WkKeys | undefined;
  #unread = Buffer.alloc(0);
  #clientSeq = 0;
  #isStopped = false;

  constructor(sdk: PhoneSdk, options: PhoneOptions) {
    this.#sdk = sdk;
    this.#options = options;
  }

  start(): void {
    this.#unread = Buffer.alloc(0);
    this.#keyPair = newKeys();
    this.#keys = undefined;
    const socket = connect({ port: this.#options.port, host: "127.0.0.1" });
    this.#socket = socket;
    socket.on("connect", () => this.#sendConnect());
    socket.on("data", (data) => {
      for (let at = 0; at < data.length; at += this.#sdk.pieceBytes)
        if (socket === this.#socket) this.#read(data.subarray(at, at + this.#sdk.pieceBytes));
    });
    socket.on("error", () => undefined); // "close" follows
    socket.on("close", () => {
      if (socket === this.#socket && !this.isKicked && !this.#isStopped)
        setTimeout(() => this.start(), RECONNECT_MS);
    });
  }

  /** Waits until the condition holds. It is checked after every packet. */
  until(holds: () => boolean): Promise<void> {
    return this.#waiters.until(`a state of ${this.#options.uid}`, holds);
  }

  connected(): Promise<void> {
    return this.until(() => this.logins > 0);
  }

  ping(): void {
    this.#write("PING", {});
  }

  /** Sends a text message and waits for its SENDACK. */
  async send(channel: { readonly id: string; readonly type: number }, content: string) {
    this.#clientSeq += 1;
    const clientSeq = this.#clientSeq;
    const fields = {
      ...{ clientSeq, clientMsgNo: `${this.#options.uid}-${clientSeq}` },
      ...{ channelId: channel.id, channelType: channel.type },
      plain: JSON.stringify({ type: 1, content }),
    };
    this.#write("SEND", fields, RED_DOT);
    await this.until(() => this.#acknowledged.has(clientSeq));
  }

  /** Loses the connection. The phone reconnects like the SDK. */
  loseNetwork(): void {
    this.#socket?.destroy();
  }

  stop(): void {
    this.#isStopped = true;
    this.#socket?.destroy();
  }

  #sendConnect(): void {
    this.#write("CONNECT", {
      ...{ version: this.#sdk.version, deviceFlag: 0, deviceId: `phone-of-${this.#options.uid}` },
      ...{ uid: this.#options.uid, token: this.#options.token },
      ...{ clientTimestamp: Date.now(), clientKey: this.#keyPair.clientKey },
    });
  }

  #write(packet: string, fields: Fields, flags = 0): void {
    this.#socket?.write(
      encodeClientPacket({ packet, flags, fields }, this.#sdk.version, this.#keys),
    );
  }

  #read(bytes: Buffer): void {
    this.#unread = Buffer.concat([this.#unread, bytes]);
    while (this.#unread.length > 0) {
      const type = this.#unread.readUInt8(0) >> 4;
      if (this.#sdk.isStreamError(type)) return this.loseNetwork();
      const size = type === PONG ? 1 : this.#packetSize();
      if (size === undefined || size > this.#unread.length) return;
      const packet = this.#unread.subarray(0, size);
      this.#unread = this.#unread.subarray(size);
      this.#handle(decodeServerPacket(packet, this.#sdk.version, this.#keys));
    }
  }

  /** Returns the size of the first packet, or `undefined` if it is not known yet. */
  #packetSize(): number | undefined {
    if (this.#unread.length < this.#sdk.minPacketBytes) return undefined;
    let length = 0;
    for (let at = 1; at < this.#unread.length; at++) {
      const byte = this.#unread.readUInt8(at);
      length += (byte & 127) * 128 ** (at - 1);
      if (byte < 128) return at + 1 + length;
    }
    return undefined;
  }

  #handle({ packet, flags, fields }: WkPacket): void {
    switch (packet) {
      case "CONNACK":
        if (fields.reasonCode !== SUCCESS) return this.stop();
        if (fields.serverKey)
          this.#keys = deriveKeys(
            this.#keyPair.privateKey,
            String(fields.serverKey),
            String(fields.salt),
          );
        this.logins += 1;
        break;
      case "RECV":
        this.#acknowledge(fields, flags);
        this.texts.push(JSON.parse(String(fields.plain)).content ?? "");
        break;
      case "SENDACK":
        this.#acknowledged.add(Number(fields.clientSeq));
        break;
      case "PONG":
        this.pongs += 1;
        break;
      case "DISCONNECT":
        this.isKicked = true;
        this.#socket?.destroy();
        break;
    }
    this.#waiters.check();
  }

  #acknowledge({ messageId = 0, messageSeq = 0 }: Fields, flags: number): void {
    const isUnstored = (flags & NO_PERSIST) !== 0;
    if (isUnstored && !this.#sdk.acknowledgesUnstored) return;
    this.#write("RECVACK", { messageId, messageSeq }, this.#sdk.copiesFlags ? flags : 0);
  }
}

export function startPhone(t: Test, sdk: PhoneSdk, options: PhoneOptions): Phone {
  const phone = new Phone(sdk, options);
  t.teardown(() => phone.stop());
  phone.start();
  return phone;
}
