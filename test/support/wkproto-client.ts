// A WKProto client for tests, of any protocol version: one socket, packets in, packets out. It
// acknowledges nothing and never reconnects, so that tests see what the server does.

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

/** Longest that a packet is waited for. */
const PATIENCE_MS = 120_000;

export class WkprotoClient {
  readonly uid: string;
  readonly version: number;
  /** All that came, oldest first, each from a message of its own. */
  readonly received: WkPacket[] = [];
  /** The code of the close; undefined: open. */
  closeCode: number | undefined;
  readonly #options: WkprotoOptions;
  readonly #socket: WebSocket;
  readonly #own = newKeys();
  readonly #waiters = new Waiters(PATIENCE_MS);
  #keys: WkKeys | undefined;
  #clientSeq = 0;

  constructor(socket: WebSocket, options: WkprotoOptions) {
    this.uid = options.uid;
    this.version = options.version ?? 5;
    this.#options = options;
    this.#socket = socket;
    socket.on("message", (data: Buffer, isBinary: boolean) => {
      if (!isBinary) throw new Error(`a text frame came: ${data}`);
      this.#receive(data);
    });
    socket.on("close", (code: number) => {
      this.closeCode = code;
      this.#waiters.check();
    });
    socket.on("error", () => undefined); // its close follows
  }

  /** Undefined: the server does not encrypt. */
  get keys(): WkKeys | undefined {
    return this.#keys;
  }

  /** Resolves with the CONNACK, whatever it says. */
  async connect(): Promise<Fields> {
    const { token = `token-${this.uid}` } = this.#options;
    this.write("CONNECT", {
      version: this.version,
      deviceFlag: this.#options.deviceFlag ?? 1,
      deviceId: this.#options.deviceId ?? `device-of-${this.uid}`,
      uid: this.uid,
      token,
      clientTimestamp: Date.now(),
      clientKey: this.#options.clientKey ?? this.#own.clientKey,
    });
    return this.next("CONNACK");
  }

  /** Sends a payload, as an object or as text, and resolves with the SENDACK. */
  async send(
    channel: { readonly id: string; readonly type: number },
    payload: object | string,
    more: Fields & { readonly flags?: number } = {},
  ): Promise<Fields> {
    const { flags = 2, ...fields } = more;
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

  /** Resolves with the PONG: all that was asked and pushed before has come. */
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

  /** One message of the socket. */
  writeBytes(bytes: Uint8Array): void {
    this.#socket.send(bytes, { binary: true });
  }

  /** The first packet of the kind, among all that came, that is as asked. Waits for it. */
  async next(
    kind: string,
    isIt: (fields: Fields, flags: number) => boolean = () => true,
  ): Promise<Fields> {
    const found = await this.nth(
      1,
      ({ packet, flags, fields }) => packet === kind && isIt(fields, flags),
    );
    return found.fields;
  }

  /** The packet of that number, from 1, among those of the kind. Waits for it. */
  async nth(number: number, isOne: (packet: WkPacket) => boolean): Promise<WkPacket> {
    const find = () => this.received.filter(isOne)[number - 1];
    await this.#waiters.until(`packet ${number} for ${this.uid}`, () => {
      if (find() === undefined && this.closeCode !== undefined)
        throw new Error(`closed with ${this.closeCode} before packet ${number}`);
      return find() !== undefined;
    });
    const found = find();
    if (found === undefined) throw new Error("it was there");
    return found;
  }

  /** Texts of the messages that came, oldest first. */
  get texts(): readonly string[] {
    return this.received
      .filter(({ packet }) => packet === "RECV")
      .map(({ fields }) => JSON.parse(String(fields.plain)).content);
  }

  /** Waits for the message with this text. */
  text(content: string): Promise<WkPacket> {
    return this.nth(
      1,
      ({ packet, fields }) =>
        packet === "RECV" && JSON.parse(String(fields.plain)).content === content,
    );
  }

  /** Resolves with the code of the close. */
  async closed(): Promise<number> {
    await this.#waiters.until(`the close of ${this.uid}`, () => this.closeCode !== undefined);
    return this.closeCode ?? 0;
  }

  /** Stops reading: the server's buffers fill up. */
  pause(): void {
    this.#socket.pause();
  }

  resume(): void {
    this.#socket.resume();
  }

  /** Without a word. */
  kill(): void {
    this.#socket.terminate();
  }

  #receive(data: Buffer): void {
    const packet = decodeServerPacket(data, this.version, this.#keys);
    this.received.push(packet);
    const { serverKey, salt } = packet.fields;
    if (packet.packet === "CONNACK" && serverKey)
      this.#keys = deriveKeys(this.#own.privateKey, String(serverKey), String(salt));
    this.#waiters.check();
  }

  #count(kind: string): number {
    return this.received.filter(({ packet }) => packet === kind).length;
  }
}

/** Opens a socket and says nothing. */
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

/** Opens a socket and connects. Throws when the login is refused. */
export async function connectWkproto(
  t: TeardownHost,
  options: WkprotoOptions,
): Promise<WkprotoClient> {
  const client = await openWkproto(t, options);
  const { reasonCode } = await client.connect();
  if (reasonCode !== 1) throw new Error(`refused with reason ${reasonCode}`);
  return client;
}
