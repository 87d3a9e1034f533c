// An app on the SDK that sends without pause to a group and to one other user, and records all
// messages it sent and received.

import { setTimeout as pause } from "node:timers/promises";
import {
  type ChannelRef,
  type Client,
  connect,
  group,
  person,
  type ReceivedMessage,
} from "../../src/client/index.ts";
import { IS_FULL } from "../support/volume.ts";

const RECONNECT = { minMs: 20, maxMs: 300 };
const PAUSE_MS = IS_FULL ? 25 : 75;
/**
 * Maximum number of unacknowledged messages. It stays below the SDK's queue limit however long a
 * node takes to start.
 */
const MAX_UNACKNOWLEDGED = 500;

/** A message that the talker sent or received. */
export interface TalkerMessage {
  readonly clientMsgNo: string;
  readonly messageSeq: number;
}

export class Talker {
  readonly uid: string;
  readonly client: Client;
  readonly sent: (TalkerMessage & { readonly channel: ChannelRef })[] = [];
  readonly received: ReceivedMessage[] = [];
  /** Events that an app must not see during a rolling restart. */
  readonly surprises: string[] = [];
  /** Number of times the client went online. */
  visits = 0;
  readonly #channels: readonly ChannelRef[];
  #count = 0;
  #unacknowledged = 0;

  constructor(uid: string, { url, team, peer }: { url: string; team: string; peer: string }) {
    this.uid = uid;
    this.#channels = [group(team), person(peer)];
    this.client = connect({ url, uid, reconnect: RECONNECT });
    this.client.on("message", (message) => this.received.push(message));
    this.client.on("error", (error) =>
      this.surprises.push(`error ${error.code}: ${error.message}`),
    );
    this.client.on("kicked", ({ reason }) => this.surprises.push(`kicked ${reason}`));
    this.client.on("status", (status) => {
      if (status === "online") this.visits += 1;
    });
  }

  /** Sends until `isOver`. Resolves when every message is acknowledged. */
  async run(isOver: () => boolean): Promise<void> {
    const sends: Promise<void>[] = [];
    while (!isOver()) {
      if (this.#unacknowledged < MAX_UNACKNOWLEDGED)
        for (const channel of this.#channels) sends.push(this.#send(channel));
      await pause(PAUSE_MS);
    }
    await Promise.all(sends);
  }

  /** Returns the messages received in the channel, in the order of arrival. */
  receivedIn({ type, id }: ChannelRef): readonly TalkerMessage[] {
    return this.received.filter(({ channel }) => channel.type === type && channel.id === id);
  }

  async #send(channel: ChannelRef): Promise<void> {
    const clientMsgNo = `${this.uid}-${++this.#count}`;
    this.#unacknowledged += 1;
    try {
      const receipt = await this.client.send(channel, clientMsgNo, {
        clientMsgNo,
      });
      this.sent.push({ channel, clientMsgNo, messageSeq: receipt.messageSeq });
    } catch (error) {
      this.surprises.push(`send ${error}`);
    } finally {
      this.#unacknowledged -= 1;
    }
  }
}
