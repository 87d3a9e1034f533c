// The senders of the crash test: each sends over HTTP or a socket without pause until the broker
// dies, and tells the checker what it sent and what was acknowledged. State: per sender a counter
// of messages and the last ones acknowledged.

import {
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  PERSON_CHANNEL,
} from "../../src/broker/model.ts";
import { type Broker, textPayload } from "../support/broker.ts";
import type { Acknowledgement, HistoryChecker, SentMessage } from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import type { NativeClient } from "../support/native-session.ts";
import { NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import { STATIC_TOKEN, TOKEN } from "./crash-names.ts";

/**
 * Sends once; undefined: the broker asks for a retry. Rejects when the broker is gone, or refuses
 * for good.
 */
type Wire = (sending: SentMessage) => Promise<Acknowledgement | undefined>;

/** How it stands with the broker's end. */
export interface Doom {
  /** It was told to end: calls may fail. */
  isNear: boolean;
  /** Nothing more is to be sent. */
  isHere: boolean;
}

const WINDOW = { http: 8, socket: 24 };
const RETRY_WINDOW = 16;
const KEPT_ACKNOWLEDGED = 20;

export class Sender {
  readonly uid: string;
  readonly #kind: "http" | "socket";
  readonly #channels: readonly ChannelRef[];
  readonly #checker: HistoryChecker;
  readonly #random: Random;
  #count = 0;
  #acknowledged: readonly SentMessage[] = [];
  #wire: Wire | undefined;
  #client: NativeClient | undefined;

  constructor(
    uid: string,
    parts: {
      readonly kind: "http" | "socket";
      readonly channels: readonly ChannelRef[];
      readonly checker: HistoryChecker;
      readonly random: Random;
    },
  ) {
    this.uid = uid;
    this.#kind = parts.kind;
    this.#channels = parts.channels;
    this.#checker = parts.checker;
    this.#random = parts.random;
  }

  async connect(broker: Broker): Promise<void> {
    if (this.#kind === "http") {
      this.#wire = httpWire(broker);
      return;
    }
    const { uid } = this;
    const port = broker.clientPort;
    const timeoutMs = 30_000;
    this.#client = await connectNative(undefined, {
      ...{ uid, port, timeoutMs, token: TOKEN },
    });
    this.#wire = socketWire(this.#client);
  }

  /**
   * Sends until doom is here, or is near and calls fail. Resolves when every call is answered or
   * broken off.
   */
  async run(doom: Doom): Promise<void> {
    const worker = async () => {
      let works = true;
      while (works && !doom.isHere) works = await this.#sendNext(doom);
    };
    await Promise.all(Array.from({ length: WINDOW[this.#kind] }, worker));
  }

  /** Sends so many at once. */
  async volley(count: number, doom: Doom): Promise<void> {
    const one = () => this.#sendNext(doom);
    await Promise.all(Array.from({ length: count }, one));
  }

  /**
   * Sends everything unanswered again until it is answered, and some of what was answered before.
   */
  async retry(): Promise<void> {
    const mine = ({ fromUid }: SentMessage) => fromUid === this.uid;
    const again = [...this.#acknowledged];
    while (again.length > 0) {
      const queue = again.splice(0);
      const worker = async () => {
        for (let next = queue.shift(); next; next = queue.shift()) await this.#sendOnce(next);
      };
      await Promise.all(Array.from({ length: RETRY_WINDOW }, worker));
      again.push(...this.#checker.unacknowledged.filter(mine));
    }
  }

  close(): void {
    this.#client?.kill();
  }

  /** Now and then twice at once, as an impatient client does. False: the broker is gone. */
  async #sendNext(doom: Doom): Promise<boolean> {
    const sending = this.#draft();
    const copies = this.#random.below(32) === 0 ? 2 : 1;
    try {
      const copy = () => this.#sendOnce(sending);
      await Promise.all(Array.from({ length: copies }, copy));
      return true;
    } catch (error) {
      if (!doom.isNear) throw error;
      return false;
    }
  }

  async #sendOnce(sending: SentMessage): Promise<void> {
    if (this.#wire === undefined) throw new Error("not connected");
    this.#checker.recordSend(sending, Date.now());
    const ack = await this.#wire(sending);
    if (ack === undefined) return;
    this.#checker.recordAcknowledgement(sending, ack, Date.now());
    const kept = this.#acknowledged.slice(1 - KEPT_ACKNOWLEDGED);
    this.#acknowledged = [...kept, sending];
  }

  #draft(): SentMessage {
    const { uid } = this;
    const random = this.#random;
    this.#count += 1;
    const no = this.#count;
    const padding = random.below(8) === 0 ? random.below(4000) : 20;
    return {
      key: channelKey(random.pick(this.#channels), uid),
      fromUid: uid,
      clientMsgNo: `${uid}-${no}`,
      text: `${uid} says ${no} ${"x".repeat(padding)}`,
      noPersist: random.below(12) === 0,
      expireS: random.pick([0, 0, 0, 0, 0, 0, 1, 3600]),
    };
  }
}

function httpWire(broker: Broker): Wire {
  return async (sending) => {
    const { id, type } = channelOf(sending);
    const { status, body } = await broker.call(
      "/message/send",
      {
        payload: textPayload(sending.text),
        from_uid: sending.fromUid,
        channel_id: id,
        channel_type: type,
        client_msg_no: sending.clientMsgNo,
        header: { no_persist: sending.noPersist ? 1 : 0 },
        expire: sending.expireS,
      },
      { token: STATIC_TOKEN },
    );
    if (status === 503) return undefined;
    if (status !== 200) throw new Error(`${status} ${body.code}`);
    return { messageId: body.message_id, messageSeq: body.message_seq };
  };
}

function socketWire(client: NativeClient): Wire {
  return async (sending) => {
    try {
      return await client.send(channelOf(sending), sending.text, sending);
    } catch (error) {
      if (isRetryAsked(error)) return undefined;
      throw error;
    }
  };
}

function isRetryAsked(error: unknown): boolean {
  return (
    error instanceof NativeClientError &&
    (error.code === "overloaded" || error.code === "unavailable")
  );
}

/** The channel as the sender names it. */
function channelOf({ key, fromUid }: SentMessage): ChannelRef {
  const name = key.slice(2);
  if (key.startsWith("2:")) return { id: name, type: GROUP_CHANNEL };
  const other = name.split("@").find((uid) => uid !== fromUid);
  return { id: other ?? fromUid, type: PERSON_CHANNEL };
}
