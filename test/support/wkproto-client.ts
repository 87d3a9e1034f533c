// A WKProto client for tests, for any protocol version, on one WebSocket or TCP connection. It
// acknowledges nothing by itself and never reconnects.

import { once } from "node:events";
import { connect, type Socket } from "node:net";
import { connect as connectTls } from "node:tls";
import { WebSocket } from "ws";
import type { Settings } from "./broker.ts";
import { WKPROTO_OVER } from "./driver.ts";
import type { TeardownHost } from "./native-client.ts";
import { Random } from "./random.ts";
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

export interface WkprotoOptions {
  readonly port: number;
  readonly uid: string;
  readonly token?: string;
  /** Default: 5. */
  readonly version?: number;
  readonly deviceFlag?: number;
  readonly deviceId?: string;
  /** Default: a new public key. */
  readonly clientKey?: string;
}

export interface TcpOptions {
  /** Bytes to send in front of the first packet, such as a PROXY header. */
  readonly before?: Uint8Array;
  readonly localAddress?: string;
  /** Certificate authority of a TLS connection, `undefined` without TLS. */
  readonly ca?: Buffer;
}

/** A connection of either kind. */
interface Wire {
  send(bytes: Uint8Array): void;
  pause(): void;
  resume(): void;
  kill(): void;
}

interface WireEvents {
  received(packet: Buffer): void;
  closed(code: number): void;
}

const PONG_TYPE = 8;

/** Timeout of every wait for a packet. */
const TIMEOUT_MS = 120_000;

export class WkprotoClient {
  readonly uid: string;
  readonly version: number;
  /** Every received packet, oldest first. */
  readonly received: WkPacket[] = [];
  /** Close code of the socket, `undefined` while it is open. Over TCP it is always 1006. */
  closeCode: number | undefined;
  readonly #options: WkprotoOptions;
  readonly #wire: Wire;
  readonly #keyPair = newKeys();
  readonly #waiters = new Waiters(TIMEOUT_MS);
  #keys: WkKeys | undefined;
  #clientSeq = 0;

