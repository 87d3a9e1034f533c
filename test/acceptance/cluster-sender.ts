// A sender whose nodes and Redis fail. It sends over HTTP to any node, or over a socket, and
// connects to any node after the socket breaks. Each message is retried until it is acknowledged,
// and some messages are sent twice at once.

import { setTimeout as pause } from "node:timers/promises";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import type { Acknowledgement, HistoryChecker, SentMessage } from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";

/**
 * Timeout of one try, as short as that of a client on a phone. After the timeout the sender tries
 * another node.
 */
const RETRY_TIMEOUT_MS = 1500;
const RETRY_PAUSE_MS = 20;
const MAX_RETRYING_MS = 120_000;
/** Number of messages the sender sends in parallel. */
const WINDOW = 2;
const RETRYABLE = ["unavailable", "overloaded", "disk_full", "too_late", "http_503"];

export interface ClusterSenderOptions {
  readonly kind: "http" | "socket";
  /** Channels as the sender addresses them. */
  readonly channels: readonly ChannelRef[];
  readonly checker: Pick<HistoryChecker, "recordSend" | "recordAcknowledgement">;
  readonly nodes: ClusterNodes;
  readonly random: Random;
  /** Maximum number of milliseconds between two messages. */
  readonly maxPauseMs: number;
}

export class ClusterSender {
  readonly uid: string;
  /** Number of tries that failed because of a fault. */
  failures = 0;
  readonly #options: ClusterSenderOptions;
  #client: Promise<NativeClient> | undefined;
  #count = 0;
  /** Reason why the last try failed. */
  #refusal: unknown;

  constructor(uid: string, options: ClusterSenderOptions) {
    this.uid = uid;
    this.#options = options;
  }

  /** Sends until `isOver`. Resolves when every message sent is acknowledged. */
  async run(isOver: () => boolean): Promise<void> {
    const { random, maxPauseMs } = this.#options;
    const worker = async () => {
      while (!isOver()) {
        const channel = random.pick(this.#options.channels);
        const sending = this.#draft(channel);
        const copies = random.below(16) === 0 ? 2 : 1;
        const copy = () => this.#sendUntilAcknowledged(channel, sending);
        await Promise.all(Array.from({ length: copies }, copy));
        await pause(random.below(maxPauseMs));
      }
    };
    await Promise.all(Array.from({ length: WINDOW }, worker));
  }

  async close(): Promise<void> {
    (await this.#client?.catch(() => undefined))?.kill();
  }

  #draft(channel: ChannelRef): SentMessage {
    const { uid } = this;
    const { random } = this.#options;
    const no = ++this.#count;
    return {
      key: channelKey(channel, uid),
      fromUid: uid,
      clientMsgNo: `${uid}-${no}`,
      text: `${uid} says ${no} ${"x".repeat(random.below(60))}`,
      noPersist: random.below(12) === 0,
      expireS: 0,
    };
  }

  async #sendUntilAcknowledged(channel: ChannelRef, sending: SentMessage): Promise<void> {
    const { checker, kind } = this.#options;
    checker.recordSend(sending, Date.now());
    const deadline = Date.now() + MAX_RETRYING_MS;
    for (;;) {
      const ack =
        kind === "http"
          ? await this.#sendOverHttp(channel, sending)
          : await this.#sendOverSocket(channel, sending);
      if (ack !== undefined) return checker.recordAcknowledgement(sending, ack, Date.now());
      this.failures += 1;
      if (Date.now() > deadline)
        throw new Error(
          `${sending.clientMsgNo} to ${sending.key} was not acknowledged in time. Last refusal: ${this.#refusal}`,
        );
      await pause(RETRY_PAUSE_MS);
    }
  }

  async #sendOverHttp(
    channel: ChannelRef,
    sending: SentMessage,
  ): Promise<Acknowledgement | undefined> {
    const { nodes } = this.#options;
    const message = {
      ...{ from_uid: this.uid, payload: textPayload(sending.text) },
      ...{ channel_id: channel.id, channel_type: channel.type },
      client_msg_no: sending.clientMsgNo,
      header: { no_persist: sending.noPersist ? 1 : 0 },
    };
    // If the node is down or too slow, only the retry shows whether the message was stored.
    const response = await nodes.call("/message/send", message).catch((error: Error) => error);
    if (response instanceof Error || response.status === 503) {
      this.#refusal = response instanceof Error ? response : response.body.code;
      return undefined;
    }
    const { status, body } = response;
    if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
    return { messageId: body.message_id, messageSeq: body.message_seq };
  }

  async #sendOverSocket(
    channel: ChannelRef,
    sending: SentMessage,
  ): Promise<Acknowledgement | undefined> {
    const connecting = this.#connected();
    const client = await connecting.catch((error: unknown) => {
      this.#recordRefusal(error);
    });
    if (client === undefined) {
      if (this.#client === connecting) this.#client = undefined;
      return undefined;
    }
    try {
      return await client.send(channel, sending.text, sending);
    } catch (error) {
      this.#recordRefusal(error);
      if (["unavailable", "disk_full", "too_late"].includes(codeOf(error))) return undefined; // the socket stays open
      if (this.#client === connecting) this.#client = undefined;
      client.kill();
      return undefined;
    }
  }

  /** Records the reason of a failed try. Throws the error if a retry cannot help. */
  #recordRefusal(error: unknown): void {
    if (!isRetryable(error)) throw error;
    this.#refusal = error;
  }

  #connected(): Promise<NativeClient> {
    this.#client ??= connectNative(undefined, {
      ...{ uid: this.uid, port: this.#options.nodes.clientPort },
      timeoutMs: RETRY_TIMEOUT_MS,
    });
    return this.#client;
  }
}

/** Returns true if another try may succeed. Any other error is a fault of the broker. */
export function isRetryable(error: unknown): boolean {
  const code = codeOf(error);
  return (
    RETRYABLE.includes(code) ||
    code.startsWith("closed_") ||
    (error instanceof Error && error.message.startsWith("timed out"))
  );
}

function codeOf(error: unknown): string {
  return error instanceof NativeClientError ? error.code : "";
}
