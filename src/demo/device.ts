// A user's device: an SDK client, and the state that the page shows. All actions of the device are
// calls to `jindou-client`.

import type { ChannelRef, ClientEvents, ReceivedMessage, Status } from "jindou-client";
import { connect, group, person } from "jindou-client";
import { EXPIRE_S } from "./backend.ts";
import type { Network } from "./network.ts";
import { randomLetters, type Seat } from "./world.ts";

const PAGE_SIZE = 20;

/** A message that the broker has refused or has not acknowledged yet. */
interface Draft {
  readonly clientMsgNo: string;
  readonly text: string;
  readonly error?: string;
}

/** A conversation with its newest messages, oldest first. */
class Thread {
  messages: readonly ReceivedMessage[] = [];
  drafts: readonly Draft[] = [];
  /** True if the history has older messages and no call is loading them. */
  hasOlder = false;
  unread = 0;

  constructor(
    readonly channel: ChannelRef,
    readonly title: string,
  ) {}
}

export class Device {
  readonly client;
  readonly team: Thread;
  readonly direct: Thread;
  thread: Thread;
  status: Status = "connecting";
  isPeerOnline = false;
  kicked: ClientEvents["kicked"] | undefined;
  /** Last error reported while the network was not cut. Cleared when the device goes online. */
  problem = "";

  constructor(
    readonly seat: Seat,
    readonly network: Network,
    readonly onChange: () => void,
  ) {
    const { clientUrl: url, world, user, peer } = seat;
    this.team = new Thread(group(world.group), "Café team");
    this.direct = new Thread(person(peer.uid), peer.name);
    this.thread = this.team;
    const { uid, token } = user;
    this.client = connect({ url, uid, token, webSocket: network.socketClass });
    const { client } = this;
    client.on("status", (status) =>
      this.#change(status === "online" ? { status, problem: "" } : { status }),
    );
    client.on("kicked", (kicked) => this.#change({ kicked }));
    client.on("message", (message) => this.#merge(this.#threadOf(message.channel), [message]));
    client.on("sent", (message) => this.#merge(this.#threadOf(message.channel), [message]));
    client.on("unread", ({ channel, unread }) => {
      this.#threadOf(channel).unread = unread;
      onChange();
    });
    client.watchPresence([peer.uid], ({ online }) => this.#change({ isPeerOnline: online }));
    client.on("error", ({ message }) => network.isCut || this.#change({ problem: message }));
    for (const thread of [this.team, this.direct]) void this.loadOlder(thread);
  }

  /** Shows a conversation and marks it as read. */
  show(thread: Thread): void {
    this.#change({ thread });
    this.#markRead(thread);
  }

  /** Sends a text message, which waits while the client is offline and is stored only once. */
  async send(text: string): Promise<void> {
    const { thread } = this;
    const clientMsgNo = randomLetters(24);
    const setDraft = (...draft: Draft[]) => {
      const others = thread.drafts.filter((other) => other.clientMsgNo !== clientMsgNo);
      thread.drafts = [...others, ...draft];
      this.onChange();
    };
    setDraft({ clientMsgNo, text });
    await this.client.send(thread.channel, text, { clientMsgNo, expireS: EXPIRE_S }).then(
      () => setDraft(),
      ({ message: error }) => setDraft({ clientMsgNo, text, error }),
    );
  }

  /** Reads the page before the thread's oldest message, or the newest page of an empty thread. */
  async loadOlder(thread: Thread): Promise<void> {
    thread.hasOlder = false;
    const before = thread.messages[0]?.messageSeq;
    const { messages, more } = await this.client
      .ready()
      .then(() => this.client.history(thread.channel, { before, limit: PAGE_SIZE }))
      .catch(() => ({ messages: [], more: true })); // the next scroll to the top repeats the call
    thread.hasOlder = more;
    this.#merge(thread, messages);
  }

  #merge(thread: Thread, messages: readonly ReceivedMessage[]): void {
    const byId = new Map([...messages, ...thread.messages].map((item) => [item.messageId, item]));
    thread.messages = [...byId.values()].sort((a, b) => a.messageId - b.messageId);
    if (thread === this.thread) this.#markRead(thread);
    this.onChange();
  }

  #markRead({ channel, messages }: Thread): void {
    const { messageSeq = 0 } = messages.at(-1) ?? {};
    if (messageSeq > 0) this.client.markRead(channel, messageSeq).catch(() => undefined);
  }

  #threadOf({ type }: ChannelRef): Thread {
    return type === this.team.channel.type ? this.team : this.direct;
  }

  #change(change: Partial<Device>): void {
    Object.assign(this, change);
    this.onChange();
  }
}