  constructor(wireOf: (events: WireEvents) => Wire, options: WkprotoOptions) {
    this.uid = options.uid;
    this.version = options.version ?? 5;
    this.#options = options;
    this.#wire = wireOf({
      received: (packet) => this.#receive(packet),
      closed: (code) => {
        this.closeCode = code;
        this.#waiters.check();
      },
    });
  }

  /** Keys of the session, or `undefined` if the server does not encrypt. */
  get keys(): WkKeys | undefined {
    return this.#keys;
  }

  /** Sends CONNECT and resolves with the CONNACK, even if it refuses the login. */
  async connect(): Promise<Fields> {
    const { token = `token-${this.uid}` } = this.#options;
    this.write("CONNECT", {
      version: this.version,
      deviceFlag: this.#options.deviceFlag ?? 1,
      deviceId: this.#options.deviceId ?? `device-of-${this.uid}`,
      uid: this.uid,
      token,
      clientTimestamp: Date.now(),
      clientKey: this.#options.clientKey ?? this.#keyPair.clientKey,
    });
    return this.next("CONNACK");
  }

  /** Sends a payload (text, or an object as JSON) and resolves with the SENDACK. */
  async send(
    channel: { readonly id: string; readonly type: number },
    payload: object | string,
    options: Fields & { readonly flags?: number } = {},
  ): Promise<Fields> {
    const { flags = 2, ...fields } = options;
    this.#clientSeq += 1;
    const clientSeq = this.#clientSeq;
    this.write(
      "SEND",
      {
        clientSeq,
        clientMsgNo: `${this.uid}-${clientSeq}`,
        channelId: channel.id,
        channelType: channel.type,
        plain: typeof payload === "string" ? payload : JSON.stringify(payload),
        ...fields,
      },
      flags,
    );
    return this.next("SENDACK", (ack) => ack.clientSeq === clientSeq);
  }

  recvack({ flags, fields: { messageId = 0, messageSeq = 0 } }: WkPacket): void {
    this.write("RECVACK", { messageId, messageSeq }, flags);
  }

  /** Sends PING and waits for PONG. All earlier replies and pushes have arrived by then. */
  async ping(): Promise<void> {
    const before = this.#count("PONG");
    this.write("PING");
    await this.#waiters.until("a PONG", () => this.#count("PONG") > before);
  }

  write(packet: string, fields: Fields = {}, flags = 0): void {
    this.writeBytes(this.encode(packet, fields, flags));
  }

  encode(packet: string, fields: Fields = {}, flags = 0): Buffer {
    const { version } = this;
    return encodeClientPacket({ packet, flags, fields }, version, this.#keys);
  }

  /** Sends bytes as one WebSocket message, or over TCP in random pieces. */
  writeBytes(bytes: Uint8Array): void {
    this.#wire.send(bytes);
  }

  /**
   * Returns the fields of the first packet of this kind that passes the filter, among all packets
   * received so far. Waits for it if there is none.
   */
  async next(
    kind: string,
    filter: (fields: Fields, flags: number) => boolean = () => true,
  ): Promise<Fields> {
    const packet = await this.nth(
      1,
      ({ packet, flags, fields }) => packet === kind && filter(fields, flags),
    );
    return packet.fields;
  }

  /** Waits for the packet with this number, counted from 1, among those that pass the filter. */
  async nth(number: number, filter: (packet: WkPacket) => boolean): Promise<WkPacket> {
    const match = () => this.received.filter(filter)[number - 1];
    await this.#waiters.until(`packet ${number} for ${this.uid}`, () => {
      if (match() === undefined && this.closeCode !== undefined)
        throw new Error(`closed with ${this.closeCode} before packet ${number}`);
      return match() !== undefined;
    });
    const packet = match();
    if (packet === undefined) throw new Error("the packet that was waited for is missing");
    return packet;
  }

  /** Texts of the received messages, oldest first. */
  get texts(): readonly string[] {
    return this.received
      .filter(({ packet }) => packet === "RECV")
      .map(({ fields }) => JSON.parse(String(fields.plain)).content);
  }

  /** Waits for a message with this text. */
  text(content: string): Promise<WkPacket> {
    return this.nth(
      1,
      ({ packet, fields }) =>
        packet === "RECV" && JSON.parse(String(fields.plain)).content === content,
    );
  }

  /** Waits until the socket is closed and returns the close code. */
  async closed(): Promise<number> {
    await this.#waiters.until(`the close of ${this.uid}`, () => this.closeCode !== undefined);
    return this.closeCode ?? 0;
  }

  /** Stops reading, so that the server's buffers fill up. */
  pause(): void {
    this.#wire.pause();
  }

  resume(): void {
    this.#wire.resume();
  }

  /** Destroys the TCP connection without a close frame. */
  kill(): void {
    this.#wire.kill();
  }

  #receive(data: Buffer): void {
    const packet = decodeServerPacket(data, this.version, this.#keys);
    this.received.push(packet);
    const { serverKey, salt } = packet.fields;
    if (packet.packet === "CONNACK" && serverKey)
      this.#keys = deriveKeys(this.#keyPair.privateKey, String(serverKey), String(salt));
    this.#waiters.check();
  }

  #count(kind: string): number {
    return this.received.filter(({ packet }) => packet === kind).length;
  }
}

/** Settings of a broker with a listener for WKProto over TCP. */
export const TCP_LISTENER: Settings = { JINDOU_PROTOCOL_WKPROTO_LISTEN: "127.0.0.1:0" };
/** Settings of a broker to which `openWkproto` connects. */
export const WKPROTO_LISTENER: Settings = WKPROTO_OVER === "tcp" ? TCP_LISTENER : {};

interface Ports {
  readonly clientPort: number;
  readonly wkprotoPort?: number | undefined;
}

/** Returns the port for `openWkproto`. */
export function wkprotoPortOf(broker: Ports): number {
  return WKPROTO_OVER === "tcp" ? tcpPortOf(broker) : broker.clientPort;
}

/** Returns the port for WKProto over TCP. */
export function tcpPortOf({ wkprotoPort }: Ports): number {
  if (wkprotoPort === undefined) throw new Error("the broker has no TCP listener for WKProto");
  return wkprotoPort;
}

/** Returns the close code that `openWkproto`'s client sees for this code. */
export function closeCodeOf(code: number): number {
  return WKPROTO_OVER === "tcp" ? ABNORMAL : code;
}

/**
 * Opens a WebSocket or a TCP connection, depending on JINDOU_TEST_WKPROTO, and sends nothing on it.
 */
export function openWkproto(t: TeardownHost, options: WkprotoOptions): Promise<WkprotoClient> {
  return WKPROTO_OVER === "tcp" ? openWkprotoTcp(t, options) : openWkprotoSocket(t, options);
}

