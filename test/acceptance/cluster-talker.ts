// An app on the SDK that talks without pause, in a group and to one other user, and keeps all that
// it sent and heard. State: the client, what was sent, heard and told.

import { setTimeout as pause } from "node:timers/promises";
import {
  type ChannelRef,
  type Client,
  connect,
  group,
  person,
  type ReceivedMessage,
} from "../../src/client/index.ts";

const RECONNECT = { minMs: 20, maxMs: 300 };
const MOST_PAUSE_MS = 25;
/** Unanswered at a time: fewer than the SDK queues, however long a node takes to start. */
const MOST_WAITING = 500;

/** What a channel gave a talker: its own messages and those it heard. */
export interface Heard {
  readonly clientMsgNo: string;
  readonly messageSeq: number;
}

export class Talker {
  readonly uid: string;
  readonly client: Client;
  readonly sent: (Heard & { readonly channel: ChannelRef })[] = [];
  readonly heard: ReceivedMessage[] = [];
  /** What an app should not hear of when nodes are exchanged. */
  readonly surprises: string[] = [];
  /** How often it was online. */
  visits = 0;
  readonly #channels: readonly ChannelRef[];
  #count = 0;
  #waiting = 0;

  constructor(uid: string, { url, team, peer }: { url: string; team: string; peer: string }) {
    this.uid = uid;
    this.#channels = [group(team), person(peer)];
    this.client = connect({ url, uid, reconnect: RECONNECT });
    this.client.on("message", (message) => this.heard.push(message));
    this.client.on("error", (error) =>
      this.surprises.push(`error ${error.code}: ${error.message}`),
    );
    this.client.on("kicked", ({ reason }) => this.surprises.push(`kicked ${reason}`));
    this.client.on("status", (status) => {
      if (status === "online") this.visits += 1;
    });
  }

  /** Sends until `isOver`; resolves when everything is acknowledged. */
  async run(isOver: () => boolean): Promise<void> {
    const sends: Promise<void>[] = [];
    while (!isOver()) {
      if (this.#waiting < MOST_WAITING)
        for (const channel of this.#channels) sends.push(this.#send(channel));
      await pause(MOST_PAUSE_MS);
    }
    await Promise.all(sends);
  }

  /** Of one channel, what it heard in order. */
  heardIn({ type, id }: ChannelRef): readonly Heard[] {
    return this.heard.filter(({ channel }) => channel.type === type && channel.id === id);
  }

  async #send(channel: ChannelRef): Promise<void> {
    const clientMsgNo = `${this.uid}-${++this.#count}`;
    this.#waiting += 1;
    try {
      const receipt = await this.client.send(channel, clientMsgNo, {
        clientMsgNo,
      });
      this.sent.push({ channel, clientMsgNo, messageSeq: receipt.messageSeq });
    } catch (error) {
      this.surprises.push(`send ${error}`);
    } finally {
      this.#waiting -= 1;
    }
  }
}
