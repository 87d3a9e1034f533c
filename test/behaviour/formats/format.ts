// What a test client of any wire format can do: a few verbs, so that one scenario runs over all
// formats. A refusal is the reason code of WuKongIM's protocols, which each format's error has.

import type { Test } from "tap";
import type { ChannelRef, DeviceFlag } from "../../../src/broker/model.ts";

export interface FormatConnect {
  readonly port: number;
  readonly uid: string;
  readonly token: string;
  readonly flag?: DeviceFlag;
  readonly deviceId?: string;
}

/** A message as the client got it. */
export interface Received {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly messageSeq: number;
  readonly text: string;
}

/** An event as the client got it; `id`: the stream's name for the events of a stream's text. */
export interface ReceivedEvent {
  readonly id: string;
  readonly type: string;
  readonly data: string;
}

export interface FormatClient {
  /** The seq; rejects with FormatRefusal. */
  send(
    channel: ChannelRef,
    text: string,
    options?: { readonly clientMsgNo?: string },
  ): Promise<number>;
  /** Each message once, in order of arrival; rejects when the connection ends before. */
  nextMessage(): Promise<Received>;
  /** Each event once. */
  nextEvent(): Promise<ReceivedEvent>;
  /** The content of the next command, which is acknowledged. */
  nextCommand(): Promise<string>;
  ping(): Promise<void>;
  /** Sends without waiting for an answer; harmless when the connection is over. */
  sendBlindly(channel: ChannelRef, text: string): void;
  /** Whether the server said before the close that the client must not reconnect. */
  isKicked(): boolean;
  readonly closed: Promise<{ readonly code: number }>;
  /** Stops reading, until `resume`. */
  pause(): void;
  resume(): void;
  /** Destroys the connection. */
  kill(): void;
}

export interface Format {
  readonly name: string;
  /** Opens a socket and connects; rejects with FormatRefusal. */
  connect(t: Test, options: FormatConnect): Promise<FormatClient>;
}

/** A connect or send that was refused. */
export class FormatRefusal extends Error {
  readonly reason: number;
  /** The close code of a refused connect. */
  readonly closed: number | undefined;

  constructor(reason: number, closed?: number) {
    super(`refused for reason ${reason}`);
    this.name = "FormatRefusal";
    this.reason = reason;
    this.closed = closed;
  }
}

/** The text of a payload as tests send it. */
export function textOfPayload(payload: Uint8Array): string {
  return JSON.parse(new TextDecoder().decode(payload)).content;
}
