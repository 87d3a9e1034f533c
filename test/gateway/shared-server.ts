// A simulated store and cluster on a remote server. A scheduler moves one item at a time, in any
// order that the ports allow: a command reaches the server, its reply returns, an event arrives.
// Commands may overtake each other; subscriptions, barriers and events share one connection and
// keep their order. Nothing happens outside of `step`.

import { setImmediate as turn } from "node:timers/promises";
import { BrokerError } from "../../src/broker/errors.ts";
import { logBucket, logNameOf, logTopic } from "../../src/broker/log-frame.ts";
import {
  type ChannelEvent,
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type InboxCommand,
  type Message,
  type Presence,
  presenceTopic,
  type Topic,
  userTopic,
} from "../../src/broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  HistoryRange,
  HistorySlice,
  JoinRequest,
  ResumePosition,
  ResumeSeqs,
} from "../../src/broker/ports.ts";
import type { CatchUpPorts } from "../../src/gateway/catch-up.ts";
import type { PlanPorts } from "../../src/gateway/opening.ts";
import type { ResyncPorts } from "../../src/gateway/resync.ts";
import type { MaybePromise } from "../../src/lib/maybe-promise.ts";
import type { Random } from "./random.ts";
import { StreamLog } from "./stream-log.ts";

export interface Append {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly origin?: string;
  readonly recipients?: readonly string[];
  /** Whether the message is not stored and has no seq. */
  readonly noPersist?: boolean;
  /** Whether the message expires as soon as it is published. */
  readonly expired?: boolean;
  /** `clientMsgNo` of the message of a stream. Absent for other messages. */
  readonly clientMsgNo?: string;
}

export interface SendCommand {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  /** Users who get a stored copy. */
  readonly to: readonly string[];
  /** Users to whom the command is only pushed. */
  readonly pushOnlyRecipients?: readonly string[];
  readonly origin?: string;
}

type Action = () => void;

const PAYLOAD_BYTES = 10;
/** Number of turns without work after which the node is idle. */
const IDLE_STEPS = 4;

export class SharedServer {
  readonly #random: Random;
  readonly #deliver: (event: ClusterEvent) => void;
  readonly #commands: Action[] = [];
  readonly #replies: Action[] = [];
  readonly #subscriber: Action[] = [];
  readonly #arriving: Action[] = [];
  readonly #subscriptions = new Set<Topic>();
  readonly #logs = new Map<ChannelKey, Message[]>();
  readonly #expired = new Set<Message>();
  readonly #members = new Map<string, Set<string>>();
  readonly #joinSeqs = new Map<string, number>();
  readonly #inboxes = new Map<string, Message[]>();
  readonly #acknowledged = new Map<string, Set<number>>();
  readonly #online = new Set<string>();
  readonly streams: StreamLog;
  /** Whether streams are returned synchronously, as by a store in the same process. */
  answersSynchronously = false;
  /** Whether reads of streams fail. */
  isDown = false;
  /**
   * Whether additions are announced in the order in which they happened, as if one node had handled
   * all calls.
   */
  announcesInOrder = false;
  /** Returns true for a topic that cannot be subscribed to now. */
  isRefused: (topic: Topic) => boolean = () => false;
  #appended = 0;

  constructor(random: Random, deliver: (event: ClusterEvent) => void) {
    this.#random = random;
    this.#deliver = deliver;
    this.streams = new StreamLog({
      message: (input) => this.append(input),
      event: (event) => this.#publish({ kind: "event", event }),
      seq: (key) => this.headSeq(key),
    });
  }

  /** Topics that this node is subscribed to at the server. */
  get subscriptions(): ReadonlySet<Topic> {
    return this.#subscriptions;
  }

