// A WKProto client for tests, for any protocol version, on one socket. It acknowledges nothing by
// itself and never reconnects.

import { once } from "node:events";
import { WebSocket } from "ws";
import type { TeardownHost } from "./native-client.ts";
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

/** Timeout of every wait for a packet. */
const TIMEOUT_MS = 120_000;

export class WkprotoClient {
  readonly uid: string;
  readonly version: number;
  /** Every received packet, oldest first. Each must be the only one in its WebSocket message. */
  readonly received: WkPacket[] = [];
  /** Close code of the socket, `undefined` while it is open. */
  closeCode: number | undefined;
  readonly #options: WkprotoOptions;
  readonly #socket: WebSocket;
  readonly #keyPair = newKeys();
  readonly #waiters = new Waiters(TIMEOUT_MS);
  #keys: WkKeys | undefined;
  #clientSeq = 0;

  constructor(socket: WebSocket, options: WkprotoOptions) {
    this.uid = options.uid;
    this.version = options.version ?? 5;
    this.#options = options;
    this.#socket = socket;
    socket.on("message", (data: Buffer, isBinary: boolean) => {
      if (!isBinary) throw new Error(`the server sent a text frame: ${data}`);
      this.#receive(data);
    });
    socket.on("close", (code: number) => {
      this.closeCode = code;
      this.#waiters.check();
    });
    socket.on("error", () => undefined); // "close" follows
  }

  /** Keys of the session, `undefined` if the server does not encrypt. */
  get keys(): WkKeys | undefined {
    return this.#keys;
  }

  /** Sends CONNECT and resolves with the CONNACK, also if it refuses the login. */
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

  /** Sends bytes as one WebSocket message. */
  writeBytes(bytes: Uint8Array): void {
    this.#socket.send(bytes, { binary: true });
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
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Destroys the TCP connection without a close frame. */
  kill(): void {
    this.#socket.terminate();
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

/** Opens a socket and sends nothing on it. */
export async function openWkproto(
  t: TeardownHost,
  options: WkprotoOptions,
): Promise<WkprotoClient> {
  const socket = new WebSocket(`ws://127.0.0.1:${options.port}/`, {
    perMessageDeflate: false,
  });
  const client = new WkprotoClient(socket, options);
  t?.teardown(() => client.kill());
  await once(socket, "open");
  return client;
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
