// The groups of this node: each exists, and its topic is subscribed to, while a session follows it
// or is about to. A group knows which wire formats its live members speak, two transport topics
// each, one for messages and one for events, and the backlogs of the sessions that are not live
// yet. Map: groups by channel id.

import {
  type ChannelEvent,
  type ChannelKey,
  channelKey,
  GROUP_CHANNEL,
  groupTopic,
  type Message,
} from "../broker/model.ts";
import type { Cluster } from "../broker/ports.ts";
import { TimeSlice, Turns } from "../lib/time-slice.ts";
import type { Codec } from "../protocol/protocol.ts";
import type { TopicPublisher } from "../transport/types.ts";
import { Backlog, type Place } from "./backlog.ts";
import { type Had, publishFrames, type Session } from "./session.ts";

/** Joining and leaving of one session hold the event loop so long at a time. */
const SLICE_MS = 2;

export class Groups {
  readonly #byId = new Map<string, Group>();
  readonly #cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">;
  readonly #turns = new Turns();

  constructor(cluster: Pick<Cluster, "listen" | "subscribe" | "unlisten">) {
    this.#cluster = cluster;
  }

  /** For work on one session that may be about thousands of groups. */
  slice(): TimeSlice {
    return new TimeSlice(SLICE_MS, this.#turns);
  }

  /** Undefined: no session follows it or is about to. */
  get(channelId: string): Group | undefined {
    return this.#byId.get(channelId);
  }

  /** The groups that the session follows, as they are at each step. */
  *followedBy(session: Session): Generator<Group, void> {
    for (const id of session.groups.keys()) {
      const group = this.#byId.get(id);
      if (group !== undefined) yield group;
    }
  }

  /**
   * The session is about to join the group: the topic stays subscribed to, once the caller has
   * asked for that, until `takeOut`.
   */
  expect(session: Session, channelId: string): Backlog {
    const group = this.#byId.get(channelId) ?? new Group(channelId);
    this.#byId.set(channelId, group);
    return group.expect(session);
  }

  /**
   * Once resolved, what is published in the group reaches the node as it comes. Throws
   * `unavailable`.
   */
  listen(channelId: string): Promise<void> {
    return this.#cluster.listen(groupTopic(channelId));
  }

  /**
   * The session is about to join these groups: once resolved, what is published there from then on
   * reaches the node. Throws `unavailable`.
   */
  async subscribe(session: Session, channelIds: readonly string[]): Promise<void> {
    await this.slice().each(channelIds, async (id) => {
      if (session.ended !== undefined) return;
      this.expect(session, id);
      await this.#cluster.subscribe(groupTopic(id));
    });
  }

  /** The same as it comes, in those of the groups that the session is still about to join. */
  async listenAll(session: Session): Promise<void> {
    await this.slice().each(session.joining ?? [], async (id) => {
      if (session.ended === undefined) await this.listen(id);
    });
  }

  /**
   * Of the group nothing more goes to the session. It may come back, and then has what it had.
   * Harmless when it is not in.
   */
  takeOut(session: Session, channelId: string): void {
    const group = this.#byId.get(channelId);
    if (group === undefined) return;
    const had = group.hadBy(session);
    if (had !== undefined) session.rememberSeq(channelId, had);
    group.remove(session);
    if (group.isEmpty && this.#byId.delete(channelId))
      this.#cluster.unlisten(groupTopic(channelId));
  }

  /**
   * Takes a session that ended out of all groups. Its connection is closed: that its groups know it
   * a little longer does no harm.
   */
  async leave(session: Session): Promise<void> {
    const slice = this.slice();
    for (const ids of [session.joining ?? [], session.groups.keys()])
      for (const id of ids) {
        if (slice.isUsedUp()) await slice.rest();
        this.takeOut(session, id);
      }
  }
}

interface FormatTopic {
  readonly codec: Codec;
  readonly topic: string;
  readonly eventTopic: string;
  members: number;
  /** Those members, where the format's clients acknowledge what they get. */
  readonly acknowledging: Set<Session> | undefined;
}

export class Group implements Place {
  readonly channelId: string;
  readonly key: ChannelKey;
  /** Of the newest message that its members were given, live or before; 0: none yet. */
  lastSeq = 0;
  readonly #formats = new Map<string, FormatTopic>();
  /** Live, of all formats. */
  readonly #live = new Set<Session>();
  /** Those of them whose frames nobody shares: a topic for each would cost more than it saves. */
  #private: Set<Session> | undefined;
  /** Of sessions that are not members yet. */
  readonly #joining = new Map<Session, Backlog>();
  /** Of live members that do not get events now. */
  #streamBacklogs: Map<Session, Backlog> | undefined;

  constructor(channelId: string) {
    this.channelId = channelId;
    this.key = channelKey({ id: channelId, type: GROUP_CHANNEL }, "");
  }

  get isEmpty(): boolean {
    return this.#live.size === 0 && this.#joining.size === 0;
  }

  /** Live members of all formats. */
  get members(): number {
    return this.#live.size;
  }

  /** All that get or are about to get something of it. */
  *sessions(): Iterable<Session> {
    yield* this.#live;
    yield* this.#joining.keys();
  }

  /** The session is about to join. */
  expect(session: Session): Backlog {
    const backlog = new Backlog(session, this, "expected");
    this.#joining.set(session, backlog);
    session.joining ??= new Set();
    session.joining.add(this.channelId);
    return backlog;
  }

  /**
   * Makes the session, which has everything before what is held, a live member; its events are
   * withheld until it goes live with them too.
   */
  add(backlog: Backlog): void {
    const { session } = backlog;
    this.#joined(session);
    this.lastSeq = Math.max(this.lastSeq, backlog.seqOf(this.key));
    backlog.release();
    this.#live.add(session);
    if (session.codec.isPrivate) {
      this.#private ??= new Set();
      this.#private.add(session);
    } else {
      const format = this.#format(session.codec);
      format.members += 1;
      format.acknowledging?.add(session);
      session.connection.subscribe(format.topic);
    }
    session.follow(this);
    this.#withhold(backlog);
  }

  /** Of the group nothing more goes to the session. Harmless when it is not in. */
  remove(session: Session): void {
    this.backlogOf(session)?.drop();
    this.#joined(session);
    if (!session.unfollow(this)) return;
    this.#live.delete(session);
    this.#caughtUp(session);
    if (session.codec.isPrivate) {
      this.#private?.delete(session);
      return;
    }
    const format = this.#format(session.codec);
    format.members -= 1;
    format.acknowledging?.delete(session);
    session.connection.unsubscribe(format.topic);
    session.connection.unsubscribe(format.eventTopic);
    if (format.members === 0) this.#formats.delete(format.codec.format);
  }

  /** What the session has of the group; undefined: that is not known. */
  hadBy(session: Session): Had | undefined {
    if (session.follows(this.channelId)) return { seq: this.lastSeq, isResumed: false };
    const backlog = this.#joining.get(session);
    if (backlog === undefined) return undefined;
    const { status, isResumed } = backlog;
    if (status === "early" && session.isWelcome) return { seq: this.lastSeq, isResumed };
    return backlog.hasBegun ? { seq: backlog.seqOf(this.key), isResumed } : undefined;
  }

  /**
   * Encodes once per format and publishes; `origin` gets nothing. Returns how many sessions it went
   * to.
   */
  deliver(message: Message, origin: Session | undefined, publisher: TopicPublisher): number {
    let early = 0;
    for (const [session, backlog] of this.#joining)
      if (session !== origin) early += backlog.takeMessage(message);
    if (message.messageSeq > 0) this.lastSeq = message.messageSeq;
    const { channel } = message;
    const push = { kind: "message", channel, message } as const;
    const isMember = origin?.follows(this.channelId) ?? false;
    for (const format of this.#formats.values()) {
      const isOrigins = origin?.codec.format === format.codec.format;
      const from = isMember && isOrigins ? origin.connection : publisher;
      publishFrames(from, format.topic, format.codec.encodePush(push));
      for (const one of format.acknowledging ?? []) if (one !== origin) one.noteGiven(push);
    }
    for (const one of this.#private ?? []) if (one !== origin) one.push(push);
    return this.members + early - (isMember ? 1 : 0);
  }

  /** The same for an event, which goes to everybody who is not behind. */
  deliverEvent(event: ChannelEvent, publisher: TopicPublisher): number {
    const push = { kind: "event", channel: event.channel, event } as const;
    for (const backlog of this.#joining.values()) backlog.takeEvent(event);
    for (const { codec, eventTopic } of this.#formats.values())
      publishFrames(publisher, eventTopic, codec.encodePush(push));
    const behind = this.#streamBacklogs;
    for (const one of this.#private ?? []) if (!behind?.has(one)) one.push(push);
    if (behind === undefined) return this.members;
    for (const one of behind.values()) one.takeEvent(event); // may end the session, which then leaves
    return this.members - behind.size;
  }

  backlogOf(session: Session): Backlog | undefined {
    return this.#joining.get(session) ?? this.#streamBacklogs?.get(session);
  }

  /** Does nothing when the session does not follow the group. */
  fallBehind(backlog: Backlog): void {
    const { connection, codec } = backlog.session;
    if (!backlog.session.follows(this.channelId)) return;
    if (!codec.isPrivate) connection.unsubscribe(this.#format(codec).eventTopic);
    this.#withhold(backlog);
  }

  /** Does nothing when the session does not follow the group: events are for members only. */
  goLive({ session }: Backlog): void {
    if (!session.follows(this.channelId)) return;
    this.#caughtUp(session);
    if (!session.codec.isPrivate)
      session.connection.subscribe(this.#format(session.codec).eventTopic);
  }

  #withhold(backlog: Backlog): void {
    this.#streamBacklogs ??= new Map();
    this.#streamBacklogs.set(backlog.session, backlog);
  }

  #caughtUp(session: Session): void {
    this.#streamBacklogs?.delete(session);
    if (this.#streamBacklogs?.size === 0) this.#streamBacklogs = undefined;
  }

  /** It is not about to join any more. */
  #joined(session: Session): void {
    if (!this.#joining.delete(session)) return;
    session.joining?.delete(this.channelId);
    if (session.joining?.size === 0) session.joining = undefined;
  }

  #format(codec: Codec): FormatTopic {
    const found = this.#formats.get(codec.format);
    if (found !== undefined) return found;
    const topic = `${codec.format}:${this.channelId}`;
    const eventTopic = `${codec.format}#${this.channelId}`; // no id holds a #
    const acknowledging = codec.acknowledges ? new Set<Session>() : undefined;
    const made = { codec, topic, eventTopic, members: 0, acknowledging };
    this.#formats.set(codec.format, made);
    return made;
  }
}