/** Opens a WebSocket and sends nothing on it. */
export async function openWkprotoSocket(
  t: TeardownHost,
  options: WkprotoOptions,
): Promise<WkprotoClient> {
  const socket = new WebSocket(`ws://127.0.0.1:${options.port}/`, {
    perMessageDeflate: false,
  });
  const client = new WkprotoClient((events) => webSocketWire(socket, events), options);
  t?.teardown(() => client.kill());
  await once(socket, "open");
  return client;
}

/** Opens a TCP connection and sends only `before`. Later bytes are sent in random pieces. */
export async function openWkprotoTcp(
  t: TeardownHost,
  options: WkprotoOptions,
  { before, localAddress, ca }: TcpOptions = {},
): Promise<WkprotoClient> {
  const to = { host: "127.0.0.1", port: options.port, ...(localAddress && { localAddress }) };
  const plain = connect({ ...to, noDelay: true });
  if (before !== undefined) plain.write(before);
  const socket = ca === undefined ? plain : connectTls({ socket: plain, ca });
  const client = new WkprotoClient((events) => tcpWire(socket, events), options);
  t?.teardown(() => client.kill());
  await once(socket, ca === undefined ? "connect" : "secureConnect");
  return client;
}

/** Returns the wire of a WebSocket. Each message of the server must contain exactly one packet. */
function webSocketWire(socket: WebSocket, events: WireEvents): Wire {
  socket.on("message", (data: Buffer, isBinary: boolean) => {
    if (!isBinary) throw new Error(`the server sent a text frame: ${data}`);
    events.received(data);
  });
  socket.on("close", events.closed);
  socket.on("error", () => undefined); // "close" follows
  return {
    send: (bytes) => socket.send(bytes, { binary: true }),
    pause: () => socket.pause(),
    resume: () => socket.resume(),
    kill: () => socket.terminate(),
  };
}

/** Code of a connection that closed without a close frame. */
const ABNORMAL = 1006;

function tcpWire(socket: Socket, events: WireEvents): Wire {
  let unread = Buffer.alloc(0);
  socket.on("data", (data: Buffer) => {
    unread = Buffer.concat([unread, data]);
    for (let end = packetEnd(unread); end > 0; end = packetEnd(unread)) {
      events.received(unread.subarray(0, end));
      unread = unread.subarray(end);
    }
  });
  socket.on("close", () => events.closed(ABNORMAL));
  socket.on("error", () => undefined); // "close" follows
  return {
    send: writingInPieces(socket),
    pause: () => socket.pause(),
    resume: () => socket.resume(),
    kill: () => socket.destroy(),
  };
}

/** Returns a function that sends bytes in pieces, which the server usually reads one by one. */
function writingInPieces(socket: Socket): (bytes: Uint8Array) => void {
  const random = new Random(++connectionCount);
  let unsent = Buffer.alloc(0);
  const sendPiece = () => {
    const size = random.flip() ? unsent.length : 1 + random.below(unsent.length);
    socket.write(unsent.subarray(0, size));
    unsent = unsent.subarray(size);
    if (unsent.length > 0) setImmediate(sendPiece);
  };
  return (bytes) => {
    const isSending = unsent.length > 0;
    unsent = Buffer.concat([unsent, bytes]);
    if (!isSending && unsent.length > 0) sendPiece();
  };
}

/** Number of connections so far. It is the seed for the piece sizes of the newest connection. */
let connectionCount = 0;

/** Returns the size of the first packet, or 0 if it is not complete. */
function packetEnd(bytes: Buffer): number {
  const first = bytes[0];
  if (first === undefined) return 0;
  if (first >> 4 === PONG_TYPE) return 1;
  let length = 0;
  for (let at = 1; at < bytes.length; at++) {
    const byte = bytes.readUInt8(at);
    length += (byte & 127) * 128 ** (at - 1);
    if (byte < 128) return at + 1 + length <= bytes.length ? at + 1 + length : 0;
  }
  return 0;
}

/** Opens a socket and logs in. Throws if the login is refused. */
export async function connectWkproto(
  t: TeardownHost,
  options: WkprotoOptions,
): Promise<WkprotoClient> {
  const client = await openWkproto(t, options);
  const { reasonCode } = await client.connect();
  if (reasonCode !== 1) throw new Error(`the login was refused with reason code ${reasonCode}`);
  return client;
}
