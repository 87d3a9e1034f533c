// Who sends while nodes and Redis fail: over HTTP, each try at any node, or over a socket that goes
// to any node when it breaks. Every message is tried again until it is acknowledged, some go out
// twice at once. State: the socket, the number of the next message.

import { setTimeout as pause } from "node:timers/promises";
import { type ChannelRef, channelKey } from "../../src/broker/model.ts";
import { textPayload } from "../support/broker.ts";
import type { Acknowledgement, HistoryChecker, SentMessage } from "../support/history-checker.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";

/** As patient as a client on a phone: after that it tries elsewhere. */
const PATIENCE_MS = 1500;
const AGAIN_MS = 20;
const MOST_INSISTING_MS = 120_000;
const WINDOW = 2;
const RETRYABLE = ["unavailable", "overloaded", "http_503"];

export interface ClusterSenderParts {
  readonly kind: "http" | "socket";
  /** As the sender names them. */
  readonly channels: readonly ChannelRef[];
  readonly checker: Pick<HistoryChecker, "recordSend" | "recordAcknowledgement">;
  readonly nodes: ClusterNodes;
  readonly random: Random;
  /** Most milliseconds between a message and the next one. */
  readonly mostPauseMs: number;
}

export class ClusterSender {
  readonly uid: string;
  /** Tries that came to nothing: a fault fell on them. */
  failures = 0;
  readonly #parts: ClusterSenderParts;
  #client: Promise<NativeClient> | undefined;
  #count = 0;
  /** Why the last try came to nothing. */
  #refusal: unknown;

  constructor(uid: string, parts: ClusterSenderParts) {
    this.uid = uid;
    this.#parts = parts;
  }

  /** Sends until `isOver`; resolves when everything sent is acknowledged. */
  async run(isOver: () => boolean): Promise<void> {
    const { random, mostPauseMs } = this.#parts;
    const worker = async () => {
      while (!isOver()) {
        const channel = random.pick(this.#parts.channels);
        const sending = this.#draft(channel);
        const copies = random.below(16) === 0 ? 2 : 1;
        const copy = () => this.#insist(channel, sending);
        await Promise.all(Array.from({ length: copies }, copy));
        await pause(random.below(mostPauseMs));
      }
    };
    await Promise.all(Array.from({ length: WINDOW }, worker));
  }

  async close(): Promise<void> {
    (await this.#client?.catch(() => undefined))?.kill();
  }

  #draft(channel: ChannelRef): SentMessage {
    const { uid } = this;
    const { random } = this.#parts;
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

  async #insist(channel: ChannelRef, sending: SentMessage): Promise<void> {
    const { checker, kind } = this.#parts;
    checker.recordSend(sending, Date.now());
    const deadline = Date.now() + MOST_INSISTING_MS;
    for (;;) {
      const ack =
        kind === "http" ? await this.#post(channel, sending) : await this.#say(channel, sending);
      if (ack !== undefined) return checker.recordAcknowledgement(sending, ack, Date.now());
      this.failures += 1;
      if (Date.now() > deadline)
        throw new Error(
          `${sending.clientMsgNo} to ${sending.key} is never acknowledged: ${this.#refusal}`,
        );
      await pause(AGAIN_MS);
    }
  }

  async #post(channel: ChannelRef, sending: SentMessage): Promise<Acknowledgement | undefined> {
    const { nodes } = this.#parts;
    const message = {
      ...{ from_uid: this.uid, payload: textPayload(sending.text) },
      ...{ channel_id: channel.id, channel_type: channel.type },
      client_msg_no: sending.clientMsgNo,
      header: { no_persist: sending.noPersist ? 1 : 0 },
    };
    const answer = await nodes.call("/message/send", message).catch((error: Error) => error); // gone, or too slow: what came of it is told by the retry
    if (answer instanceof Error || answer.status === 503) {
      this.#refusal = answer instanceof Error ? answer : answer.body.code;
      return undefined;
    }
    const { status, body } = answer;
    if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
    return { messageId: body.message_id, messageSeq: body.message_seq };
  }

  async #say(channel: ChannelRef, sending: SentMessage): Promise<Acknowledgement | undefined> {
    const connecting = this.#connected();
    const client = await connecting.catch((error: unknown) => {
      this.#refuse(error);
    });
    if (client === undefined) {
      if (this.#client === connecting) this.#client = undefined;
      return undefined;
    }
    try {
      return await client.send(channel, sending.text, sending);
    } catch (error) {
      this.#refuse(error);
      if (codeOf(error) === "unavailable") return undefined; // the socket stays
      if (this.#client === connecting) this.#client = undefined;
      client.kill();
      return undefined;
    }
  }

  /** Throws what no other try can better. */
  #refuse(error: unknown): void {
    if (!isRetryable(error)) throw error;
    this.#refusal = error;
  }

  #connected(): Promise<NativeClient> {
    this.#client ??= connectNative(undefined, {
      ...{ uid: this.uid, port: this.#parts.nodes.clientPort },
      timeoutMs: PATIENCE_MS,
    });
    return this.#client;
  }
}

/** Whether another try may do: anything else is the broker's fault. */
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
