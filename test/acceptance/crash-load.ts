// The senders of the crash test. Each sends over HTTP or a socket without pause until the broker is
// killed, and reports to the checker which messages were sent and acknowledged.

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
 * Sends a message once. Returns `undefined` if the broker asks for a retry. Rejects if the broker
 * is gone or refuses the message permanently.
 */
type Wire = (sending: SentMessage) => Promise<Acknowledgement | undefined>;

/** How far the broker's shutdown or kill has progressed. */
export interface Shutdown {
  /** True if the broker was signalled to end, so that calls may fail. */
  isBegun: boolean;
  /** True if senders must stop. */
  isComplete: boolean;
}

const WINDOW = { http: 8, socket: 24 };
const RETRY_WINDOW = 16;
/** Number of acknowledged messages that a sender remembers and sends again after a restart. */
const REPEATED_MESSAGES = 20;

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
    {
      kind,
      channels,
      checker,
      random,
    }: {
      readonly kind: "http" | "socket";
      readonly channels: readonly ChannelRef[];
      readonly checker: HistoryChecker;
      readonly random: Random;
    },
  ) {
    this.uid = uid;
    this.#kind = kind;
    this.#channels = channels;
    this.#checker = checker;
    this.#random = random;
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
   * Sends until the shutdown is complete, or until it has begun and calls fail. Resolves when every
   * call is answered or interrupted.
   */
  async run(shutdown: Shutdown): Promise<void> {
    const worker = async () => {
      let isRunning = true;
      while (isRunning && !shutdown.isComplete) isRunning = await this.#sendNext(shutdown);
    };
    await Promise.all(Array.from({ length: WINDOW[this.#kind] }, worker));
  }

  /** Sends `count` messages at once. */
  async sendAtOnce(count: number, shutdown: Shutdown): Promise<void> {
    const send = () => this.#sendNext(shutdown);
    await Promise.all(Array.from({ length: count }, send));
  }

  /**
   * Repeats every unanswered message until it is answered, and some messages that were acknowledged
   * before.
   */
  async retry(): Promise<void> {
    const isOwn = ({ fromUid }: SentMessage) => fromUid === this.uid;
    const pending = [...this.#acknowledged, ...this.#checker.unacknowledged.filter(isOwn)];
    while (pending.length > 0) {
      const queue = pending.splice(0);
      const worker = async () => {
        for (let next = queue.shift(); next; next = queue.shift()) await this.#sendOnce(next);
      };
      await Promise.all(Array.from({ length: RETRY_WINDOW }, worker));
      pending.push(...this.#checker.unacknowledged.filter(isOwn));
    }
  }

  close(): void {
    this.#client?.kill();
  }

  /**
   * Sends the next message, sometimes twice at once as an impatient client does. Returns false if
   * the broker is gone.
   */
  async #sendNext(shutdown: Shutdown): Promise<boolean> {
    const sending = this.#draft();
    const copies = this.#random.below(32) === 0 ? 2 : 1;
    try {
      const copy = () => this.#sendOnce(sending);
      await Promise.all(Array.from({ length: copies }, copy));
      return true;
    } catch (error) {
      if (!shutdown.isBegun) throw error;
      return false;
    }
  }

  async #sendOnce(sending: SentMessage): Promise<void> {
    if (this.#wire === undefined) throw new Error("the client is not connected");
    this.#checker.recordSend(sending, Date.now());
    const ack = await this.#wire(sending);
    if (ack === undefined) return;
    this.#checker.recordAcknowledgement(sending, ack, Date.now());
    const newest = this.#acknowledged.slice(1 - REPEATED_MESSAGES);
    this.#acknowledged = [...newest, sending];
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

/** Returns the channel as the sender addresses it. */
function channelOf({ key, fromUid }: SentMessage): ChannelRef {
  const name = key.slice(2);
  if (key.startsWith("2:")) return { id: name, type: GROUP_CHANNEL };
  const peer = name.split("@").find((uid) => uid !== fromUid);
  return { id: peer ?? fromUid, type: PERSON_CHANNEL };
}
