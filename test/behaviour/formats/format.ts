// Operations of a test client that every wire format has, so that one scenario runs over all
// formats. A refusal has the reason code of WuKongIM's protocols, which can be derived from each
// format's error.

import type { Test } from "tap";
import type { ChannelRef, DeviceFlag } from "../../../src/broker/model.ts";
import type { Broker } from "../../support/broker.ts";

const ABNORMAL = 1006;

export interface FormatConnect {
  readonly port: number;
  readonly uid: string;
  readonly token: string;
  readonly flag?: DeviceFlag;
  readonly deviceId?: string;
}

/** A message as a client received it. */
export interface ReceivedMessage {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly messageSeq: number;
  readonly text: string;
}

/**
 * An event as a client received it. `id` is the stream's `client_msg_no` for the text events of a
 * stream.
 */
export interface ReceivedEvent {
  readonly id: string;
  readonly type: string;
  readonly data: string;
}

export interface FormatClient {
  /** Returns the message's seq. Rejects with `FormatRefusal`. */
  send(
    channel: ChannelRef,
    text: string,
    options?: { readonly clientMsgNo?: string },
  ): Promise<number>;
  /** Returns each message once, in order of arrival. Rejects if the connection has ended. */
  nextMessage(): Promise<ReceivedMessage>;
  /** Returns each event once, in order of arrival. */
  nextEvent(): Promise<ReceivedEvent>;
  /** Acknowledges the next command and returns its content. */
  nextCommand(): Promise<string>;
  ping(): Promise<void>;
  /** Sends without waiting for a reply. Does nothing after the end of the connection. */
  sendWithoutReply(channel: ChannelRef, text: string): void;
  /** Returns true if the server announced before the close that the client must not reconnect. */
  isKicked(): boolean;
  readonly closed: Promise<{ readonly code: number }>;
  /** Stops reading until `resume`. */
  pause(): void;
  resume(): void;
  /** Destroys the connection. */
  kill(): void;
}

/** Ports of a broker for clients. */
export type ClientPorts = Pick<Broker, "clientPort" | "wkprotoPort">;

export interface Format {
  readonly name: string;
  /** False if a connection ends without a close frame, so that clients see 1006 as the code. */
  readonly hasCloseFrames: boolean;
  portOf(broker: ClientPorts): number;
  /** Opens a socket and connects. Rejects with `FormatRefusal`. */
  connect(t: Test, options: FormatConnect): Promise<FormatClient>;
}

/** A refused connect or send. */
export class FormatRefusal extends Error {
  readonly reason: number;
  /** Close code of a refused connect. */
  readonly closed: number | undefined;

  constructor(reason: number, closed?: number) {
    super(`the request was refused with reason ${reason}`);
    this.name = "FormatRefusal";
    this.reason = reason;
    this.closed = closed;
  }
}

/** Returns the code that a client of this format sees when the server closes with `code`. */
export function closeCode({ hasCloseFrames }: Format, code: number): number {
  return hasCloseFrames ? code : ABNORMAL;
}

/** Returns the text of a payload that a test has sent. */
export function textOfPayload(payload: Uint8Array): string {
  return JSON.parse(new TextDecoder().decode(payload)).content;
}
