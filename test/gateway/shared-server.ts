// A store and a cluster as one shared server far away would be them, under a scheduler that moves one thing at a time in any order the
// ports allow: a command reaches the server, its answer comes back, an event arrives. Commands overtake each other; what one subscriber
// connection carries (listening, barriers, events) does not. Nothing happens but in `step`.

import { setImmediate as turn } from "node:timers/promises";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
  type Topic,
  userTopic,
} from "../../src/broker/model.ts";
import type {
  Cluster,
  ClusterEvent,
  HistoryRange,
  HistorySlice,
} from "../../src/broker/ports.ts";
import type { JoinPorts } from "../../src/gateway/join.ts";
import type { Random } from "./random.ts";

export interface Append {
  readonly channel: ChannelRef;
  readonly fromUid: string;
  readonly origin?: string;
  readonly recipients?: readonly string[];
  /** Not stored: has no seq. */
  readonly noPersist?: boolean;
  /** Gone from history as soon as it is published. */
  readonly expired?: boolean;
}

type Action = () => void;

export class SharedServer {
  readonly #random: Random;
  readonly #deliver: (event: ClusterEvent) => void;
  readonly #commands: Action[] = [];
  readonly #answers: Action[] = [];
  readonly #subscriber: Action[] = [];
  readonly #arriving: Action[] = [];
  readonly #listened = new Set<Topic>();
  readonly #logs = new Map<ChannelKey, Message[]>();
  readonly #expired = new Set<Message>();
  readonly #members = new Map<string, Set<string>>();
  #appended = 0;

  constructor(random: Random, deliver: (event: ClusterEvent) => void) {
    this.#random = random;
    this.#deliver = deliver;
  }

  /** The topics this node listens to, as the server knows them. */
  get listened(): ReadonlySet<Topic> {
    return this.#listened;
  }

  readonly store: JoinPorts["store"] = {
    groupsOf: (uid) => this.#ask(() => this.groupsOf(uid)),
    headSeq: (key) => this.#ask(() => this.headSeq(key)),
    readMessages: (key, range) => this.#ask(() => this.#read(key, range)),
  };

  readonly cluster: Pick<Cluster, "listen" | "unlisten" | "barrier"> = {
    listen: (topic) => this.#subscribed(() => this.#listened.add(topic)),
    unlisten: (topic) => {
      this.#subscriber.push(() => this.#listened.delete(topic));
    },
    barrier: () => this.#subscribed(() => {}),
  };

  groupsOf(uid: string): readonly string[] {
    return [...this.#members]
      .filter(([, uids]) => uids.has(uid))
      .map(([channelId]) => channelId);
  }

  headSeq(key: ChannelKey): number {
    return this.#logs.get(key)?.length ?? 0;
  }

  /** Numbers of the messages after `seq` that have not expired. */
  keptAfter(key: ChannelKey, seq: number): readonly string[] {
    const log = this.#logs.get(key) ?? [];
    return log
      .filter((one) => one.messageSeq > seq && !this.#expired.has(one))
      .map(({ clientMsgNo }) => clientMsgNo);
  }

  /** One atomic step at the server: stored and published. Returns the message's number. */
  append(input: Append): string {
    const { channel, fromUid, origin, recipients } = input;
    const key = channelKey(channel, fromUid);
    const log = this.#logs.get(key) ?? [];
    this.#logs.set(key, log);
    this.#appended += 1;
    const message: Message = {
      messageId: this.#appended,
      messageSeq: input.noPersist ? 0 : log.length + 1,
      key,
      channel,
      fromUid,
      clientMsgNo: `n${this.#appended}`,
      timestampMs: 0,
      header: { noPersist: input.noPersist ?? false, redDot: true },
      expireS: 0,
      streamNo: undefined,
      tagKey: undefined,
      payload: new Uint8Array(10),
    };
    if (!input.noPersist) log.push(message);
    if (input.expired) this.#expired.add(message);
    this.#publish({ kind: "message", message, origin, recipients });
    return message.clientMsgNo;
  }

  /** Changes a membership; the event of it is published some time after, as the broker does. */
  setMember(channelId: string, uid: string, member: boolean): void {
    this.changeMember(channelId, uid, member);
    // on the subscriber's lane, so that changes of one membership are told in their order
    this.#subscriber.push(() =>
      this.#publish({ kind: "membership", uid, channelId, member }),
    );
  }

  /** Changes a membership and tells nobody. */
  changeMember(channelId: string, uid: string, member: boolean): void {
    const uids = this.#members.get(channelId) ?? new Set();
    this.#members.set(channelId, uids);
    if (member) uids.add(uid);
    else uids.delete(uid);
  }

  /** Moves one thing, and lets the node work it off. False when nothing moves any more. */
  async step(): Promise<boolean> {
    const lanes = [
      { actions: this.#commands, isOrdered: false },
      { actions: this.#answers, isOrdered: false },
      { actions: this.#subscriber, isOrdered: true },
      { actions: this.#arriving, isOrdered: true },
    ].filter(({ actions }) => actions.length > 0);
    if (lanes.length > 0) {
      const { actions, isOrdered } = this.#random.pick(lanes);
      const at = isOrdered ? 0 : this.#random.below(actions.length);
      actions.splice(at, 1)[0]?.();
    }
    await turn();
    await turn(); // whoever waits for the end of a turn has had it
    return this.hasWork;
  }

  /** Steps until nothing moves any more. */
  async settle(): Promise<void> {
    await turn();
    while (await this.step());
  }

  get hasWork(): boolean {
    return [
      this.#commands,
      this.#answers,
      this.#subscriber,
      this.#arriving,
    ].some(({ length }) => length > 0);
  }

  #ask<T>(compute: () => T): Promise<T> {
    return new Promise((resolve) => {
      this.#commands.push(() => {
        const answer = compute();
        this.#answers.push(() => resolve(answer));
      });
    });
  }

  /** A command of the subscriber connection: its answer comes behind the events before it. */
  #subscribed(act: Action): Promise<void> {
    return new Promise((resolve) => {
      this.#subscriber.push(() => {
        act();
        this.#arriving.push(resolve);
      });
    });
  }

  #publish(event: ClusterEvent): void {
    if (topicsOf(event).some((topic) => this.#listened.has(topic)))
      this.#arriving.push(() => this.#deliver(event));
  }

  #read(key: ChannelKey, range: HistoryRange): HistorySlice {
    const { fromSeq, toSeq, limit } = range;
    const found = (this.#logs.get(key) ?? []).filter(
      (one) =>
        one.messageSeq >= fromSeq &&
        one.messageSeq <= toSeq &&
        !this.#expired.has(one),
    );
    return { messages: found.slice(0, limit), more: found.length > limit };
  }
}

function topicsOf(event: ClusterEvent): readonly Topic[] {
  if (event.kind !== "message") return [userTopic(event.uid)];
  const { message, recipients } = event;
  if (recipients !== undefined) return recipients.map(userTopic);
  const { channel, fromUid } = message;
  return channel.type === GROUP_CHANNEL
    ? [groupTopic(channel.id)]
    : [userTopic(fromUid), userTopic(channel.id)];
}