  readonly store: CatchUpPorts["store"] & PlanPorts["store"] & ResyncPorts["store"] = {
    joinSeqs: (channelId, uids) =>
      this.#ask(() => uids.map((uid) => this.#joinSeqs.get(`${channelId} ${uid}`))),
    readInbox: (uid, afterSeq, page) => this.#ask(() => this.#inboxPage(uid, afterSeq, page)),
    stream: (key, clientMsgNo) => this.#answer(() => this.streams.find(key, clientMsgNo)),
    activeStreams: (keys) =>
      this.#answer(() => keys.flatMap((key) => this.streams.active(key) ?? [])),
    personalStreamsOf: (uid) => this.#answer(() => this.streams.ofUser(uid)),
    streamEnds: async () => [],
    personalStreamEnds: async () => [],
    groupsOf: (uid) => this.#ask(() => this.groupsOf(uid)),
    userStates: (uids) =>
      this.#ask(() =>
        uids.map((uid) => ({
          groups: this.groupsOf(uid),
          inboxSeq: this.inboxSize(uid),
        })),
      ),
    joinState: ({ session: { uid }, groups: ids, positions, inboxPage }) =>
      this.#answer(() => {
        const all = this.groupsOf(uid);
        const groups = ids.filter((id) => all.includes(id));
        const keys = groups.map((id) => channelKey({ id, type: GROUP_CHANNEL }, uid));
        const streams = keys.flatMap((key) => this.streams.active(key) ?? []);
        return {
          ...{ isEntered: true, groups, isAll: all.every((id) => ids.includes(id)) },
          resumeSeqs: positions.map((position) => this.#resumeSeqs(position)),
          commands: this.#inboxPage(uid, 0, inboxPage),
          streamKeys: [...streams, ...this.streams.ofUser(uid)].map(({ key }) => key),
        };
      }),
    headSeq: (key) => this.#ask(() => this.headSeq(key)),
    readMessages: (key, range) => this.#ask(() => this.#read(key, range)),
  };

  readonly cluster: Pick<
    Cluster,
    "listen" | "subscribe" | "unlisten" | "barrier" | "recovery" | "delivered"
  > = {
    listen: (...topics) => this.#listen(topics),
    subscribe: (...topics) => this.#listen(topics).then(() => false),
    unlisten: (topic) => {
      this.#subscriber.push(() => this.#subscriptions.delete(topic));
    },
    barrier: () => this.#subscribed(() => {}),
    recovery: () => undefined,
    delivered: () => undefined,
  };

  /** The presence of users, as the directory returns it. */
  readonly directory = {
    recheck: () => this.#ask(() => {}),
    presence: (uids: readonly string[]): Promise<readonly Presence[]> =>
      this.#ask(() => uids.map((uid) => ({ uid, online: this.#online.has(uid), flag: 0 }))),
  };

  setOnline(uid: string, online: boolean): void {
    if (online) this.#online.add(uid);
    else this.#online.delete(uid);
    this.#publish({ kind: "presence", uid });
  }

  /**
   * Stores a copy in each inbox and publishes the command, in one step. Returns the command's
   * `clientMsgNo`.
   */
  sendCommand(input: SendCommand): string {
    const { channel, fromUid, to, pushOnlyRecipients = [], origin } = input;
    const message = { ...this.#message(input), messageSeq: 0 };
    const copies = to.map((uid) => {
      const inbox = this.#inboxes.get(uid) ?? [];
      this.#inboxes.set(uid, inbox);
      const inboxSeq = (inbox.at(-1)?.messageSeq ?? 0) + 1;
      inbox.push({ ...message, messageSeq: inboxSeq });
      return { uid, inboxSeq };
    });
    for (const uid of pushOnlyRecipients) copies.push({ uid, inboxSeq: 0 });
    const key = channelKey(channel, fromUid);
    this.#publish({
      kind: "command",
      message: { ...message, key },
      copies,
      origin,
    });
    return message.clientMsgNo;
  }

  /** Removes the copy from the inbox. */
  acknowledge(uid: string, inboxSeq: number): void {
    const seqs = this.#acknowledged.get(uid) ?? new Set();
    this.#acknowledged.set(uid, seqs.add(inboxSeq));
  }

  /** Returns the number of commands that were ever stored for the user. */
  inboxSize(uid: string): number {
    return this.#inboxes.get(uid)?.length ?? 0;
  }

  /** Publishes an event that is not stored. */
  publishEvent(event: ChannelEvent): void {
    this.#publish({ kind: "event", event });
  }

  groupsOf(uid: string): readonly string[] {
    return [...this.#members].filter(([, uids]) => uids.has(uid)).map(([channelId]) => channelId);
  }

  headSeq(key: ChannelKey): number {
    return this.#logs.get(key)?.length ?? 0;
  }

  /** Returns the `clientMsgNo` of each message after `seq` that has not expired. */
  keptAfter(key: ChannelKey, seq: number): readonly string[] {
    const log = this.#logs.get(key) ?? [];
    return log
      .filter((one) => one.messageSeq > seq && !this.#expired.has(one))
      .map(({ clientMsgNo }) => clientMsgNo);
  }

  /** Returns the id of a stored message. */
  idOf(key: ChannelKey, no: string): number {
    const log = this.#logs.get(key) ?? [];
    return log.find((one) => one.clientMsgNo === no)?.messageId ?? 0;
  }

  /** Stores and publishes a message in one step. Returns its `clientMsgNo`. */
  append(input: Append): string {
    const { origin, recipients } = input;
    const message = this.#message(input);
    const log = this.#logs.get(message.key) ?? [];
    this.#logs.set(message.key, log);
    if (!input.noPersist) log.push(message);
    if (input.expired) this.#expired.add(message);
    this.#publish({ kind: "message", message, origin, recipients });
    return message.clientMsgNo;
  }

  /**
   * Loses the newest messages of the channel, as a fail-over does. Later messages reuse their seqs.
   */
  loseLast(channel: ChannelRef, count: number): void {
    this.#logs.get(channelKey(channel, ""))?.splice(-count);
  }

  /**
   * Changes a membership. A removal is published in the same step, as a store does it; an addition
   * is published later, as the broker does it.
   */
  setMember(channelId: string, uid: string, member: boolean): void {
    this.changeMember(channelId, uid, member);
    const event = memberEvent(channelId, uid, member);
    if (!member) return this.#publish(event);
    const queue = this.announcesInOrder ? this.#subscriber : this.#replies;
    queue.push(() => this.#publish(event));
  }

  /** Changes a membership without a notification. */
  changeMember(channelId: string, uid: string, member: boolean): void {
    const uids = this.#members.get(channelId) ?? new Set();
    this.#members.set(channelId, uids);
    const name = `${channelId} ${uid}`;
    if (member && !uids.has(uid)) this.#joinSeqs.set(name, this.headSeq(`2:${channelId}`));
    if (member) uids.add(uid);
    else uids.delete(uid);
    if (!member) this.#joinSeqs.delete(name);
  }

  /** Moves one item and lets the node process it. Returns false if no item is left to move. */
  async step(): Promise<boolean> {
    const queues = [
      { actions: this.#commands, isOrdered: false },
      { actions: this.#replies, isOrdered: false },
      { actions: this.#subscriber, isOrdered: true },
      { actions: this.#arriving, isOrdered: true },
    ].filter(({ actions }) => actions.length > 0);
    if (queues.length > 0) {
      const { actions, isOrdered } = this.#random.pick(queues);
      const at = isOrdered ? 0 : this.#random.below(actions.length);
      actions.splice(at, 1)[0]?.();
    }
    await turn();
    await turn(); // for callbacks that wait for the end of a turn
    return this.hasWork;
  }

  /** Steps until no item is left to move. */
  async settle(): Promise<void> {
    for (let idle = 0; idle < IDLE_STEPS; ) idle = (await this.step()) ? 0 : idle + 1;
  }

  get hasWork(): boolean {
    return [this.#commands, this.#replies, this.#subscriber, this.#arriving].some(
      ({ length }) => length > 0,
    );
  }

  #message(input: Append): Message {
    const { channel, fromUid } = input;
    const key = channelKey(channel, fromUid);
    this.#appended += 1;
    const clientMsgNo = input.clientMsgNo ?? `n${this.#appended}`;
    return {
      messageId: this.#appended,
      messageSeq: input.noPersist ? 0 : this.headSeq(key) + 1,
      key,
      channel,
      fromUid,
      clientMsgNo,
      timestampMs: 0,
      header: { noPersist: input.noPersist ?? false, redDot: true },
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: new Uint8Array(PAYLOAD_BYTES),
      stream: this.streams.find(key, clientMsgNo),
    };
  }

  async #listen(topics: readonly Topic[]): Promise<void> {
    await Promise.all(
      topics.map((topic) =>
        this.isRefused(topic)
          ? Promise.reject(new BrokerError("unavailable"))
          : this.#subscribed(() => this.#subscriptions.add(topic)),
      ),
    );
  }

  #answer<T>(compute: () => T): MaybePromise<T> {
    if (this.isDown) return Promise.reject(new BrokerError("unavailable"));
    return this.answersSynchronously ? compute() : this.#ask(compute);
  }

  #ask<T>(compute: () => T): Promise<T> {
    return new Promise((resolve) => {
      this.#commands.push(() => {
        const reply = compute();
        this.#replies.push(() => resolve(reply));
      });
    });
  }

  /** Runs a command of the subscriber connection. Its reply arrives after all earlier events. */
  #subscribed(act: Action): Promise<void> {
    return new Promise((resolve) => {
      this.#subscriber.push(() => {
        act();
        this.#arriving.push(resolve);
      });
    });
  }

  #publish(event: ClusterEvent): void {
    if (topicsOf(event).some((topic) => this.#subscriptions.has(topic)))
      this.#arriving.push(() => this.#deliver(event));
  }

  #inboxPage(
    uid: string,
    afterSeq: number,
    { limit, maxBytes }: JoinRequest["inboxPage"],
  ): readonly InboxCommand[] {
    const inbox = this.#inboxes.get(uid) ?? [];
    const acknowledged = this.#acknowledged.get(uid);
    const pending = inbox.filter(
      ({ messageSeq }) => messageSeq > afterSeq && !acknowledged?.has(messageSeq),
    );
    return pending
      .slice(0, Math.min(limit, Math.ceil(maxBytes / PAYLOAD_BYTES)))
      .map((message) => ({ inboxSeq: message.messageSeq, message }));
  }

  #resumeSeqs({ key, lastSeq, lastId }: ResumePosition): ResumeSeqs {
    const log = this.#logs.get(key) ?? [];
    const index = log.findIndex(({ messageId }) => messageId > lastId);
    const isShared = index < 0 || lastSeq === 0 || lastId === 0;
    const lastCommonSeq = isShared ? lastSeq : Math.min(index, lastSeq);
    return { headSeq: this.headSeq(key), lastCommonSeq };
  }

  #read(key: ChannelKey, range: HistoryRange): HistorySlice {
    const { fromSeq, toSeq, limit } = range;
    const matching = (this.#logs.get(key) ?? []).filter(
      (one) => one.messageSeq >= fromSeq && one.messageSeq <= toSeq && !this.#expired.has(one),
    );
    const messages = matching.slice(0, limit).map((message) => ({
      ...message,
      stream: this.streams.find(key, message.clientMsgNo),
    }));
    return { messages, more: matching.length > limit };
  }
}

/** Returns the event that notifies nodes of an addition or a removal. */
export function memberEvent(channelId: string, uid: string, member: boolean): ClusterEvent {
  return member
    ? { kind: "addition", uid, channelId }
    : { kind: "removal", channelId, uids: [uid] };
}

function topicsOf(event: ClusterEvent): readonly Topic[] {
  switch (event.kind) {
    case "message":
      return event.recipients?.map(userTopic) ?? channelTopics(event.message);
    case "event":
      return channelTopics(event.event);
    case "command":
      return event.copies.map(({ uid }) => userTopic(uid));
    case "presence":
      return [presenceTopic(event.uid)];
    case "missed":
      return [event.topic];
    case "removal":
    case "head":
      return [groupTopic(event.channelId)];
    case "log":
      return [logTopic(logBucket(logNameOf(event.nameText)))];
    default:
      return [userTopic(event.uid)];
  }
}

function channelTopics({
  channel,
  fromUid,
}: Pick<Message, "channel" | "fromUid">): readonly Topic[] {
  return channel.type === GROUP_CHANNEL
    ? [groupTopic(channel.id)]
    : [userTopic(fromUid), userTopic(channel.id)];
}
