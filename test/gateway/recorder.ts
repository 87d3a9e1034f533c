// Connections that record what is sent to them, with working transport topics, and a codec whose
// frames a test can read. One `Wire` represents one listener.

import { BrokerError } from "../../src/broker/errors.ts";
import type {
  ChannelEvent,
  ChannelRef,
  Conversation,
  Message,
  Presence,
  StreamSnapshot,
} from "../../src/broker/model.ts";
import type { Codec, Push, Reply } from "../../src/protocol/protocol.ts";
import type { Connection, TopicPublisher } from "../../src/transport/types.ts";

/** A message in a readable frame. */
export interface SeenMessage {
  readonly seq: number;
  readonly no: string;
  readonly from: string;
  readonly stream?: StreamSnapshot;
}

/** A frame of the test's codec after parsing. `format` names the codec that wrote it. */
export type Seen = { readonly format: string } & (
  | {
      readonly kind: "message";
      readonly channel: ChannelRef;
      readonly message: SeenMessage;
    }
  | {
      readonly kind: "messages";
      readonly channel: ChannelRef;
      readonly afterSeq: number;
      readonly throughSeq: number;
      readonly messages: readonly SeenMessage[];
    }
  | {
      readonly kind: "event";
      readonly channel: ChannelRef;
      readonly event: ChannelEvent;
    }
  | {
      readonly kind: "stream";
      readonly channel: ChannelRef;
      readonly snapshot: StreamSnapshot;
    }
  | {
      readonly kind: "command";
      readonly channel: ChannelRef;
      readonly inboxSeq: number;
      readonly message: SeenMessage;
    }
  | {
      readonly kind: "conversation";
      readonly change: string;
      readonly conversation: Conversation;
    }
  | { readonly kind: "presence"; readonly presence: readonly Presence[] }
  | { readonly kind: "disconnect"; readonly reason: string }
  | { readonly kind: "reply"; readonly reply: Reply }
);

function readable(message: Message): SeenMessage {
  const { messageSeq, clientMsgNo, fromUid, stream } = message;
  const seen = { seq: messageSeq, no: clientMsgNo, from: fromUid };
  return stream === undefined ? seen : { ...seen, stream };
}

/** Writes readable frames, and counts the pushes it has encoded. */
export class CountingCodec implements Codec {
  readonly format: string;
  readonly version = 1;
  readonly isPrivate: boolean;
  readonly acknowledges: boolean;
  readonly splitsRequests = false;
  encodedPushes = 0;

  constructor(format: string, acknowledges = false) {
    this.format = format;
    this.isPrivate = format.startsWith("private");
    this.acknowledges = acknowledges;
  }

  decode(): never {
    throw new BrokerError("internal", { message: "Only pushes are tested" });
  }

  decodeConnect(): never {
    throw new Error("nothing is decoded");
  }

  refuseLarge(): undefined {
    return undefined;
  }

  encodeReply(reply: Reply): string {
    return JSON.stringify({ format: this.format, kind: "reply", reply });
  }

  encodePush(push: Push): string {
    this.encodedPushes += 1;
    const { format } = this;
    switch (push.kind) {
      case "message":
      case "command":
        return JSON.stringify({
          ...push,
          format,
          message: readable(push.message),
        });
      case "messages":
        return JSON.stringify({
          ...push,
          format,
          messages: push.messages.map(readable),
        });
      case "event":
      case "stream":
      case "conversation":
      case "presence":
      case "disconnect":
        return JSON.stringify({ ...push, format });
    }
  }
}

export class RecordedConnection implements Connection {
  readonly id: number;
  readonly remoteAddress = "127.0.0.1";
  readonly listener = "client";
  readonly frames: string[] = [];
  readonly topics = new Set<string>();
  /** Return value of `bufferedBytes`. A value above 0 simulates a client that does not read. */
  unread = 0;
  /** Value that each sent frame assigns to `unread`. `undefined` leaves `unread` unchanged. */
  fills: number | undefined;
  endedWith: number | undefined;
  readonly #wire: Wire;

  constructor(id: number, wire: Wire) {
    this.id = id;
    this.#wire = wire;
  }

  /** All frames that were sent, parsed. */
  get seen(): readonly Seen[] {
    return this.frames.map((frame) => JSON.parse(frame));
  }

  /** `clientMsgNo` of each message that was pushed in a frame of its own, in order. */
  get messageNos(): readonly string[] {
    return this.seen.flatMap((one) => (one.kind === "message" ? [one.message.no] : []));
  }

  authenticated(_user: string): void {}

  send(frame: Uint8Array | string): void {
    if (this.endedWith !== undefined) return;
    this.frames.push(String(frame));
    this.unread = this.fills ?? this.unread;
  }

  flush(): void {}

  subscribe(topic: string): void {
    this.topics.add(topic);
  }

  unsubscribe(topic: string): void {
    this.topics.delete(topic);
  }

  publish(topic: string, frame: Uint8Array | string): void {
    this.#wire.publishBut(this, topic, frame);
  }

  bufferedBytes(): number {
    return this.unread;
  }

  end(code: number): void {
    this.endedWith ??= code;
  }
}

export class Wire implements TopicPublisher {
  readonly #connections: RecordedConnection[] = [];

  connect(): RecordedConnection {
    const connection = new RecordedConnection(this.#connections.length + 1, this);
    this.#connections.push(connection);
    return connection;
  }

  publish(topic: string, frame: Uint8Array | string): void {
    this.publishBut(undefined, topic, frame);
  }

  publishBut(
    sender: RecordedConnection | undefined,
    topic: string,
    frame: Uint8Array | string,
  ): void {
    for (const connection of this.#connections)
      if (connection !== sender && connection.topics.has(topic)) connection.send(frame);
  }
}
